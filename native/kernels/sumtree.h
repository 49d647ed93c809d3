// Weights drawn in proportion. Sums are a tree of 8-wide nodes, one cache line each. Minima are
// kept over groups of 512 leaves and up from there: a group is scanned only when its smallest leaf
// changes, so an update touches one line per leaf and level, not two.
//
// All nodes are one array of doubles that Python owns: the sums, level 0 (the leaves) first and the
// root last, then the minima, groups first.
//
// Not thread-safe: a tree belongs to one sampler in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

constexpr size_t kFan = 8;
constexpr size_t kMinGroup = 512;

struct TreeShape {
  explicit TreeShape(size_t n_leaves);
  size_t n_leaves, total;
  std::vector<size_t> sums, width;  // per level: where it starts, and its nodes (padded to kFan)
  std::vector<size_t> mins;         // per level: where it starts
};

struct Tree {
  const TreeShape& shape;
  double* nodes;
  double total() const { return nodes[shape.sums.back()]; }
  double least() const { return nodes[shape.mins.back()]; }  // of positive leaves, or +inf
  const double* leaves() const { return nodes; }
};

// All leaves 0, given that all nodes are.
void tree_clear(const Tree& tree);
// Sets leaves and repairs every node above them, level by level for the whole batch.
void tree_update(const Tree& tree, const int64_t* leaves, const double* values, size_t n);
// Priorities of rows: q = (p + eps)^alpha, 0 for p = 0, at leaf seq % n_leaves. Rows outside
// [tail, head), at most n_leaves of them, are left out. Returns the first bad priority's place
// (nothing is set then) or -1.
constexpr double kLargestPriority = 1e30;
struct PriorityUpdate {
  int64_t bad;
  size_t stale;
  double largest;
};
PriorityUpdate tree_prioritize(const Tree& tree, const int64_t* seqs, const double* priorities,
                               size_t n, int64_t tail, int64_t head, double alpha, double eps);
// Sets leaves [from, to) of the ring of n_leaves (to may exceed it: it wraps) to one value.
void tree_fill(const Tree& tree, uint64_t from, uint64_t to, double value);
// For each u in [0, 1): the leaf at that share of the total, counted from leaf `first` on and
// around. A leaf of value 0 is never returned. Counted from head % n_leaves, which is where the
// oldest row of a ring may be, a share is the same row in a ring of any size.
void tree_draw(const Tree& tree, const double* u, int64_t* out, size_t n, uint64_t first = 0);
// Leaves in place: each becomes the newest row below head that it can stand for.
void newest_rows(int64_t* leaves, size_t n, uint64_t head, uint64_t n_leaves);
// Importance weights of rows below head: (q / least q)^-beta; 0 for rows the ring has not.
void tree_weights(const Tree& tree, const int64_t* seqs, float* out, size_t n, uint64_t head,
                  double beta);

}  // namespace contig
