// Writers and readers in threads over one tape that stores observations once, whose chunks of slots
// are given to others all the time.
#include "append_threads.h"
#include "slot_rows.h"

namespace {

using namespace contig;
using rows::fail;

struct Slots {
  slot_rows::Form form;
  struct Seen {
    uint64_t check(const Tape& tape, const std::vector<int64_t>& seqs) const {
      // The row drawn first and those behind it, as far as there are some.
      const auto first = static_cast<uint64_t>(seqs[0]);
      const uint64_t head = tape.snapshot().head;
      if (first < head) slot_rows::check_run(tape, seqs[0], std::min<uint64_t>(40, head - first));
      return slot_rows::check(tape, seqs);
    }
    void check_all(const Tape& tape) const { slot_rows::check_all(tape); }
  };

  bool publish(Tape* tape) const {
    return tape->publish("{}", 2, slot_rows::kBytes, 0, 0, 0, slot_rows::form(form));
  }
  uint64_t more_bytes(const Tape& tape) const { return tape.header().slots_bytes; }
  void attach(Tape* tape, uint8_t* memory) const {
    tape->attach_slots(memory, slot_rows::form(form));
  }
  slot_rows::Script script(uint64_t number, uint64_t capacity) const {
    return {number, capacity + 2, number * 977};
  }
};

void round(uint64_t capacity, slot_rows::Form form, double seconds) {
  append_threads::Shared<Slots> shared(capacity, Slots{form});
  const auto tape = shared.attach();
  const SlotShape& shape = tape->slots().shape();
  const uint64_t enough = 4 * shape.places << shape.chunk_shift;  // all places are given four times
  shared.run(seconds, enough);  // nearly every row has a slot of its own
  Hold hold(*tape, append_threads::kTimeout);
  const uint64_t slots = tape->slot_head();
  std::printf(", %llu slots %s\n", (unsigned long long)slots, slot_rows::name_of(form));
  std::fflush(stdout);
  if (slots < enough) fail("too few rows: the test is void");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;
  for (const uint64_t capacity : {5, 40, 300})
    for (const auto form :
         {slot_rows::Form::stacks, slot_rows::Form::encoded, slot_rows::Form::whole})
      round(capacity, form, 0.8 * scale);
  return 0;
}
