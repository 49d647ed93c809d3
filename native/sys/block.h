// Memory for batches: aligned blocks that are reused instead of being given back to the system,
// because a fresh block costs a page fault every 4 kB.
//
// At most 256 MB are kept for reuse. What is given last is kept: the blocks that nobody took for
// longest make room for it. Blocks that nobody takes for ten seconds go back to the system, a few
// megabytes with each block that is given.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

constexpr size_t kColumnAlign = 64;
constexpr size_t kMaxIdle = 256u << 20;
constexpr std::chrono::seconds kBlockIdle{10};

// Blocks on their way back to the system, which has them when this ends. That may take 0.1 ms for
// each megabyte: whoever holds a lock that others wait for keeps this until it let go.
class ReturnedBlocks {
 public:
  ReturnedBlocks() = default;
  ~ReturnedBlocks();
  ReturnedBlocks(ReturnedBlocks&&) = default;
  ReturnedBlocks& operator=(ReturnedBlocks&&) = delete;
  void add(uint8_t* block, size_t bytes) {
    blocks_.push_back(block);
    bytes_ += bytes;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<uint8_t*> blocks_;
  size_t bytes_ = 0;
};

uint8_t* block_take(size_t bytes);  // never null; contents undefined
// The same size as taken. Tells which blocks make room for it.
ReturnedBlocks block_give(uint8_t* block, size_t bytes);
size_t block_pooled_bytes();  // memory kept for reuse, at most kMaxIdle
// Takes blocks out of the pool that nobody took for as long, the oldest first, until that makes
// `bytes`.
ReturnedBlocks block_return(std::chrono::nanoseconds idle, size_t bytes);

}  // namespace contig
