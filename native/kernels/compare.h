// Whether two pieces of memory have the same bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "native/kernels/prefetch.h"

namespace contig {

// Large ones by parts, while what comes behind in `a`, also of who lies there next, is on its way:
// frames that come in are in no cache, and the processor itself does not look beyond a page.
CONTIG_INLINED bool same_bytes(const uint8_t* a, const uint8_t* b, size_t n) {
  constexpr size_t kPart = 512, kAhead = 4096;
  for (; n >= 2 * kPart; a += kPart, b += kPart, n -= kPart) {
    for (size_t i = 0; i < kPart; i += 64) ask_for(a + kAhead + i);
    if (std::memcmp(a, b, kPart) != 0) return false;
  }
  return std::memcmp(a, b, n) == 0;
}

// Whether two of them have the bytes of a third, `b`, which is read once.
CONTIG_INLINED bool both_same_bytes(const uint8_t* a, const uint8_t* other, const uint8_t* b,
                                    size_t n) {
  constexpr size_t kPart = 512, kAhead = 4096;
  for (size_t part; n > 0; a += part, other += part, b += part, n -= part) {
    part = n < kPart ? n : kPart;
    for (size_t i = 0; i < part; i += 64) ask_for(a + kAhead + i), ask_for(other + kAhead + i);
    if (std::memcmp(a, b, part) != 0 || std::memcmp(other, b, part) != 0) return false;
  }
  return true;
}

}  // namespace contig
