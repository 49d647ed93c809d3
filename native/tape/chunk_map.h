// Chunks of something that is numbered without end, of which the newest are kept: where each one
// lies. Places of those that nobody needs any more are given to new ones.
#pragma once

#include <atomic>
#include <cstdint>

namespace contig {

class ChunkMap {
 public:
  using Word = std::atomic<uint64_t>;
  ChunkMap() = default;
  // `length` is a power of two, at least `places`.
  ChunkMap(Word* words, uint64_t length, uint64_t places)
      : words_(words), mask_(length - 1), places_(places) {}

  Word& operator[](uint64_t chunk) const { return words_[chunk & mask_]; }
  // Its place. What a stray write left there leads to the first one.
  uint64_t at(uint64_t chunk) const {
    const uint64_t place = words_[chunk & mask_].load(std::memory_order_relaxed);
    return place < places_ ? place : 0;
  }
  // With the lock: gives chunks [from, to) the first places that none of those from `live` on has.
  void place(uint64_t live, uint64_t from, uint64_t to) const;

 private:
  Word* words_ = nullptr;
  uint64_t mask_ = 0, places_ = 0;
};

}  // namespace contig
