// Decoders of small rows: lz4 blocks and QOI images, many at a time and without Python.
//
// A library's decoder takes and gives back the GIL for every row. Beside a busy Python thread that
// is a wait of milliseconds for each of 256 frames that take a microsecond to decode.
//
// Both take whatever comes: nothing is read or written outside of what they are given.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

// One lz4 block that holds exactly `size` bytes; false if it does not.
bool decode_lz4(const uint8_t* in, size_t n, uint8_t* out, size_t size);

// Bytes of an image; 0: more than can be counted.
inline uint64_t qoi_bytes(uint32_t height, uint32_t width, uint32_t channels) {
  const uint64_t pixels = uint64_t{height} * width;
  return pixels <= UINT64_MAX / 4 ? pixels * channels : 0;
}
// One QOI image of exactly these dimensions (3 or 4 channels), which have `size` bytes; false if it
// is none.
bool decode_qoi(const uint8_t* in, size_t n, uint8_t* out, size_t size, uint32_t height,
                uint32_t width, uint32_t channels);

}  // namespace contig
