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

}  // namespace contig
