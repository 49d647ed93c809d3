// "Killed at any store" of an append of rows with leaves of any size: the next appends go over the
// bytes that the one that was killed left.
#include <algorithm>

#include "blob_rows.h"
#include "kill_appends.h"

namespace {

using namespace contig;

uint64_t bytes = 0, laps = 0;

class AnySize {
 public:
  AnySize(uint64_t seed, rows::Random* random) : seed_(seed), ring_(1 + random->below(60)) {}
  uint64_t capacity() const { return 3 + seed_ % 6; }
  killpoints::Blobs blobs() const { return {blob_rows::kBytes, blob_rows::leaves(), ring_}; }
  blob_rows::Script script(uint64_t number, uint64_t longest, uint64_t seed) const {
    return {number, longest, std::max<uint64_t>(ring_ / 2, 1), seed};
  }
  void check_all(const Tape& tape) const { blob_rows::check_all(tape, &bytes); }
  uint64_t between(rows::Random* random) const { return random->below(4); }
  void appended(Tape*, rows::Random*) const {}
  void done(const Tape& tape) const { laps += tape.header().blob_head / ring_; }

 private:
  uint64_t seed_, ring_;
};

}  // namespace

int main(int argc, char** argv) {
  kill_appends::run<AnySize>(argc, argv);
  std::printf("%llu bytes, %llu laps\n", (unsigned long long)bytes, (unsigned long long)laps);
  if (laps == 0 || bytes == 0) rows::fail("too few appends: the test is void");
  return 0;
}
