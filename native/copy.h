// Row copies. Readers copy rows that a writer may be overwriting and then ask `tail` whether what
// they copied counts. Under ThreadSanitizer the copies are atomic, word by word, so that it checks
// the protocol's ordering and not this deliberate race.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
#define CONTIG_ATOMIC_COPIES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CONTIG_ATOMIC_COPIES 1
#endif
#endif

namespace contig {

inline void copy_bytes(uint8_t* dst, const uint8_t* src, size_t n) {
#if defined(CONTIG_ATOMIC_COPIES)
  size_t i = 0;
  const bool aligned = ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) & 7) == 0;
  for (; aligned && i + 8 <= n; i += 8) {
    uint64_t word;
    __atomic_load(reinterpret_cast<const uint64_t*>(src + i), &word, __ATOMIC_RELAXED);
    __atomic_store(reinterpret_cast<uint64_t*>(dst + i), &word, __ATOMIC_RELAXED);
  }
  for (; i < n; ++i) {
    uint8_t byte;
    __atomic_load(src + i, &byte, __ATOMIC_RELAXED);
    __atomic_store(dst + i, &byte, __ATOMIC_RELAXED);
  }
#else
  switch (n) {  // the sizes of scalars and flags, without a call
    case 1:
      *dst = *src;
      return;
    case 4:
      std::memcpy(dst, src, 4);
      return;
    case 8:
      std::memcpy(dst, src, 8);
      return;
    default:
      std::memcpy(dst, src, n);
  }
#endif
}

}  // namespace contig
