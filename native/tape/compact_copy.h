// Rows of a tape copied as they are stored, with the slots that they refer to: for checkpoints.
// References are then numbers of the slots in the order in which they were copied, from 0 on.
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/tape.h"

namespace contig {

// Of rows that are copied piece by piece, in ascending order. Lock-free: writers go on. Not
// thread-safe itself.
class CompactCopy {
 public:
  // Throws if the tape stores nothing once.
  explicit CompactCopy(const Tape& tape);

  // Rows [first, first + n), `form().row_bytes()` each, and those of their slots that no piece
  // before had. Returns the seq below which rows are gone: what is copied of them is zeros, and no
  // other row refers to what is wrong with it.
  uint64_t copy(uint64_t first, uint64_t n, uint8_t* rows, std::vector<uint8_t>* slots);
  const Tape& tape() const { return tape_; }

 private:
  bool place(uint32_t reference, uint32_t* number);
  void take(uint32_t reference, uint8_t* out);

  const Tape& tape_;
  bool started_ = false;
  uint32_t base_ = 0;  // at or below every slot that the rows refer to
  uint64_t most_;      // that may lie between it and one of them
  uint32_t next_ = 0;
  std::vector<uint32_t> numbers_;  // by slot, from `base_` on
  std::vector<uint32_t> added_;
  std::vector<uint8_t> scratch_;
};

}  // namespace contig
