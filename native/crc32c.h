// crc32c (Castagnoli), as in RFC 3720: with the processor's instruction where it has one, chosen at
// run time, else by tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

// The checksum of more bytes, given that of what came before (0 at first).
uint32_t crc32c(uint32_t before, const uint8_t* data, size_t n);
// The same by tables, for tests.
uint32_t crc32c_portable(uint32_t before, const uint8_t* data, size_t n);

}  // namespace contig
