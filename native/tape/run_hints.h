// About where in the index the run of a row is: of every 64th row, its run. Only a guess, which
// whoever searches begins with: what is said of rows that were evicted is not taken back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "native/sys/sparse.h"

namespace contig {

class RunHints {
 public:
  explicit RunHints(uint64_t capacity) : mask_(places_for(capacity) - 1), runs_(mask_ + 1) {}

  // A run that goes on until some row; runs come in the order of their rows, the newest one again
  // when it has grown.
  void note(uint64_t number, uint64_t first, uint64_t steps) {
    const uint64_t end = (first + steps + kRows - 1) >> kShift;
    uint64_t at = std::max(upto_, (first + kRows - 1) >> kShift);
    if (end > at + mask_) at = end - mask_;
    for (; at < end; ++at) runs_[at & mask_] = static_cast<uint32_t>(number);
    upto_ = std::max(upto_, end);
  }
  void clear() { upto_ = 0; }

  // The run of a row, or one nearby; all runs are below `head`. Between two that are known it is
  // taken to be as far as the row is: right at once where runs are of one row each, and where they
  // are long.
  uint64_t guess(uint64_t seq, uint64_t head) const {
    const uint64_t at = seq >> kShift;
    const uint32_t low = runs_[at & mask_];
    const uint32_t apart = at + 1 < upto_ ? runs_[(at + 1) & mask_] - low : 0;
    const uint64_t known = head - static_cast<uint32_t>(static_cast<uint32_t>(head) - low);
    return known + ((static_cast<uint64_t>(apart) * (seq & (kRows - 1))) >> kShift);
  }

 private:
  static constexpr uint64_t kShift = 6, kRows = 1 << kShift;
  static uint64_t places_for(uint64_t capacity) {
    uint64_t places = 2;
    while (places < capacity / kRows + 2) places *= 2;
    return places;
  }
  uint64_t mask_, upto_ = 0;  // the first row that is not known, in units of 64
  SparseArray<uint32_t> runs_;
};

}  // namespace contig
