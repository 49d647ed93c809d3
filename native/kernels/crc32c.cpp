#include "native/kernels/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define CONTIG_CRC_X86 1
#endif

namespace contig {

namespace {
constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected
constexpr uint32_t kOne = uint32_t{1} << 31;  // x^0

using Table = std::array<std::array<uint32_t, 256>, 8>;

// Eight bytes at a time: row k is the checksum of a byte followed by k zero bytes.
const Table& byte_tables() {
  static const Table table = [] {
    Table t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? kPolynomial : 0);
      t[0][i] = c;
    }
    for (size_t k = 1; k < 8; ++k)
      for (uint32_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
    return t;
  }();
  return table;
}

// Checksums are polynomials, the highest power in the lowest bit: a product of two, modulo ours.
uint32_t product(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) out ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0);
  }
  return out;
}

#if CONTIG_CRC_X86
// Three streams at once: the instruction takes three cycles, but one can start in each.
constexpr size_t kStream = 1024;

// What `kStream` zero bytes make of a checksum, byte by byte of it.
const std::array<std::array<uint32_t, 256>, 4>& zeros() {
  static const auto table = [] {
    std::array<std::array<uint32_t, 256>, 4> t{};
    const Table& bytes = byte_tables();
    const auto after_zeros = [&](uint32_t c) {
      for (size_t i = 0; i < kStream; ++i) c = (c >> 8) ^ bytes[0][c & 255];
      return c;
    };
    // It is linear: 32 single bits are enough.
    uint32_t bit[32];
    for (int k = 0; k < 32; ++k) bit[k] = after_zeros(uint32_t{1} << k);
    for (size_t b = 0; b < 4; ++b)
      for (uint32_t v = 0; v < 256; ++v)
        for (size_t k = 0; k < 8; ++k)
          if ((v >> k & 1) != 0) t[b][v] ^= bit[8 * b + k];
    return t;
  }();
  return table;
}

uint32_t shift(uint32_t c) {
  const auto& t = zeros();
  return t[0][c & 255] ^ t[1][c >> 8 & 255] ^ t[2][c >> 16 & 255] ^ t[3][c >> 24];
}

enum class Copies { no, yes, past_caches };

template <Copies kCopies>
__attribute__((target("sse4.2"))) uint32_t crc32c_sse(uint32_t before, uint8_t* to,
                                                      const uint8_t* p, size_t n) {
  const auto word = [](const uint8_t* at) {
    uint64_t w;
    std::memcpy(&w, at, 8);
    return w;
  };
  // Three lines of the round after this one: the processor does not see that the streams go on.
  const auto fetch = [](const uint8_t* at) {
    for (int line = 0; line < 3; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(at + 64 * line), _MM_HINT_T0);
  };
  const auto keep = [](uint8_t* at, uint64_t w) {
    if (kCopies == Copies::yes) std::memcpy(at, &w, 8);
    if (kCopies == Copies::past_caches)
      _mm_stream_si64(reinterpret_cast<long long*>(at), static_cast<long long>(w));
  };
  uint64_t c = ~before;
  while (n >= 3 * kStream) {
    uint64_t c1 = 0, c2 = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      if (i % 64 == 0) {
        fetch(p + 3 * (kStream + i));
        if (kCopies == Copies::yes) fetch(to + 3 * (kStream + i));
      }
      const uint64_t w = word(p + i), w1 = word(p + kStream + i), w2 = word(p + 2 * kStream + i);
      c = _mm_crc32_u64(c, w);
      c1 = _mm_crc32_u64(c1, w1);
      c2 = _mm_crc32_u64(c2, w2);
      keep(to + i, w);
      keep(to + kStream + i, w1);
      keep(to + 2 * kStream + i, w2);
    }
    c = shift(shift(static_cast<uint32_t>(c)) ^ static_cast<uint32_t>(c1)) ^ c2;
    p += 3 * kStream;
    if (kCopies != Copies::no) to += 3 * kStream;
    n -= 3 * kStream;
  }
  if (kCopies == Copies::past_caches) _mm_sfence();
  if (kCopies != Copies::no && n > 0) p = static_cast<uint8_t*>(std::memcpy(to, p, n));
  for (; n >= 8; p += 8, n -= 8) c = _mm_crc32_u64(c, word(p));
  auto c32 = static_cast<uint32_t>(c);
  for (; n > 0; ++p, --n) c32 = _mm_crc32_u8(c32, *p);
  return ~c32;
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#endif
}  // namespace

uint32_t crc32c_portable(uint32_t before, const uint8_t* p, size_t n) {
  const Table& t = byte_tables();
  uint32_t c = ~before;
  for (; n >= 8; p += 8, n -= 8) {
    const uint32_t low = c ^ (p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24);
    c = t[7][low & 255] ^ t[6][low >> 8 & 255] ^ t[5][low >> 16 & 255] ^ t[4][low >> 24] ^
        t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
  }
  for (; n > 0; ++p, --n) c = (c >> 8) ^ t[0][(c ^ *p) & 255];
  return ~c;
}

uint32_t crc32c_join(uint32_t first, uint32_t second, uint64_t bytes) {
  if (first == 0) return second;
  // As if as many zero bytes had followed the first: times x to the power of their bits. Mostly it
  // is the same number again and again.
  thread_local uint64_t last_bytes = 0;
  thread_local uint32_t last_power = kOne;
  if (bytes != last_bytes) {
    uint32_t power = kOne >> 8;  // of one byte: x^8
    last_power = kOne;
    for (uint64_t left = bytes; left != 0; left >>= 1) {
      if ((left & 1) != 0) last_power = product(power, last_power);
      power = product(power, power);
    }
    last_bytes = bytes;
  }
  return product(last_power, first) ^ second;
}

uint32_t crc32c(uint32_t before, const uint8_t* data, size_t n) {
#if CONTIG_CRC_X86
  if (has_instruction()) return crc32c_sse<Copies::no>(before, nullptr, data, n);
#endif
  return crc32c_portable(before, data, n);
}

uint32_t crc32c_copy(uint32_t before, uint8_t* to, const uint8_t* from, size_t n) {
#if CONTIG_CRC_X86
  if (has_instruction()) return crc32c_sse<Copies::yes>(before, to, from, n);
#endif
  std::memcpy(to, from, n);
  return crc32c_portable(before, to, n);  // of what was copied, whoever writes to `from` meanwhile
}

uint32_t crc32c_store(uint32_t before, uint8_t* to, const uint8_t* from, size_t n) {
#if CONTIG_CRC_X86
  if (has_instruction() && reinterpret_cast<uintptr_t>(to) % 8 == 0)
    return crc32c_sse<Copies::past_caches>(before, to, from, n);
#endif
  return crc32c_copy(before, to, from, n);
}

}  // namespace contig
