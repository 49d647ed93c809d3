#include "native/kernels/permute.h"

#include <algorithm>

#include "native/kernels/rng.h"

namespace contig {

namespace {
constexpr int kRounds = 6;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

uint64_t mix(uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// So few places are shuffled outright: a Feistel network over a few bits does not reach every
// order alike.
constexpr uint64_t kShuffled = 1024;

void shuffled(uint64_t key, uint64_t n, uint64_t from, int64_t* out, size_t count) {
  uint64_t state[4];
  for (int i = 0; i < 4; ++i) state[i] = mix(key + kGolden * static_cast<uint64_t>(i + 1));
  Rng rng(state);
  int64_t places[kShuffled];
  for (uint64_t i = 0; i < n; ++i) places[i] = static_cast<int64_t>(i);
  for (uint64_t i = n; i > 1; --i) std::swap(places[i - 1], places[rng.below(i)]);
  std::copy(places + from, places + from + count, out);
}
}  // namespace

void permute(uint64_t key, uint64_t n, uint64_t from, int64_t* out, size_t count) {
  if (n <= kShuffled) return shuffled(key, n, from, out, count);
  // A Feistel network over the smallest even number of bits that holds n - 1; a value outside
  // [0, n) walks on along its cycle until it is inside, at most 4 steps on average.
  int half = 1;
  while (half < 32 && (uint64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t keys[kRounds];
  for (int r = 0; r < kRounds; ++r) {
    keys[r] = mix(key + kGolden * static_cast<uint64_t>(r + 1));
  }
  for (size_t i = 0; i < count; ++i) {
    uint64_t x = from + i;
    do {
      uint64_t left = x >> half, right = x & mask;
      for (int r = 0; r < kRounds; ++r) {
        const uint64_t mixed = left ^ (mix(right ^ keys[r]) & mask);
        left = right;
        right = mixed;
      }
      x = left << half | right;
    } while (x >= n);
    out[i] = static_cast<int64_t>(x);
  }
}

}  // namespace contig
