// Writers and readers in threads over one tape with leaves of any size, whose ring of bytes goes
// round much faster than its rows, or much slower.
#include <algorithm>

#include "append_threads.h"
#include "blob_rows.h"

namespace {

using namespace contig;
using rows::fail;

struct AnySize {
  uint64_t ring;
  struct Seen {
    uint64_t bytes = 0;
    uint64_t check(const Tape& tape, const std::vector<int64_t>& seqs) {
      return blob_rows::check(tape, seqs, &bytes);
    }
    void check_all(const Tape& tape) { blob_rows::check_all(tape, &bytes); }
  };

  bool publish(Tape* tape) const {
    return tape->publish("{}", 2, blob_rows::kBytes, 0, blob_rows::leaves().size(), ring);
  }
  uint64_t more_bytes(const Tape&) const { return ring; }
  void attach(Tape* tape, uint8_t* memory) const {
    tape->attach_blobs(memory, blob_rows::leaves());
  }
  blob_rows::Script script(uint64_t number, uint64_t) const {
    return {number, 6, std::max<uint64_t>(ring / 4, 1), number * 977};
  }
};

void round(uint64_t capacity, uint64_t ring, double seconds) {
  append_threads::Shared<AnySize> shared(capacity, AnySize{ring});
  uint64_t bytes = 0;
  for (const AnySize::Seen& reader : shared.run(seconds)) bytes += reader.bytes;
  std::printf(", %llu bytes of a ring of %llu\n", (unsigned long long)bytes,
              (unsigned long long)ring);
  std::fflush(stdout);
  if (bytes == 0) fail("the readers saw nothing: the test is void");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;
  for (const uint64_t capacity : {7, 200})
    for (const uint64_t ring : {37, 1000, 65536}) round(capacity, ring, 0.7 * scale);
  return 0;
}
