// Row copies. Readers copy rows that a writer may be overwriting and then ask `tail` whether what
// they copied counts. Under ThreadSanitizer the copies are atomic, word by word, so that it checks
// the protocol's ordering and not this deliberate race.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define CONTIG_ATOMIC_COPIES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CONTIG_ATOMIC_COPIES 1
#endif
#endif

namespace contig {

#if defined(CONTIG_ATOMIC_COPIES)

inline void copy_bytes(uint8_t* dst, const uint8_t* src, size_t n) {
  size_t i = 0;
  const bool aligned =
      ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) & 7) == 0;
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
}

template <size_t N>
void copy_fixed(uint8_t* dst, const uint8_t* src) {
  copy_bytes(dst, src, N);
}

#else

template <size_t N>
void copy_fixed(uint8_t* dst, const uint8_t* src) {
  std::memcpy(dst, src, N);  // a move or two, never a call
}

// Leaves are mostly small: up to 256 bytes go in 16-byte moves, the last of which may overlap the
// one before it. Appending 1000 rows of nine leaves takes 42 us so, 56 us with calls of memcpy;
// for gathering, which waits for memory, it makes no difference.
inline void copy_bytes(uint8_t* dst, const uint8_t* src, size_t n) {
  if (n > 256) {
    std::memcpy(dst, src, n);
  } else if (n >= 16) {
    for (size_t i = 0; i + 16 <= n; i += 16) copy_fixed<16>(dst + i, src + i);
    copy_fixed<16>(dst + n - 16, src + n - 16);
  } else if (n >= 8) {
    copy_fixed<8>(dst, src);
    copy_fixed<8>(dst + n - 8, src + n - 8);
  } else if (n >= 4) {
    copy_fixed<4>(dst, src);
    copy_fixed<4>(dst + n - 4, src + n - 4);
  } else {
    for (size_t i = 0; i < n; ++i) dst[i] = src[i];
  }
}

#endif

// Copies one leaf of `n` rows: from rows at `src` pointers plus `offset` to adjacent items.
template <class Copy>
void copy_leaf_with(uint8_t* dst, const uint8_t* const* src, size_t offset, size_t bytes, size_t n,
                    Copy copy) {
  for (size_t i = 0; i < n; ++i) copy(dst + i * bytes, src[i] + offset);
}

// The same of leaves with so many whole blocks of 16 bytes: no loop for each row.
template <size_t Blocks>
void copy_leaf_blocks(uint8_t* dst, const uint8_t* const* src, size_t offset, size_t bytes,
                      size_t n) {
  copy_leaf_with(dst, src, offset, bytes, n, [bytes](uint8_t* d, const uint8_t* s) {
    copy_fixed<16 * Blocks>(d, s);
    copy_fixed<16>(d + bytes - 16, s + bytes - 16);
  });
}

inline void copy_leaf(uint8_t* dst, const uint8_t* const* src, size_t offset, size_t bytes,
                      size_t n) {
  switch (bytes < 16 ? bytes : bytes / 16 * 16) {
    case 1:
      return copy_leaf_with(dst, src, offset, bytes, n, copy_fixed<1>);
    case 4:
      return copy_leaf_with(dst, src, offset, bytes, n, copy_fixed<4>);
    case 8:
      return copy_leaf_with(dst, src, offset, bytes, n, copy_fixed<8>);
    case 16:
      return copy_leaf_blocks<1>(dst, src, offset, bytes, n);
    case 32:
      return copy_leaf_blocks<2>(dst, src, offset, bytes, n);
    case 48:
      return copy_leaf_blocks<3>(dst, src, offset, bytes, n);
    case 64:
      return copy_leaf_blocks<4>(dst, src, offset, bytes, n);
    default:
      return copy_leaf_with(dst, src, offset, bytes, n,
                            [bytes](uint8_t* d, const uint8_t* s) { copy_bytes(d, s, bytes); });
  }
}

// Copies `n` items that lie `from_step` apart to places that lie `to_step` apart.
template <class Copy>
void copy_apart_with(uint8_t* to, size_t to_step, const uint8_t* from, size_t from_step, size_t n,
                     Copy copy) {
  for (size_t i = 0; i < n; ++i) copy(to + i * to_step, from + i * from_step);
}

inline void copy_apart(uint8_t* to, size_t to_step, const uint8_t* from, size_t from_step,
                       size_t bytes, size_t n) {
  if (to_step == bytes && from_step == bytes) return copy_bytes(to, from, n * bytes);
  switch (bytes) {
    case 1:
      return copy_apart_with(to, to_step, from, from_step, n, copy_fixed<1>);
    case 4:
      return copy_apart_with(to, to_step, from, from_step, n, copy_fixed<4>);
    case 8:
      return copy_apart_with(to, to_step, from, from_step, n, copy_fixed<8>);
    case 24:
      return copy_apart_with(to, to_step, from, from_step, n, copy_fixed<24>);
    default:
      return copy_apart_with(to, to_step, from, from_step, n,
                             [bytes](uint8_t* d, const uint8_t* s) { copy_bytes(d, s, bytes); });
  }
}

// For what nobody looks at soon: past the caches, so that memory is not read before it is written.
constexpr size_t kPastCaches = 16 << 10;

inline void copy_past_caches(uint8_t* dst, const uint8_t* src, size_t n) {
#if defined(__SSE2__) && !defined(CONTIG_ATOMIC_COPIES)
  const size_t lead = (16 - (reinterpret_cast<uintptr_t>(dst) & 15)) & 15;
  std::memcpy(dst, src, lead);
  dst += lead, src += lead, n -= lead;
  for (; n >= 64; dst += 64, src += 64, n -= 64)
    for (int k = 0; k < 4; ++k)
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst) + k,
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(src) + k));
  _mm_sfence();
  std::memcpy(dst, src, n);
#else
  copy_bytes(dst, src, n);
#endif
}

inline void store_bytes(uint8_t* dst, const uint8_t* src, size_t n) {
  if (n < kPastCaches)
    copy_bytes(dst, src, n);
  else
    copy_past_caches(dst, src, n);
}

// As copy_leaf, into memory that is read later: large leaves do not go through the caches. Storing
// 452 kB takes 26 us so, 45 us with memcpy.
inline void store_leaf(uint8_t* dst, const uint8_t* const* src, size_t offset, size_t bytes,
                       size_t n) {
  if (bytes < kPastCaches) return copy_leaf(dst, src, offset, bytes, n);
  for (size_t i = 0; i < n; ++i) copy_past_caches(dst + i * bytes, src[i] + offset, bytes);
}

}  // namespace contig
