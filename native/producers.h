// Who has sent how many items: what makes a resend recognisable. Compared and written with the lock
// of the tape or queue it belongs to.
#pragma once

#include <atomic>
#include <cstdint>

namespace contig {

constexpr uint64_t kProducers = 4096;

struct Producer {
  std::atomic<uint64_t> id;     // 0 = free; stored last when a slot is taken
  std::atomic<uint64_t> seq;    // items taken so far
  std::atomic<uint64_t> entry;  // of a tape: the entry its last item went to
  std::atomic<uint64_t> used;   // head when it was last used, to find the longest idle one
};

// The slot of a producer, or kProducers if it has none.
inline uint64_t find_producer(const Producer* table, uint64_t id) {
  for (uint64_t i = 0; i < kProducers; ++i) {
    const uint64_t there = table[i].id.load(std::memory_order_relaxed);
    if (there == id) return i;
    if (there == 0) break;
  }
  return kProducers;
}

// The slot of a producer; a new one starts at `seq`. A full table drops the longest idle one.
inline uint64_t take_producer(Producer* table, uint64_t id, uint64_t seq) {
  constexpr auto relaxed = std::memory_order_relaxed;
  constexpr auto release = std::memory_order_release;
  uint64_t oldest = 0;
  for (uint64_t i = 0; i < kProducers; ++i) {
    const uint64_t there = table[i].id.load(relaxed);
    if (there == id) return i;
    if (there == 0) {
      oldest = i;
      break;
    }
    if (table[i].used.load(relaxed) < table[oldest].used.load(relaxed)) oldest = i;
  }
  Producer& p = table[oldest];
  // Never 0 in between: a free slot ends the search for those behind it. While it changes hands it
  // belongs to nobody.
  p.id.store(~uint64_t{0}, release);
  p.seq.store(seq, release);
  p.entry.store(~uint64_t{0}, release);
  p.id.store(id, release);
  return oldest;
}

}  // namespace contig
