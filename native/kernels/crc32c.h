// crc32c (Castagnoli), as in RFC 3720: with the processor's instruction where it has one, chosen at
// run time, else by tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

// The checksum of more bytes, given that of what came before (0 at first).
uint32_t crc32c(uint32_t before, const uint8_t* data, size_t n);
// The same, while the bytes are copied: one pass takes as long as the checksum alone.
uint32_t crc32c_copy(uint32_t before, uint8_t* to, const uint8_t* from, size_t n);
// To memory that is read later, past the caches (copy.h).
uint32_t crc32c_store(uint32_t before, uint8_t* to, const uint8_t* from, size_t n);
// The checksum of two pieces, given each one's and how long the second is.
uint32_t crc32c_join(uint32_t first, uint32_t second, uint64_t bytes);
// The same as crc32c by tables, for tests.
uint32_t crc32c_portable(uint32_t before, const uint8_t* data, size_t n);

}  // namespace contig
