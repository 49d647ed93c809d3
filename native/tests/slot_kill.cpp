// "Killed at any store" of an append to a tape that stores observations once: the next appends are
// given the slots of the one that was killed.
#include "kill_appends.h"
#include "slot_rows.h"

namespace {

using namespace contig;

uint64_t slots = 0;

class Slots {
 public:
  Slots(uint64_t seed, rows::Random*) : seed_(seed) {}
  uint64_t capacity() const { return 2 + seed_ % 5; }
  killpoints::Blobs blobs() const {
    return {slot_rows::kBytes, {}, 0, slot_rows::form(static_cast<slot_rows::Form>(seed_ % 3))};
  }
  slot_rows::Script script(uint64_t number, uint64_t longest, uint64_t seed) const {
    return {number, longest, seed};
  }
  void check_all(const Tape& tape) const { slot_rows::check_all(tape); }
  uint64_t between(rows::Random* random) const { return random->below(12); }
  void appended(Tape* tape, rows::Random* random) const {
    if (random->below(16) == 0) tape->clear();
  }
  void done(const Tape& tape) const { slots += tape.slot_head(); }

 private:
  uint64_t seed_;
};

}  // namespace

int main(int argc, char** argv) {
  kill_appends::run<Slots>(argc, argv);
  std::printf("%llu slots\n", (unsigned long long)slots);
  if (slots == 0) rows::fail("too few appends: the test is void");
  return 0;
}
