// Sums over the first so many of a growing list of weights, and the place at which a sum is passed:
// both in O(log n), also while weights change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

class Fenwick {
 public:
  size_t size() const { return tree_.size() - 1; }
  uint64_t total() const { return total_; }

  void clear() {
    tree_.assign(1, 0);
    total_ = 0;
  }

  void push(uint64_t weight) {
    const size_t i = tree_.size(), covers = i & (~i + 1);
    total_ += weight;
    for (size_t k = 1; k < covers; k *= 2) weight += tree_[i - k];
    tree_.push_back(weight);
  }

  // `by` may be the two's complement of what is taken away.
  void add(size_t place, uint64_t by) {
    total_ += by;
    for (size_t i = place + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += by;
  }

  // The sum of the first n weights.
  uint64_t before(size_t n) const {
    uint64_t sum = 0;
    for (size_t i = n; i > 0; i &= i - 1) sum += tree_[i];
    return sum;
  }

  // The place whose weight spans `rank` < total(); what of the rank is left within it.
  size_t find(uint64_t rank, uint64_t* rest) const {
    size_t step = 1, at = 0;
    while (step * 2 < tree_.size()) step *= 2;
    for (; step > 0; step /= 2)
      if (at + step < tree_.size() && tree_[at + step] <= rank) {
        at += step;
        rank -= tree_[at];
      }
    *rest = rank;
    return at;
  }

 private:
  std::vector<uint64_t> tree_ = std::vector<uint64_t>(1, 0);  // from 1 on
  uint64_t total_ = 0;
};

}  // namespace contig
