// Memory for batches: aligned blocks that are reused instead of being given back to the system,
// because a fresh block costs a page fault every 4 kB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

constexpr size_t kColumnAlign = 64;

uint8_t* block_take(size_t bytes);              // never null; contents undefined
void block_give(uint8_t* block, size_t bytes);  // same size as taken
size_t block_pooled_bytes();                    // idle memory held, at most 256 MB

}  // namespace contig
