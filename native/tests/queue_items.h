// Items for the native tests of the batch queue: each says whose it is and which one, and carries a
// pattern made of both, so that an item of two others is found out wherever the seam lies.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "native/queue/queue.h"
#include "rows.h"

namespace items {

using contig::Queue;
using contig::QueueColumn;
using rows::fail;
using rows::mix;

// Leaves of 8, 1, 8, 0 and 20 bytes, with gaps between and behind them.
constexpr uint64_t kBytes = 48, kTag = 20;
constexpr uint64_t kOffsets[] = {0, 8, 16, 24, 24}, kSizes[] = {8, 1, 8, 0, kTag};

struct Item {
  uint64_t producer, number;
  bool operator==(const Item& other) const {
    return producer == other.producer && number == other.number;
  }
  bool operator!=(const Item& other) const { return !(*this == other); }
};

inline uint8_t tag(const Item& item, uint64_t i) {
  return static_cast<uint8_t>(mix(item.producer * 1000003 + item.number * 31 + i / 8) >> i % 8 * 8);
}

inline Queue::Spec spec(uint64_t batch_size, uint64_t num_slots) {
  Queue::Spec s{kBytes, batch_size, num_slots, 0, 2, {}};
  for (int i = 0; i < 5; ++i) {
    s.columns.push_back(QueueColumn{kOffsets[i], kSizes[i], s.block_bytes});
    s.block_bytes += (kSizes[i] * batch_size + 63) / 64 * 64;
  }
  return s;
}

inline std::vector<uint8_t> records(const std::vector<Item>& list) {
  std::vector<uint8_t> out(list.size() * kBytes, 0xA5);
  for (size_t k = 0; k < list.size(); ++k) {
    uint8_t* r = &out[k * kBytes];
    std::memcpy(r, &list[k].producer, 8);
    r[8] = tag(list[k], kTag);
    std::memcpy(r + 16, &list[k].number, 8);
    for (uint64_t i = 0; i < kTag; ++i) r[24 + i] = tag(list[k], i);
  }
  return out;
}

// Items `first`... of a producer.
inline std::vector<Item> range(uint64_t producer, uint64_t first, uint64_t n) {
  std::vector<Item> out;
  for (uint64_t i = 0; i < n; ++i) out.push_back(Item{producer, first + i});
  return out;
}

// The first rows of a block; none of them may be torn.
inline std::vector<Item> read(const Queue& queue, uint64_t slot, uint64_t rows) {
  const std::vector<QueueColumn>& c = queue.spec().columns;
  const uint8_t* block = queue.block(slot);
  std::vector<Item> out(rows);
  for (uint64_t k = 0; k < rows; ++k) {
    std::memcpy(&out[k].producer, block + c[0].start + k * 8, 8);
    std::memcpy(&out[k].number, block + c[2].start + k * 8, 8);
    bool good = block[c[1].start + k] == tag(out[k], kTag);
    for (uint64_t i = 0; i < kTag; ++i)
      good = good && block[c[4].start + k * kTag + i] == tag(out[k], i);
    if (!good) fail("a torn item");
  }
  return out;
}

// The queue's lock, with what a killed holder left put back.
class Hold {
 public:
  explicit Hold(Queue& queue) : queue_(queue) {
    if (!contig::lock_until(queue.header().lock, 60)) fail("the lock is never released");
    queue.repair();
  }
  ~Hold() { contig::lock_release(queue_.header().lock); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  Queue& queue_;
};

}  // namespace items
