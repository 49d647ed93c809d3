// Asking for memory before it is read.
#pragma once

#include <cstddef>
#include <cstdint>

// GCC takes a function that only prefetches for one that does nothing, unless it is inlined.
#if defined(__GNUC__) || defined(__clang__)
#define CONTIG_INLINED __attribute__((always_inline)) inline
#else
#define CONTIG_INLINED inline
#endif

namespace contig {

CONTIG_INLINED void ask_for(const void* line) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(line, 0, 1);
#else
  (void)line;
#endif
}

// The lines of so many bytes, at most eight of them: the rest follows by itself.
CONTIG_INLINED void ask_for(const uint8_t* p, size_t bytes) {
  const size_t upto = bytes < 512 ? bytes : 512;
  for (size_t i = 0; i < upto; i += 64) ask_for(p + i);
}

// The same, each line that they touch once: asking again costs as much as the first time. `asked`:
// the line of this byte was asked for already.
CONTIG_INLINED void ask_for_all(const uint8_t* p, size_t bytes, const uint8_t* asked = nullptr) {
  const auto line = ~uintptr_t{63};
  const auto from = reinterpret_cast<uintptr_t>(p);
  const uintptr_t end = from + (bytes < 512 ? bytes : 512);
  uintptr_t at = from & line;
  if (at == (reinterpret_cast<uintptr_t>(asked) & line)) at += 64;
  for (; at < end; at += 64) ask_for(reinterpret_cast<const void*>(at));
}

}  // namespace contig
