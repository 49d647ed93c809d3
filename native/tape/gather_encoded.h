// The same from slots that are kept encoded: several threads decode them, each slot once where rows
// that follow one another refer to it.
#pragma once

#include "native/tape/gather_slots.h"

namespace contig {

uint64_t gather_encoded(const Tape& tape, const int64_t* seqs, size_t n,
                        const std::vector<SlotTarget>& targets);
uint64_t gather_encoded_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out);

}  // namespace contig
