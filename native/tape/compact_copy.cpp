#include "native/tape/compact_copy.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "native/kernels/copy.h"

namespace contig {

namespace {
constexpr uint32_t kNotYet = ~uint32_t{0};

uint64_t tail_after(const Tape& tape) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return tape.header().tail.load(std::memory_order_relaxed);
}

uint32_t reference(const uint8_t* row, uint64_t number) {
  uint32_t slot;
  std::memcpy(&slot, row + number * sizeof slot, sizeof slot);
  return slot;
}
}  // namespace

CompactCopy::CompactCopy(const Tape& tape) : tape_(tape) {
  if (!tape.form() || tape.checked() || !tape.attached())
    throw std::invalid_argument("CompactCopy: a tape that stores nothing once");
  const SlotShape& shape = tape.slots().shape();
  most_ = (shape.places << shape.chunk_shift) + shape.reach + tape.form().references();
}

uint64_t CompactCopy::copy(uint64_t first, uint64_t n, uint8_t* rows, std::vector<uint8_t>* slots) {
  const SharedForm& form = tape_.form();
  const uint64_t bytes = form.row_bytes(), each = form.references();
  for (uint64_t i = 0; i < n; ++i) copy_bytes(rows + i * bytes, tape_.row(first + i), bytes);
  // What rows say that are gone by now may be anything.
  uint64_t tail = tail_after(tape_);
  uint64_t from = std::min(std::max(tail, first) - first, n);
  added_.clear();
  if (!started_ && from < n) {
    // The row was written when the next slot was at most so far above those it refers to, and no
    // row after it reaches further back from there.
    const uint64_t behind = tape_.slots().shape().reach + each;
    base_ = reference(rows + from * bytes, 0) - static_cast<uint32_t>(behind);
    most_ += behind;
    started_ = true;
  }
  for (uint64_t i = from; i < n; ++i)
    for (uint64_t j = 0; j < each; ++j) {
      uint8_t* at = rows + i * bytes + j * sizeof(uint32_t);
      uint32_t number;
      if (!place(reference(at, 0), &number)) {  // another checkpoint was taken in meanwhile
        std::memset(rows, 0, n * bytes);
        return kNone;
      }
      std::memcpy(at, &number, sizeof number);
    }
  slots->resize(added_.size() * form.slot_bytes());
  for (size_t i = 0; i < added_.size(); ++i) take(added_[i], slots->data() + i * form.slot_bytes());
  // A slot that a row refers to is what it was if the row is still there. One that only rows refer
  // to that are gone may be wrong: none that comes later refers to it, or it would have been there.
  tail = tail_after(tape_);
  from = std::min(std::max(tail, first) - first, n);
  std::memset(rows, 0, from * bytes);
  return tail;
}

// The number of a slot in the copy. False: no row of this tape refers to it.
bool CompactCopy::place(uint32_t reference, uint32_t* number) {
  const uint32_t at = reference - base_;
  if (at > most_) return false;
  if (at >= numbers_.size()) numbers_.resize(at + uint64_t{1}, kNotYet);
  if (numbers_[at] == kNotYet) {
    numbers_[at] = next_++;
    added_.push_back(reference);
  }
  *number = numbers_[at];
  return true;
}

void CompactCopy::take(uint32_t reference, uint8_t* out) {
  const SlotMemory& memory = tape_.slots();
  const uint64_t bytes = tape_.form().slot_bytes();
  if (!tape_.form().encoded())
    copy_bytes(out, memory.slot(reference), bytes);
  else if (!memory.decode(reference, &scratch_, out))
    std::memset(out, 0, bytes);
}

}  // namespace contig
