// xoshiro256**: four words of state that Python owns, so that a sampler's stream can be saved.
#pragma once

#include <cstdint>

#if defined(_MSC_VER)
#include <intrin.h>
#endif

namespace contig {

class Rng {
 public:
  explicit Rng(uint64_t* state) : s_(state) {}

  uint64_t next() {
    const uint64_t result = rotl(s_[1] * 5, 7) * 9;
    const uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = rotl(s_[3], 45);
    return result;
  }

  // Uniform in [0, n), n > 0, without bias (Lemire's multiply and reject).
  uint64_t below(uint64_t n) {
    uint64_t low, high = multiply(next(), n, &low);
    if (low < n) {
      const uint64_t floor = (0 - n) % n;
      while (low < floor) high = multiply(next(), n, &low);
    }
    return high;
  }

  // Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  static uint64_t multiply(uint64_t a, uint64_t b, uint64_t* low) {
#if defined(_MSC_VER)
    uint64_t high;
    *low = _umul128(a, b, &high);
    return high;
#else
    __extension__ typedef unsigned __int128 u128;
    const u128 product = static_cast<u128>(a) * b;
    *low = static_cast<uint64_t>(product);
    return static_cast<uint64_t>(product >> 64);
#endif
  }

  uint64_t* s_;
};

}  // namespace contig
