// A batch's block while rows are gathered into it.
#pragma once

#include <memory>
#include <vector>

#include "handles.h"
#include "native/tape/gather.h"
#include "native/tape/nstep.h"

namespace contig {

struct BlockPart {
  size_t rows = 0, first = 0;  // of a block that is there: its rows, and the first to be filled
  int64_t base = 0;
};

// Where the columns of a block of so many rows have row `first`, and the bytes of all of them.
struct PlacedColumns {
  size_t rows = 0, first = 0, bytes = 0;
  std::vector<size_t> starts;
};

// A block that is being filled.
struct Filling {
  const int64_t* seqs = nullptr;
  size_t n = 0;
  const int64_t* lengths = nullptr;  // of groups
  BlockPart part;
  Block* given = nullptr;
  std::unique_ptr<Block> own;
  std::shared_ptr<const PlacedColumns> columns;
  uint64_t bytes = 0;          // of leaves of any size
  BlobGather blobs;            // where these are
  std::vector<size_t> values;  // and where those of each leaf begin in the block
  Folded to;

  Block* block() const { return given != nullptr ? given : own.get(); }
};

inline size_t round_column(size_t bytes) {
  return (bytes + kColumnAlign - 1) / kColumnAlign * kColumnAlign;
}

}  // namespace contig
