// Rows of the tape, by seq, into the columns of one block or into packed records.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/sys/bus_guard.h"
#include "native/tape/tape.h"

namespace contig {

// One leaf of the record and where its column starts.
struct Target {
  uint8_t* column;
  size_t offset, bytes;
};

// The tail after rows were copied: those below it may have been overwritten meanwhile.
inline uint64_t tail_after(const Tape& tape) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return tape.header().tail.load(std::memory_order_relaxed);
}

// Where rows are, one after another: those of slices mostly lie behind each other.
class RowFinder {
 public:
  explicit RowFinder(const Tape& tape) : tape_(tape) {}
  const uint8_t* operator()(uint64_t seq) {
    follows_ = row_ != nullptr && seq == next_ && !tape_.starts_extent(seq);
    row_ = follows_ ? row_ + tape_.stride() : tape_.row(seq);
    next_ = seq + 1;
    return row_;
  }
  bool follows() const { return follows_; }  // whether the last one lies behind that before it

 private:
  const Tape& tape_;
  const uint8_t* row_ = nullptr;
  uint64_t next_ = kNone;
  bool follows_ = false;
};

// Copies rows `seqs` and returns the tape's tail afterwards: rows below it may have been
// overwritten while they were copied and must be drawn again.
uint64_t gather_columns(const Tape& tape, const int64_t* seqs, size_t n, const Target* targets,
                        size_t n_targets);
// Asks the system to read rows of files all at once, before they are looked at one by one.
void read_ahead(const Tape& tape, const int64_t* seqs, size_t n);
// Which of some rows do not have the checksum that was stored with them: their places in `seqs`.
void find_damaged(const Tape& tape, const int64_t* seqs, size_t n, std::vector<int64_t>* out);
// The same for all rows of [low, high): their seqs.
void find_damaged(const Tape& tape, uint64_t low, uint64_t high, std::vector<int64_t>* out);
// Gathers rows that are in files: `copy` is called with their seqs, those of damaged rows replaced
// by others, and gives the tail afterwards; also the places of the damaged. A file that somebody
// cuts meanwhile has damaged rows. `prepare` is called before it, and may own something.
template <class Prepare, class Copy>
uint64_t gather_whole(const Tape& tape, const int64_t* rows, size_t n, const Prepare& prepare,
                      const Copy& copy, std::vector<int64_t>* damaged) {
  std::vector<int64_t> others;
  volatile uint64_t tail = 0;
  for (int tries = 0; tries < 8; ++tries) {  // a file that is cut after it was checked: once more
    damaged->clear();
    find_damaged(tape, rows, n, damaged);
    if (damaged->size() == n) break;
    const int64_t* from = rows;
    if (!damaged->empty()) {
      others.assign(rows, rows + n);
      size_t good = 0;
      while (good < damaged->size() && (*damaged)[good] == static_cast<int64_t>(good)) ++good;
      for (const int64_t place : *damaged) others[static_cast<size_t>(place)] = rows[good];
      from = others.data();
    }
    prepare(from);
    if (unless_cut([&] { tail = copy(from); })) return tail;
  }
  damaged->clear();
  for (size_t i = 0; i < n; ++i) damaged->push_back(static_cast<int64_t>(i));
  return tape.header().tail.load(std::memory_order_relaxed);
}
uint64_t gather_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out);

// Packed records to columns and back, without a tape.
void split_records(const uint8_t* records, size_t n, size_t record_size, const Target* targets,
                   size_t n_targets);
void join_columns(const Rows& rows, size_t record_size, uint8_t* out);
// Rows from `skip` on as they are stored in files: `stride` bytes each, the record, its checksum,
// zeros. The first of them has seq `first`. With leaves of any size, positions get `base` added.
void encode_rows(const Rows& rows, uint64_t skip, size_t record_size, size_t stride,
                 const RowSums& sums, uint64_t first, uint8_t* out,
                 const std::vector<BlobLeaf>& leaves = {}, uint64_t base = 0);
// The way back: records one after another, and the places of those whose checksum is wrong.
void decode_rows(const uint8_t* stored, size_t n, size_t record_size, size_t stride,
                 const RowSums& sums, uint64_t first, uint8_t* out, std::vector<int64_t>* damaged);

}  // namespace contig
