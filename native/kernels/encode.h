// An encoder of small rows, as blocks that decode_lz4 (and the library) reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

// Appends the lz4 block of `n` bytes to `out`, if that has fewer; else nothing. How many it has.
size_t encode_lz4(const uint8_t* in, size_t n, std::vector<uint8_t>* out);

}  // namespace contig
