// The pool keeps the blocks that are used now, whatever sizes were used before, and gives idle ones
// back.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "native/sys/block.h"

namespace {

using namespace contig;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  std::exit(1);
}

// More memory than the pool keeps, in blocks of many sizes.
void burst() {
  std::vector<std::pair<uint8_t*, size_t>> blocks;
  size_t total = 0;
  for (size_t size = 1000; total <= kMaxIdle + (32u << 20); size = size % 4000000 + 37000) {
    blocks.emplace_back(block_take(size), size);
    total += size;
  }
  for (const auto& [block, size] : blocks) block_give(block, size);
  expect(block_pooled_bytes() <= kMaxIdle, "the pool stays below its bound");
  expect(block_pooled_bytes() > kMaxIdle / 2, "what was given is kept");
}

void what_is_used_now_gets_the_room() {
  burst();
  constexpr size_t kSize = 48u << 20;
  block_give(block_take(kSize), kSize);
  expect(block_pooled_bytes() <= kMaxIdle, "the pool stays below its bound");
  const size_t before = block_pooled_bytes();
  uint8_t* block = block_take(kSize);
  expect(block_pooled_bytes() <= before - kSize, "a block that was just given is taken again");
  block_give(block, kSize);
  expect(block_pooled_bytes() == before, "and given again");
}

void the_oldest_go_first() {
  block_return(std::chrono::seconds(0), kMaxIdle);
  expect(block_pooled_bytes() == 0, "all were idle");
  constexpr size_t kBlock = 40u << 20;
  uint8_t* small = block_take(1000);
  std::vector<uint8_t*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(block_take(kBlock));
  block_give(small, 1000);
  for (uint8_t* block : blocks) block_give(block, kBlock);
  const size_t full = block_pooled_bytes();
  expect(full <= kMaxIdle && full >= 5 * kBlock, "as many as there is room for");
  uint8_t* newest = block_take(kBlock);
  expect(newest == blocks.back(), "the block that was given last is taken first");
  block_give(newest, kBlock);
}

void idle_memory_goes_back() {
  burst();
  const size_t full = block_pooled_bytes();
  block_return(std::chrono::hours(1), kMaxIdle);
  expect(block_pooled_bytes() == full, "nobody was idle for an hour");
  block_return(std::chrono::seconds(0), 8u << 20);
  expect(block_pooled_bytes() <= full - (8u << 20), "some goes back");
  expect(block_pooled_bytes() >= full - (16u << 20), "and not all at once");
  block_return(std::chrono::seconds(0), kMaxIdle);
  expect(block_pooled_bytes() == 0, "then the rest");
}

void larger_ones_are_not_kept() {
  const size_t before = block_pooled_bytes();
  block_give(block_take(kMaxIdle + 1), kMaxIdle + 1);
  expect(block_pooled_bytes() == before, "a block larger than the pool goes back at once");
}

}  // namespace

int main() {
  what_is_used_now_gets_the_room();
  the_oldest_go_first();
  idle_memory_goes_back();
  larger_ones_are_not_kept();
  std::puts("block pool: all as expected");
}
