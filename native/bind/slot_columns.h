// The columns of leaves that are stored once.
#pragma once

#include "filling.h"
#include "native/tape/gather_slots.h"

namespace contig {

class SlotColumns {
 public:
  // Whether the leaf that comes in at `offset` of a record is stored once; then it goes into a
  // column, of a group that of its first row or of its last.
  bool take(const Tape& tape, size_t column, uint64_t offset, bool of_last);
  bool empty() const { return places_.empty(); }
  bool has(size_t column) const {
    for (const Place& place : places_)
      if (place.column == column) return true;
    return false;
  }
  // Of rows, with their other leaves; the tail afterwards.
  uint64_t gather(const Tape& tape, const int64_t* rows, const Filling& f) const;
  // Folds groups of rows that are in memory; the tail afterwards.
  uint64_t fold(const Tape& tape, const Fold& fold, const int64_t* rows, const Filling& f) const;
  // Of groups of rows that are folded already.
  uint64_t copy(const Tape& tape, const int64_t* rows, const Filling& f) const;

 private:
  struct Place {
    size_t column, leaf;
    bool next, of_last;
  };

  // Of rows in files: owns nothing, as they may be cut meanwhile.
  uint64_t copy_stored(const Tape& tape, const int64_t* rows, const Filling& f) const;
  std::vector<SlotTarget> targets(const Filling& f, bool of_last) const;
  std::vector<Place> places_;
};

}  // namespace contig
