#include "sumtree.h"

#include <algorithm>
#include <limits>

namespace contig {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();

void set_leaf(double* sums, double* mins, size_t leaf, double value) {
  sums[leaf] = value;
  mins[leaf] = value > 0 ? value : kInf;
}

void recompute(const TreeShape& shape, double* sums, double* mins, size_t level, size_t node) {
  const double* s = sums + shape.offset[level - 1] + node * kFan;
  const double* m = mins + shape.offset[level - 1] + node * kFan;
  double total = 0, least = kInf;
  for (size_t k = 0; k < kFan; ++k) {
    total += s[k];
    least = std::min(least, m[k]);
  }
  sums[shape.offset[level] + node] = total;
  mins[shape.offset[level] + node] = least;
}
}  // namespace

TreeShape::TreeShape(size_t n_leaves) {
  size_t at = 0, w = std::max<size_t>(n_leaves, 1);
  for (;;) {
    const size_t padded = (w + kFan - 1) / kFan * kFan;
    offset.push_back(at);
    width.push_back(padded);
    at += padded;
    if (padded == kFan && w <= 1) break;
    w = padded / kFan;
  }
  total = at;
}

void tree_update(const TreeShape& shape, double* sums, double* mins, const int64_t* leaves,
                 const double* values, size_t n) {
  std::vector<size_t> nodes(n);
  for (size_t i = 0; i < n; ++i) {
    set_leaf(sums, mins, static_cast<size_t>(leaves[i]), values[i]);
    nodes[i] = static_cast<size_t>(leaves[i]);
  }
  for (size_t level = 1; level < shape.offset.size(); ++level) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      nodes[i] /= kFan;
      recompute(shape, sums, mins, level, nodes[i]);
    }
    // Near the root most of the batch shares its nodes.
    if (shape.width[level] < nodes.size()) {
      std::sort(nodes.begin(), nodes.end());
      nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    }
  }
}

void tree_fill(const TreeShape& shape, double* sums, double* mins, size_t n_leaves, uint64_t from,
               uint64_t to, double value) {
  if (to <= from) return;
  if (to - from > n_leaves) from = to - n_leaves;
  size_t lo = from % n_leaves, hi = lo + static_cast<size_t>(to - from);
  // At most two stretches of leaves.
  const size_t ends[2][2] = {{lo, std::min(hi, n_leaves)}, {0, hi > n_leaves ? hi - n_leaves : 0}};
  for (const auto& end : ends) {
    size_t a = end[0], b = end[1];
    if (a >= b) continue;
    for (size_t leaf = a; leaf < b; ++leaf) set_leaf(sums, mins, leaf, value);
    for (size_t level = 1; level < shape.offset.size(); ++level) {
      a /= kFan;
      b = (b + kFan - 1) / kFan;
      for (size_t node = a; node < b; ++node) recompute(shape, sums, mins, level, node);
    }
  }
}

void tree_draw(const TreeShape& shape, const double* sums, const double* u, int64_t* out,
               size_t n) {
  const size_t top = shape.offset.size() - 1;
  std::vector<double> rest(n);
  const double total = sums[shape.offset[top]];
  for (size_t i = 0; i < n; ++i) {
    rest[i] = u[i] * total;
    out[i] = 0;
  }
  for (size_t level = top; level > 0; --level) {
    const double* below = sums + shape.offset[level - 1];
    for (size_t i = 0; i < n; ++i) {
      const double* child = below + static_cast<size_t>(out[i]) * kFan;
      // Rounding may push `rest` past the last positive child: remember that child.
      size_t pick = 0;
      double left = rest[i], left_at_pick = 0;
      for (size_t k = 0; k < kFan; ++k) {
        if (child[k] <= 0) continue;
        pick = k;
        left_at_pick = left;
        if (left < child[k]) break;
        left -= child[k];
      }
      rest[i] = std::min(left_at_pick, child[pick]);
      out[i] = out[i] * static_cast<int64_t>(kFan) + static_cast<int64_t>(pick);
    }
#if defined(__GNUC__) || defined(__clang__)
    if (level > 1) {
      const double* next = sums + shape.offset[level - 2];
      for (size_t i = 0; i < n; ++i) __builtin_prefetch(next + out[i] * kFan);
    }
#endif
  }
}

}  // namespace contig
