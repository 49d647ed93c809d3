#include "sumtree.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace contig {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();

void prefetch(const double* p) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(p);
#else
  (void)p;
#endif
}

void set_leaf(double* sums, double* mins, size_t leaf, double value) {
  sums[leaf] = value;
  mins[leaf] = value > 0 ? value : kInf;
}

size_t lowest_bit(uint64_t bits) {
#if defined(__GNUC__) || defined(__clang__)
  return static_cast<size_t>(__builtin_ctzll(bits));
#else
  size_t i = 0;
  while ((bits >> i & 1) == 0) ++i;
  return i;
#endif
}

void recompute(const TreeShape& shape, double* sums, double* mins, size_t level, size_t node) {
  const double* s = sums + shape.offset[level - 1] + node * kFan;
  const double* m = mins + shape.offset[level - 1] + node * kFan;
  const auto least = [](double a, double b) { return a < b ? a : b; };
  // In pairs, so that the additions do not wait for one another.
  sums[shape.offset[level] + node] =
      ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  mins[shape.offset[level] + node] = least(least(least(m[0], m[1]), least(m[2], m[3])),
                                           least(least(m[4], m[5]), least(m[6], m[7])));
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
    prefetch(sums + leaves[i]);
    prefetch(mins + leaves[i]);
  }
  for (size_t i = 0; i < n; ++i) {
    set_leaf(sums, mins, static_cast<size_t>(leaves[i]), values[i]);
    nodes[i] = static_cast<size_t>(leaves[i]);
  }
  std::vector<uint64_t> touched;
  for (size_t level = 1; level < shape.offset.size(); ++level) {
    for (size_t& node : nodes) {
      node /= kFan;
      prefetch(sums + shape.offset[level] + node);
      prefetch(mins + shape.offset[level] + node);
    }
    const size_t words = shape.width[level] / 64 + 1;
    if (words <= n) {  // near the root most of the batch shares its nodes: each of them once
      touched.assign(words, 0);
      for (const size_t node : nodes) touched[node / 64] |= uint64_t{1} << (node % 64);
      nodes.clear();
      for (size_t w = 0; w < words; ++w)
        for (uint64_t bits = touched[w]; bits != 0; bits &= bits - 1)
          nodes.push_back(w * 64 + lowest_bit(bits));
    }
    for (const size_t node : nodes) recompute(shape, sums, mins, level, node);
  }
}

PriorityUpdate tree_prioritize(const TreeShape& shape, double* sums, double* mins, size_t n_leaves,
                               const int64_t* seqs, const double* priorities, size_t n,
                               int64_t tail, int64_t head, double alpha, double eps) {
  PriorityUpdate result{-1, 0, 0};
  for (size_t i = 0; i < n; ++i)
    if (!(priorities[i] >= 0) || priorities[i] == kInf) {
      result.bad = static_cast<int64_t>(i);
      return result;
    }
  std::vector<int64_t> leaves;
  std::vector<double> values;
  leaves.reserve(n);
  values.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    if (seqs[i] < tail || seqs[i] >= head) {
      ++result.stale;
      continue;
    }
    const double p = priorities[i];
    result.largest = std::max(result.largest, p);
    leaves.push_back(seqs[i] % static_cast<int64_t>(n_leaves));
    values.push_back(p > 0 ? std::pow(p + eps, alpha) : 0);
  }
  tree_update(shape, sums, mins, leaves.data(), values.data(), leaves.size());
  return result;
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
      // The first child whose running sum exceeds `rest`, counted instead of searched: the sums
      // are three additions deep, and nothing branches on what is a coin toss.
      const double r = rest[i], s1 = child[0] + child[1], s3 = s1 + (child[2] + child[3]);
      const double s45 = child[4] + child[5];
      const double upto[kFan] = {0,  child[0],      s1,       s1 + child[2],
                                 s3, s3 + child[4], s3 + s45, s3 + (s45 + child[6])};
      size_t pick = 0;
      for (size_t k = 1; k < kFan; ++k) pick += static_cast<size_t>(upto[k] <= r);
      while (pick > 0 && child[pick] <= 0) --pick;  // rounding went past the last positive one
      rest[i] = std::min(std::max(r - upto[pick], 0.0), child[pick]);
      out[i] = out[i] * static_cast<int64_t>(kFan) + static_cast<int64_t>(pick);
    }
    if (level > 1)
      for (size_t i = 0; i < n; ++i)
        prefetch(sums + shape.offset[level - 2] + static_cast<size_t>(out[i]) * kFan);
  }
}

void tree_weights(const TreeShape& shape, const double* sums, const double* mins, size_t n_leaves,
                  const int64_t* seqs, float* out, size_t n, double beta) {
  const double least = mins[shape.offset.back()];
  for (size_t i = 0; i < n; ++i) {
    const double q = sums[static_cast<uint64_t>(seqs[i]) % n_leaves];
    out[i] = static_cast<float>(q == least ? 1.0 : std::pow(q / least, -beta));
  }
}

}  // namespace contig
