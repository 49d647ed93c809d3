// A histogram of nanoseconds in shared memory: one writer at a time, readers at any time.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>

namespace contig {

struct Histogram {
  // Four buckets per power of two: a percentile is good to a fifth.
  static constexpr int kBuckets = 256;
  std::atomic<uint64_t> count, sum, least, largest, bucket[kBuckets];

  static int bucket_of(uint64_t ns) {
    if (ns < 4) return static_cast<int>(ns);
    int log = 63;
    while ((ns >> log) == 0) --log;
    return log * 4 + static_cast<int>(ns >> (log - 2) & 3);
  }
  void add(uint64_t ns) {
    constexpr auto relaxed = std::memory_order_relaxed;
    bucket[bucket_of(ns)].fetch_add(1, relaxed);
    sum.fetch_add(ns, relaxed);
    if (count.fetch_add(1, relaxed) == 0 || ns < least.load(relaxed)) least.store(ns, relaxed);
    if (ns > largest.load(relaxed)) largest.store(ns, relaxed);
  }
  // The middle of the bucket that the share of all values ends in.
  double percentile(double share) const {
    constexpr auto relaxed = std::memory_order_relaxed;
    uint64_t all = 0, reached = 0;
    for (const auto& b : bucket) all += b.load(relaxed);
    int number = 0;
    for (; number < kBuckets - 1; ++number) {
      reached += bucket[number].load(relaxed);
      if (static_cast<double>(reached) >= share * static_cast<double>(all)) break;
    }
    if (number < 8) return number;
    const double middle = std::ldexp(4.5 + number % 4, number / 4 - 2);
    const auto low = static_cast<double>(least.load(relaxed));
    return std::fmin(std::fmax(middle, low), static_cast<double>(largest.load(relaxed)));
  }
  void reset() {
    constexpr auto relaxed = std::memory_order_relaxed;
    count.store(0, relaxed);
    sum.store(0, relaxed);
    least.store(0, relaxed);
    largest.store(0, relaxed);
    for (auto& b : bucket) b.store(0, relaxed);
  }
};

}  // namespace contig
