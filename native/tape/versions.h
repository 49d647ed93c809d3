// Policy versions of the runs of a mirror: which runs lie between two versions, and where, going
// back along a trajectory, a lower version begins.
//
// Belongs to its View. Kept only once somebody has asked for a window by version.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "native/tape/tape_format.h"

namespace contig {

class Versions {
 public:
  void clear(uint64_t first) {
    first_ = first;
    runs_.clear();
    by_version_.clear();
  }

  uint64_t next() const { return first_ + runs_.size(); }

  // The run after the last one; `prev` is the run before it in its trajectory, or kNone.
  void add(int64_t version, uint64_t prev) {
    by_version_[version].numbers.push_back(next());
    // As nearest smaller values are found: a run that is stepped over is never looked at again.
    while (holds(prev) && of(prev) >= version) prev = runs_[prev - first_].lower;
    runs_.push_back(Run{version, holds(prev) ? prev : kNone});
  }

  void drop() {  // the oldest run
    const auto found = by_version_.find(runs_.front().version);
    Numbers& n = found->second;
    if (++n.gone == n.numbers.size()) {
      by_version_.erase(found);
    } else if (n.gone > 1024 && n.gone > n.numbers.size() / 2) {
      n.numbers.erase(n.numbers.begin(), n.numbers.begin() + static_cast<ptrdiff_t>(n.gone));
      n.gone = 0;
    }
    runs_.pop_front();
    ++first_;
  }

  // The newest run of the trajectory up to `number` whose version is below, or kNone. Looks at no
  // more runs than there are versions between that one and the run's own.
  uint64_t last_below(uint64_t number, int64_t version) const {
    while (holds(number) && of(number) >= version) number = runs_[number - first_].lower;
    return holds(number) ? number : kNone;
  }

  // Calls visit(number) for every run whose version is in [low, high).
  template <typename Visit>
  void between(int64_t low, int64_t high, Visit visit) const {
    const auto end = by_version_.lower_bound(high);
    for (auto it = by_version_.lower_bound(low); it != end; ++it)
      for (size_t i = it->second.gone; i < it->second.numbers.size(); ++i)
        visit(it->second.numbers[i]);
  }

 private:
  struct Run {
    int64_t version;
    uint64_t lower;  // the nearest earlier run of its trajectory with a lower version, or kNone
  };
  struct Numbers {
    std::vector<uint64_t> numbers;  // ascending
    size_t gone = 0;                // so many of the first are evicted
  };

  bool holds(uint64_t number) const {
    return number != kNone && number >= first_ && number < next();
  }
  int64_t of(uint64_t number) const { return runs_[number - first_].version; }

  uint64_t first_ = 0;
  std::deque<Run> runs_;
  std::map<int64_t, Numbers> by_version_;
};

}  // namespace contig
