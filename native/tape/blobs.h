// Leaves of any size. The record has a position and a length; the bytes lie in a ring beside the
// rows, byte p of all that were ever appended at p % ring. They are evicted with their rows: the
// tail moves before a byte is overwritten, so that a reader's one check of it covers both.
//
// Bytes of an append are in packed order: row by row, within a row leaf by leaf, without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/kernels/copy.h"
#include "native/kernels/prefetch.h"

namespace contig {

struct Rows;
struct Column;
class Tape;

// A leaf of any size: where its place is in the record, and what its length is a multiple of.
struct BlobLeaf {
  uint64_t offset, element;
};

// Where its bytes are.
struct BlobPlace {
  uint64_t position, bytes;
};
constexpr size_t kPlaceBytes = sizeof(BlobPlace);

inline BlobPlace load_place(const uint8_t* at) {
  BlobPlace p;
  copy_fixed<8>(reinterpret_cast<uint8_t*>(&p.position), at);
  copy_fixed<8>(reinterpret_cast<uint8_t*>(&p.bytes), at + 8);
  return p;
}

inline void store_place(uint8_t* at, const BlobPlace& p) {
  copy_fixed<8>(at, reinterpret_cast<const uint8_t*>(&p.position));
  copy_fixed<8>(at + 8, reinterpret_cast<const uint8_t*>(&p.bytes));
}

// The ring, as one process has it mapped.
struct BlobRing {
  uint8_t* data = nullptr;
  uint64_t size = 0;

  // At most `size` bytes from any position on.
  void read(uint64_t position, uint64_t bytes, uint8_t* to) const;
  void write(uint64_t position, uint64_t bytes, const uint8_t* from) const;
  CONTIG_INLINED void prefetch(uint64_t position, uint64_t bytes) const {
    const uint64_t at = position % size;
    ask_for(data + at, bytes < size - at ? bytes : size - at);
  }
};

// The places of rows that come in, wherever their records are.
class BlobRows {
 public:
  // Throws if a leaf has no column.
  BlobRows(const Rows& rows, const std::vector<BlobLeaf>& leaves, size_t record_size);
  // Throws unless they are in packed order, exactly all bytes, and no row has more than `most`.
  // `names` are the leaves', for the message.
  void check(uint64_t most, const std::vector<std::string>& names = {}) const;
  // Where a row's bytes begin; of the row behind the last, where they all end.
  uint64_t begin(uint64_t row) const;

 private:
  // Counted from the first of the rows' bytes on.
  BlobPlace at(uint64_t row, size_t leaf) const;
  const Rows& rows_;
  const std::vector<BlobLeaf>& leaves_;
  std::vector<const uint8_t*> data_;
  std::vector<size_t> stride_;
};

// What an append needs of the ring: of more bytes than it has, those of the leading rows are left
// out, and the rows with them.
struct BlobRoom {
  uint64_t skip = 0;             // rows
  uint64_t from = 0, bytes = 0;  // of the append's own bytes, counted from the first
};

// A column of rows of any size as a caller has them, to be packed.
struct Span {
  const uint8_t* data;
  uint64_t bytes;
};
struct BlobColumn {
  size_t offset = 0;  // of the leaf's place in the record
  std::vector<Span> spans;
};

// Several of them, as an append takes them.
class PackedBlobs {
 public:
  // Adds a column of places for each, and sets the bytes, of `rows`. One column whose spans are
  // adjacent is not copied. The rows refer to this.
  void pack(const std::vector<BlobColumn>& columns, std::vector<Column>* out, Rows* rows);

 private:
  std::unique_ptr<uint8_t[]> places_, bytes_;
};

// Bytes of some rows of a tape: first where they are, then, when there is room for all, the bytes.
class BlobGather {
 public:
  // Reads the places of one more leaf of `n` rows; returns the tape's tail afterwards. What is said
  // of rows below it is not to be trusted: they count as empty.
  uint64_t measure(const Tape& tape, const BlobLeaf& leaf, const int64_t* seqs, size_t n);
  // Of a leaf, in the order in which they were measured.
  uint64_t bytes(size_t leaf) const { return totals_[leaf]; }
  // Writes n + 1 offsets, in elements, and the bytes. The caller checks the tail afterwards.
  void copy(const Tape& tape, size_t leaf, int64_t* offsets, uint8_t* values) const;

 private:
  std::vector<std::vector<BlobPlace>> places_;
  std::vector<uint64_t> totals_, elements_;
};

}  // namespace contig
