// Writers and readers in threads over one tape that stores observations once, whose chunks of slots
// are given to others all the time.
#include "append_threads.h"
#include "slot_rows.h"

namespace {

using namespace contig;
using rows::fail;

struct Slots {
  bool encoded;
  struct Seen {
    uint64_t check(const Tape& tape, const std::vector<int64_t>& seqs) const {
      return slot_rows::check(tape, seqs);
    }
    void check_all(const Tape& tape) const { slot_rows::check_all(tape); }
  };

  bool publish(Tape* tape) const {
    return tape->publish("{}", 2, slot_rows::kBytes, 0, 0, 0, slot_rows::form(encoded));
  }
  uint64_t more_bytes(const Tape& tape) const { return tape.header().slots_bytes; }
  void attach(Tape* tape, uint8_t* memory) const {
    tape->attach_slots(memory, slot_rows::form(encoded));
  }
  slot_rows::Script script(uint64_t number, uint64_t capacity) const {
    return {number, capacity + 2, number * 977};
  }
};

void round(uint64_t capacity, bool encoded, double seconds) {
  append_threads::Shared<Slots> shared(capacity, Slots{encoded});
  shared.run(seconds);
  const auto tape = shared.attach();
  Hold hold(*tape, append_threads::kTimeout);
  const uint64_t slots = tape->slot_head(),
                 chunk = uint64_t{1} << tape->slots().shape().chunk_shift;
  std::printf(", %llu slots %s\n", (unsigned long long)slots, encoded ? "encoded" : "as they are");
  std::fflush(stdout);
  if (slots < 4 * chunk * tape->slots().shape().places) fail("too few rows: the test is void");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;
  for (const uint64_t capacity : {5, 40, 300})
    for (const bool encoded : {false, true}) round(capacity, encoded, 0.8 * scale);
  return 0;
}
