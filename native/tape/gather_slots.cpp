#include "native/tape/gather_slots.h"

#include <algorithm>
#include <cstring>

#include "native/kernels/copy.h"
#include "native/kernels/prefetch.h"
#include "native/tape/gather_encoded.h"
#include "native/tape/gather_pairs.h"

namespace contig {

namespace {
constexpr size_t kGroup = 32;  // rows in flight; a power of two

// The slots of references [first, last) of a row, each asked for.
CONTIG_INLINED void ask_slots(const SlotMemory& memory, const uint8_t* row, size_t first,
                              size_t last, const uint8_t** slots) {
  const size_t bytes = memory.shape().slot_bytes;
  for (size_t j = first; j < last; ++j) {
    uint32_t low;
    copy_fixed<4>(reinterpret_cast<uint8_t*>(&low), row + 4 * j);
    slots[j] = memory.slot(low);
    // What a row led to mostly lies behind what it saw, and begins in the same line.
    const bool behind = j > first && slots[j] == slots[j - 1] + bytes;
    ask_for_all(slots[j], bytes, behind ? slots[j] - 1 : nullptr);
  }
}

// A leaf of `n` rows, at most a group, into its column; `slots_of(i)`: the slots of an observation.
template <class SlotsOf>
void copy_shared(const SharedLeaf& leaf, size_t n, uint8_t* column, SlotsOf slots_of) {
  if (leaf.frames > 1) {
    for (size_t i = 0; i < n; ++i) copy_observation(leaf, slots_of(i), column + i * leaf.bytes);
    return;
  }
  const uint8_t* from[kGroup];
  bool adjacent = true;  // as those of rows that follow each other, if slots have nothing else
  for (size_t i = 0; i < n; ++i) {
    from[i] = slots_of(i)[leaf.first];
    adjacent = adjacent && from[i] == from[0] + i * leaf.bytes;
  }
  if (adjacent)
    copy_bytes(column, from[0] + leaf.at, n * leaf.bytes);
  else
    copy_leaf(column, from, leaf.at, leaf.bytes, n);
}

// The slots that some rows refer to: of each row, those of its observation and of its next one.
class Referred {
 public:
  Referred(const Tape& tape, const int64_t* seqs, size_t n)
      : tape_(tape),
        seqs_(seqs),
        n_(n),
        stack_(tape.form().stack()),
        each_(tape.form().references()),
        find_(tape),
        slots_(2 * kGroup * each_) {}

  // Three groups of rows are known at a time, two groups of what they refer to.
  const uint8_t* row(size_t i) const { return rows_[i % (4 * kGroup)]; }
  CONTIG_INLINED void ask_rows(size_t from, size_t to) {
    const size_t bytes = tape_.row_bytes();
    for (size_t i = from; i < std::min(n_, to); ++i) {
      const uint8_t* row = find_(static_cast<uint64_t>(seqs_[i]));
      rows_[i % (4 * kGroup)] = row;
      ask_for_all(row, bytes, find_.follows() ? row - 1 : nullptr);
    }
  }
  // Finds those of the rows from `at` on, a group of them, and asks for what is in them.
  CONTIG_INLINED void fetch(size_t at, bool now, bool next) {
    const size_t first = now ? 0 : stack_, last = next ? each_ : stack_;
    const SlotMemory memory = tape_.slots();
    for (size_t i = at; i < std::min(n_, at + kGroup); ++i)
      ask_slots(memory, row(i), first, last, of(i));
  }

  const uint8_t* const* observation(size_t row, bool next) { return of(row) + (next ? stack_ : 0); }

 private:
  const uint8_t** of(size_t row) { return slots_.data() + row % (2 * kGroup) * each_; }
  const Tape& tape_;
  const int64_t* seqs_;
  size_t n_, stack_, each_;
  RowFinder find_;
  const uint8_t* rows_[4 * kGroup];
  std::vector<const uint8_t*> slots_;
};
}  // namespace

void copy_observation(const SharedLeaf& leaf, const uint8_t* const* slots, uint8_t* to) {
  if (leaf.inner == leaf.frame_bytes) {
    for (uint64_t f = 0; f < leaf.frames; ++f)
      copy_bytes(to + f * leaf.inner, slots[leaf.first + f] + leaf.at, leaf.inner);
  } else if (leaf.inner == 1 && leaf.frames == 4) {  // grey frames, the last axis: whole words
    const uint8_t *a = slots[leaf.first] + leaf.at, *b = slots[leaf.first + 1] + leaf.at;
    const uint8_t *c = slots[leaf.first + 2] + leaf.at, *d = slots[leaf.first + 3] + leaf.at;
    for (uint64_t i = 0; i < leaf.frame_bytes; ++i, to += 4) {
      copy_fixed<1>(to, a + i);
      copy_fixed<1>(to + 1, b + i);
      copy_fixed<1>(to + 2, c + i);
      copy_fixed<1>(to + 3, d + i);
    }
  } else {
    for (uint64_t f = 0; f < leaf.frames; ++f)
      SharedForm::put_frame(leaf, slots[leaf.first + f] + leaf.at, f, to);
  }
}

FoldedSlots::FoldedSlots(const Tape& tape, std::vector<SlotTarget> first,
                         std::vector<SlotTarget> last)
    : tape_(tape), stack_(tape.form().stack()), each_(tape.form().references()) {
  static_assert(kMost <= kGroup);
  first_.targets = std::move(first);
  last_.targets = std::move(last);
  for (Side* side : {&first_, &last_}) {
    bool now = false, next = false;
    for (const SlotTarget& t : side->targets) (t.next ? next : now) = true;
    side->low = now ? 0 : stack_;
    side->high = next ? each_ : now ? stack_ : side->low;
    side->slots.resize(2 * kMost * each_);
  }
}

void FoldedSlots::ask(Side* side, size_t at, size_t count, const uint8_t* const* rows) const {
  const SlotMemory memory = tape_.slots();
  // Those of the group before lie in the other half.
  const uint8_t** slots = side->slots.data() + at / kMost % 2 * kMost * each_;
  for (size_t i = 0; i < count; ++i)
    ask_slots(memory, rows[i], side->low, side->high, slots + i * each_);
}

void FoldedSlots::ask(size_t at, size_t count, const uint8_t* const* first,
                      const uint8_t* const* last) {
  ask(&first_, at, count, first);
  ask(&last_, at, count, last);
  if (at > 0) copy();
  at_ = at, count_ = count;
}

void FoldedSlots::copy() {
  copy(first_);
  copy(last_);
}

void FoldedSlots::copy(const Side& side) const {
  const uint8_t* const* slots = side.slots.data() + at_ / kMost % 2 * kMost * each_;
  for (const SlotTarget& t : side.targets) {
    const SharedLeaf& leaf = tape_.form().leaves()[t.leaf];
    copy_shared(leaf, count_, t.column + at_ * leaf.bytes,
                [&](size_t i) { return slots + i * each_ + (t.next ? stack_ : 0); });
  }
}

uint64_t gather_shared(const Tape& tape, const int64_t* seqs, size_t n,
                       const std::vector<Target>& targets, const std::vector<SlotTarget>& slots) {
  if (tape.form().encoded()) {
    gather_columns(tape, seqs, n, targets.data(), targets.size());
    return gather_encoded(tape, seqs, n, slots);
  }
  if (tape.form().stack() == 1) return gather_pairs(tape, seqs, n, targets, slots);
  bool now = false, next = false;
  for (const SlotTarget& t : slots) (t.next ? next : now) = true;
  // While a group of rows is copied, the next one's slots are on their way from memory, and the one
  // after that's rows.
  Referred referred(tape, seqs, n);
  referred.ask_rows(0, 2 * kGroup);
  referred.fetch(0, now, next);
  for (size_t at = 0; at < n; at += kGroup) {
    const size_t end = std::min(n, at + kGroup);
    referred.ask_rows(at + 2 * kGroup, at + 3 * kGroup);
    referred.fetch(at + kGroup, now, next);
    const uint8_t* rows[kGroup];
    for (size_t i = at; i < end; ++i) rows[i - at] = referred.row(i);
    for (const Target& t : targets)
      copy_leaf(t.column + at * t.bytes, rows, t.offset, t.bytes, end - at);
    for (const SlotTarget& t : slots) {
      const SharedLeaf& leaf = tape.form().leaves()[t.leaf];
      copy_shared(leaf, end - at, t.column + at * leaf.bytes,
                  [&](size_t i) { return referred.observation(at + i, t.next); });
    }
  }
  return tail_after(tape);
}

uint64_t gather_whole_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out) {
  const SharedForm& form = tape.form();
  if (n == 0) return tail_after(tape);
  if (form.encoded()) return gather_encoded_records(tape, seqs, n, out);
  const size_t size = tape.record_size();
  std::memset(out, 0, n * size);  // what lies between leaves
  Referred slots(tape, seqs, n);
  const bool paired = form.paired();
  slots.ask_rows(0, 2 * kGroup);
  slots.fetch(0, true, paired);
  for (size_t i = 0; i < n; ++i) {
    if (i % kGroup == 0) {
      slots.ask_rows(i + 2 * kGroup, i + 3 * kGroup);
      slots.fetch(i + kGroup, true, paired);
    }
    const uint8_t* row = slots.row(i);
    uint8_t* record = out + i * size;
    for (const KeptLeaf& leaf : form.kept())
      copy_bytes(record + leaf.offset, row + leaf.stored, leaf.bytes);
    for (const SharedLeaf& leaf : form.leaves()) {
      copy_observation(leaf, slots.observation(i, false), record + leaf.offset);
      if (paired) copy_observation(leaf, slots.observation(i, true), record + leaf.next_offset);
    }
  }
  return tail_after(tape);
}

}  // namespace contig
