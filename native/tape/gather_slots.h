// Observations of rows, from the slots that rows refer to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/tape/gather.h"

namespace contig {

// Where the column of a leaf that is stored once starts; of observations, or of next ones.
struct SlotTarget {
  uint8_t* column;
  size_t leaf;
  bool next;
};

// Observations of n-step transitions, a group of them at a time, from the slots that the first and
// the last row of each refer to. While one group is copied, the next one's slots are on their way.
class FoldedSlots {
 public:
  static constexpr size_t kMost = 16;  // transitions of a group
  // Leaves of first rows, and of last ones.
  FoldedSlots(const Tape& tape, std::vector<SlotTarget> first, std::vector<SlotTarget> last);
  // Asks for what the rows of transitions from `at` on refer to, and copies what was asked for
  // before.
  void ask(size_t at, size_t count, const uint8_t* const* first, const uint8_t* const* last);
  void copy();

 private:
  struct Side {
    std::vector<SlotTarget> targets;
    size_t low = 0, high = 0;  // of a row's references, those that are needed
    std::vector<const uint8_t*> slots;
  };
  void ask(Side* side, size_t at, size_t count, const uint8_t* const* rows) const;
  void copy(const Side& side) const;
  const Tape& tape_;
  size_t stack_, each_;
  Side first_, last_;
  size_t at_ = 0, count_ = 0;  // what is asked for
};

// Copies leaves of rows `seqs`, some of them from slots; the tail afterwards, which counts as that
// of `gather_columns`.
uint64_t gather_shared(const Tape& tape, const int64_t* seqs, size_t n,
                       const std::vector<Target>& targets, const std::vector<SlotTarget>& slots);
// One observation of a leaf, from its slots.
void copy_observation(const SharedLeaf& leaf, const uint8_t* const* slots, uint8_t* to);
// Whole records, as they came in.
uint64_t gather_whole_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out);

}  // namespace contig
