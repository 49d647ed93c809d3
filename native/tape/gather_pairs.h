// Observations that are one slot each, without stacks, as nearly all tapes have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/tape/gather_slots.h"

namespace contig {

// As `gather_shared`, of a tape whose rows refer to one slot, or to two: the next observation's.
// Rows that lie behind each other, as those of slices, are copied together, and their slots, too.
uint64_t gather_pairs(const Tape& tape, const int64_t* seqs, size_t n,
                      const std::vector<Target>& targets, const std::vector<SlotTarget>& slots);

}  // namespace contig
