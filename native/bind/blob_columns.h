// The columns of leaves of any size: offsets, one more than rows; their values lie behind all
// columns of the block, in the order of the leaves.
#pragma once

#include "filling.h"

namespace contig {

class BlobColumns {
 public:
  // `blobs`: [column, offset, element] of each; `sizes`: bytes per row of all columns.
  void add(const Tape& tape, const Seqs& blobs, const std::vector<int64_t>& sizes);
  // Says which of the columns get what a group's last row has.
  void take_last(const Seqs& columns);

  bool empty() const { return places_.empty(); }
  bool has(size_t column) const {
    for (const Place& place : places_)
      if (place.column == column) return true;
    return false;
  }

  // Where the bytes of the rows are, and will be; null: they have none. The bytes of the block.
  size_t measure(const Tape& tape, const Fold& fold, const int64_t* rows, Filling* f) const;
  // Writes offsets and values. The tail afterwards: it counts for the rest of the rows as well.
  uint64_t copy(const Tape& tape, const Filling& f) const;

 private:
  struct Place {
    size_t column;
    BlobLeaf leaf;
    bool of_last = false;  // of the last row of a group
  };

  std::vector<Place> places_;
};

}  // namespace contig
