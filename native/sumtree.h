// Sums and minima over priorities. A tree is levels of 8-wide nodes, one cache line each, in one
// array of doubles that Python owns: level 0 (the leaves) first, the root last.
//
// Not thread-safe: a tree belongs to one sampler in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

constexpr size_t kFan = 8;

struct TreeShape {
  explicit TreeShape(size_t n_leaves);
  std::vector<size_t> offset, width;  // per level, width padded to a multiple of kFan
  size_t total;
};

// Sets leaves and repairs every node above them, level by level for the whole batch.
// `sums` holds values, `mins` their minima over positive leaves (+inf for the others).
void tree_update(const TreeShape& shape, double* sums, double* mins, const int64_t* leaves,
                 const double* values, size_t n);
// Priorities of rows: q = (p + eps)^alpha, 0 for p = 0, at leaf seq % n_leaves. Rows outside
// [tail, head) are left out. Returns the first bad priority's place (nothing is set then) or -1.
struct PriorityUpdate {
  int64_t bad;
  size_t stale;
  double largest;
};
PriorityUpdate tree_prioritize(const TreeShape& shape, double* sums, double* mins, size_t n_leaves,
                               const int64_t* seqs, const double* priorities, size_t n,
                               int64_t tail, int64_t head, double alpha, double eps);
// Sets leaves [from, to) of the ring of n_leaves (to may exceed it: it wraps) to one value.
void tree_fill(const TreeShape& shape, double* sums, double* mins, size_t n_leaves, uint64_t from,
               uint64_t to, double value);
// For each u in [0, 1): the leaf at that share of the total. A leaf of value 0 is never returned.
void tree_draw(const TreeShape& shape, const double* sums, const double* u, int64_t* out, size_t n);

// The newest row below head that a leaf of a ring can hold.
inline int64_t newest_at(int64_t leaf, uint64_t head, uint64_t n_leaves) {
  const uint64_t last = head - 1;
  return static_cast<int64_t>(last - (last - static_cast<uint64_t>(leaf)) % n_leaves);
}
// Importance weights of rows: (q / least q)^-beta.
void tree_weights(const TreeShape& shape, const double* sums, const double* mins, size_t n_leaves,
                  const int64_t* seqs, float* out, size_t n, double beta);

}  // namespace contig
