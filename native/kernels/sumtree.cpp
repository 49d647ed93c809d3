#include "native/kernels/sumtree.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace contig {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLeastWeight = 1e-150;

void prefetch(const double* p) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(p);
#else
  (void)p;
#endif
}

// Weights are good to a float's 24 bits: powf takes half of pow's time.
double power(double x, double exponent) {
  if (x > 1e-30 && x < 1e30 && std::fabs(exponent) <= 1)
    return std::pow(static_cast<float>(x), static_cast<float>(exponent));
  return std::pow(x, exponent);
}

void add_up(const Tree& tree, size_t level, size_t node) {
  const double* s = tree.nodes + tree.shape.sums[level - 1] + node * kFan;
  // In pairs, so that the additions do not wait for one another.
  tree.nodes[tree.shape.sums[level] + node] =
      ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

// -- minima ---------------------------------------------------------------------------------------

double& group_min(const Tree& tree, size_t group) { return tree.nodes[tree.shape.mins[0] + group]; }

// Takes a smaller minimum of a group up the tree, as far as it is one.
void lower(const Tree& tree, size_t group, double value) {
  for (const size_t level : tree.shape.mins) {
    double& node = tree.nodes[level + group];
    if (value >= node) return;
    node = value;
    group /= kFan;
  }
}

// A group whose minimum was `known`, and whose leaf of that value may be gone.
void find_min(const Tree& tree, size_t group) {
  const double* leaf = tree.leaves() + group * kMinGroup;
  const double* end = tree.leaves() + std::min((group + 1) * kMinGroup, tree.shape.width[0]);
  const double known = group_min(tree, group);
  double least = kInf;
  for (; leaf < end; ++leaf) {
    if (*leaf == known) return;  // another one has it: nothing is smaller
    if (*leaf > 0 && *leaf < least) least = *leaf;
  }
  group_min(tree, group) = least;
  for (size_t level = 1; level < tree.shape.mins.size(); ++level) {
    group /= kFan;
    const double* m = tree.nodes + tree.shape.mins[level - 1] + group * kFan;
    tree.nodes[tree.shape.mins[level] + group] = *std::min_element(m, m + kFan);
  }
}

// Sets a leaf; true if its group's minimum has to be found again.
bool set_leaf(const Tree& tree, size_t leaf, double value) {
  double& now = tree.nodes[leaf];
  const double before = now;
  now = value;
  const double least = group_min(tree, leaf / kMinGroup);
  if (value > 0 && value < least) lower(tree, leaf / kMinGroup, value);
  return before == least && value != before;
}

// Where rows [head - n_leaves, head) lie in a ring, without a division each.
struct Ring {
  Ring(uint64_t head, uint64_t n) : n(n), base(head - head % n), split(head % n) {}
  uint64_t n, base, split;
  uint64_t leaf(uint64_t seq) const { return seq >= base ? seq - base : seq + n - base; }
  uint64_t seq(uint64_t leaf) const { return leaf < split ? base + leaf : base + leaf - n; }
};

std::vector<size_t> levels(size_t leaves, size_t* at, std::vector<size_t>* width) {
  std::vector<size_t> offsets;
  for (size_t w = std::max<size_t>(leaves, 1);;) {
    const size_t padded = (w + kFan - 1) / kFan * kFan;
    offsets.push_back(*at);
    if (width != nullptr) width->push_back(padded);
    *at += padded;
    if (w <= 1) return offsets;
    w = padded / kFan;
  }
}
}  // namespace

TreeShape::TreeShape(size_t n) : n_leaves(n), total(0) {
  sums = levels(n, &total, &width);
  mins = levels((width[0] + kMinGroup - 1) / kMinGroup, &total, nullptr);
}

void tree_clear(const Tree& tree) {
  std::fill(tree.nodes + tree.shape.mins[0], tree.nodes + tree.shape.total, kInf);
}

void tree_update(const Tree& tree, const int64_t* leaves, const double* values, size_t n) {
  const TreeShape& shape = tree.shape;
  std::vector<size_t> nodes(leaves, leaves + n);
  for (const size_t leaf : nodes) {
    prefetch(tree.nodes + leaf);
    if (shape.sums.size() > 1) prefetch(tree.nodes + shape.sums[1] + leaf / kFan);
  }
  std::vector<size_t> groups;  // in which the smallest leaf changed
  for (size_t i = 0; i < n; ++i)
    if (set_leaf(tree, nodes[i], values[i])) groups.push_back(nodes[i] / kMinGroup);
  for (const size_t group : groups) find_min(tree, group);
  for (size_t level = 1; level < shape.sums.size(); ++level) {
    const size_t all = shape.width[level - 1] / kFan;
    if (all <= n) {  // near the root, where the batch has touched nearly all
      for (size_t node = 0; node < all; ++node) add_up(tree, level, node);
    } else {
      for (size_t& node : nodes) add_up(tree, level, node /= kFan);
    }
  }
}

PriorityUpdate tree_prioritize(const Tree& tree, const int64_t* seqs, const double* priorities,
                               size_t n, int64_t tail, int64_t head, double alpha, double eps) {
  PriorityUpdate result{-1, 0, 0};
  for (size_t i = 0; i < n; ++i)
    if (!(priorities[i] >= 0 && priorities[i] <= kLargestPriority)) {
      result.bad = static_cast<int64_t>(i);
      return result;
    }
  std::vector<int64_t> leaves(n);
  std::vector<double> values(n);
  size_t count = 0;
  const Ring ring(static_cast<uint64_t>(head), tree.shape.n_leaves);
  for (size_t i = 0; i < n; ++i) {
    if (seqs[i] < tail || seqs[i] >= head) {
      ++result.stale;
      continue;
    }
    const double p = priorities[i];
    const uint64_t leaf = ring.leaf(static_cast<uint64_t>(seqs[i]));
    prefetch(tree.nodes + leaf);
    result.largest = std::max(result.largest, p);
    leaves[count] = static_cast<int64_t>(leaf);
    // A priority that is too small for its power is not 0: its row may be drawn.
    values[count++] = p > 0 ? std::max(power(p + eps, alpha), kLeastWeight) : 0;
  }
  tree_update(tree, leaves.data(), values.data(), count);
  return result;
}

void tree_fill(const Tree& tree, uint64_t from, uint64_t to, double value) {
  const uint64_t n_leaves = tree.shape.n_leaves;
  if (to <= from) return;
  if (to - from > n_leaves) from = to - n_leaves;
  size_t lo = from % n_leaves, hi = lo + static_cast<size_t>(to - from);
  // At most two stretches of leaves.
  const size_t ends[2][2] = {{lo, std::min<size_t>(hi, n_leaves)},
                             {0, hi > n_leaves ? hi - n_leaves : 0}};
  for (const auto& end : ends) {
    size_t a = end[0], b = end[1];
    for (size_t leaf = a; leaf < b;) {
      const size_t group = leaf / kMinGroup, stop = std::min(b, (group + 1) * kMinGroup);
      bool again = false;
      for (; leaf < stop; ++leaf) again |= set_leaf(tree, leaf, value);
      if (again) find_min(tree, group);
    }
    for (size_t level = 1; level < tree.shape.sums.size() && a < b; ++level) {
      a /= kFan;
      b = (b + kFan - 1) / kFan;
      for (size_t node = a; node < b; ++node) add_up(tree, level, node);
    }
  }
}

// Takes `part` off `rest` if it is that large: 1, else 0.
static size_t step(double* rest, double part) {
  const size_t over = static_cast<size_t>(*rest >= part);
  uint64_t bits;
  std::memcpy(&bits, &part, sizeof bits);
  bits &= 0 - static_cast<uint64_t>(over);
  std::memcpy(&part, &bits, sizeof bits);
  *rest -= part;
  return over;
}

// The sum of the leaves before one.
static double sum_before(const Tree& tree, size_t leaf) {
  double sum = 0;
  for (size_t level = 0; level + 1 < tree.shape.sums.size(); ++level, leaf /= kFan) {
    const double* s = tree.nodes + tree.shape.sums[level] + leaf / kFan * kFan;
    for (size_t i = 0; i < leaf % kFan; ++i) sum += s[i];
  }
  return sum;
}

void tree_draw(const Tree& tree, const double* u, int64_t* out, size_t n, uint64_t first) {
  const TreeShape& shape = tree.shape;
  std::vector<double> rest(n);
  const double total = tree.total();
  const double before = first > 0 ? sum_before(tree, first) : 0;
  for (size_t i = 0; i < n; ++i) {
    const double share = u[i] * total, after = share - (total - before);
    rest[i] = after < 0 ? share + before : after;
    out[i] = 0;
  }
  for (size_t level = shape.sums.size() - 1; level > 0; --level) {
    const double* below = tree.nodes + shape.sums[level - 1];
    const double* next = level > 1 ? tree.nodes + shape.sums[level - 2] : nullptr;
    for (size_t i = 0; i < n; ++i) {
      const double* child = below + static_cast<size_t>(out[i]) * kFan;
      // Halved three times, by masks and not by branches: each turn is a coin toss.
      double r = rest[i];
      size_t pick = 0;
      pick += step(&r, (child[0] + child[1]) + (child[2] + child[3])) * 4;
      pick += step(&r, child[pick] + child[pick + 1]) * 2;
      pick += step(&r, child[pick]);
      // Rounding went past the last positive one; asked in this order, the branch is foreseen.
      while (child[pick] <= 0 && pick > 0) --pick;
      rest[i] = std::min(r, child[pick]);
      out[i] = out[i] * static_cast<int64_t>(kFan) + static_cast<int64_t>(pick);
      if (next != nullptr) prefetch(next + static_cast<size_t>(out[i]) * kFan);
    }
  }
}

void newest_rows(int64_t* leaves, size_t n, uint64_t head, uint64_t n_leaves) {
  const Ring ring(head, n_leaves);
  for (size_t i = 0; i < n; ++i)
    leaves[i] = static_cast<int64_t>(ring.seq(static_cast<uint64_t>(leaves[i])));
}

void tree_weights(const Tree& tree, const int64_t* seqs, float* out, size_t n, uint64_t head,
                  double beta) {
  const double least = tree.least();
  const Ring ring(head, tree.shape.n_leaves);
  for (size_t i = 0; i < n; ++i) {
    const auto seq = static_cast<uint64_t>(seqs[i]);
    const double q = head - 1 - seq < ring.n ? tree.leaves()[ring.leaf(seq)] : 0;
    out[i] = static_cast<float>(q == least ? 1 : q > 0 ? power(q / least, -beta) : 0);
  }
}

}  // namespace contig
