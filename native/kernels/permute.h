// A keyed permutation of [0, n): sampling without replacement with O(1) state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

// out[i] = the place where position from + i goes, for positions below n.
void permute(uint64_t key, uint64_t n, uint64_t from, int64_t* out, size_t count);

}  // namespace contig
