// Rows in files that have leaves of any size: the record, its checksum, and one more that covers
// the row's bytes, too. Positions are believed if the first fits; the row is whole if both do.
//
//   [ record | crc32c of it | crc32c of it and then of the bytes | zeros ]
//
// The bytes are mapped as the tape's ring: byte p is at p % ring, in file p / bytes of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/tape/blobs.h"
#include "native/tape/row_sums.h"

namespace contig {

class Tape;
struct Rows;

// Where all bytes of a record are, leaf after leaf; false: they are not one behind another.
bool span_of(const uint8_t* record, const std::vector<BlobLeaf>& leaves, BlobPlace* out);

// Whether a row of a tape in files is as it was written, with its bytes. The file may be cut
// meanwhile: call it in `unless_cut`.
bool stored_whole(const Tape& tape, uint64_t seq);

// Where a row's bytes are; false: its record is damaged.
bool stored_span(const Tape& tape, uint64_t seq, BlobPlace* span);
// The first row of [tail, head) behind which all rows that can be read have bytes from a position
// on only. Damaged ones say nothing.
uint64_t stored_beyond(const Tape& tape, uint64_t position, uint64_t tail, uint64_t head);
// The first such that it and those behind it have at most so many bytes: `stride` each, and those
// of their leaves of any size.
uint64_t stored_within(const Tape& tape, uint64_t stride, uint64_t bytes, uint64_t tail,
                       uint64_t head);

// Asks the system to read the bytes of some rows all at once.
void read_bytes_ahead(const Tape& tape, const int64_t* seqs, size_t n);

// A record whose positions count from 0 in `bytes` gets those from `base` on, and both checksums.
void seal_row(uint8_t* row, size_t size, const std::vector<BlobLeaf>& leaves, const RowSums& sums,
              uint64_t seq, const uint8_t* bytes, uint64_t base);

// Places of those of `n` stored rows, the first with seq `first`, that are not as they were
// written. `bytes`: those of the positions [base, base + count).
void check_rows(const uint8_t* stored, size_t n, size_t size, size_t stride,
                const std::vector<BlobLeaf>& leaves, const RowSums& sums, uint64_t first,
                const uint8_t* bytes, uint64_t count, uint64_t base, std::vector<int64_t>* damaged);

}  // namespace contig
