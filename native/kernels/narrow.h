// Whether 64-bit numbers fit into 32 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

// Of [-2^31, 2^31) if they are `with_sign`, else of [0, 2^32), as the words that they are.
inline bool fit_32_bits(const int64_t* values, size_t n, bool with_sign) {
  const uint64_t shifted = with_sign ? uint64_t{1} << 31 : 0;
  uint64_t high = 0;
  for (size_t i = 0; i < n; ++i) high |= (static_cast<uint64_t>(values[i]) + shifted) >> 32;
  return high == 0;
}

}  // namespace contig
