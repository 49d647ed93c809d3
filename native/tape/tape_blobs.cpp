// Bytes of leaves of any size, as a tape takes them in.
#include <algorithm>
#include <stdexcept>

#include "native/tape/tape.h"

namespace contig {

BlobRoom Tape::blob_room(const Rows& rows) const {
  if (blob_leaves_.size() != h_->blob_leaves || ring_.data == nullptr)
    throw std::invalid_argument("append: this handle does not know the leaves of any size");
  const BlobRows places(rows, blob_leaves_, record_size_);
  places.check(h_->blob_most, blob_names_);
  BlobRoom room;
  room.skip = rows.n > h_->capacity ? rows.n - h_->capacity : 0;
  while (rows.blob_bytes - places.begin(room.skip) > h_->blob_most) ++room.skip;
  room.from = places.begin(room.skip);
  room.bytes = rows.blob_bytes - room.from;
  return room;
}

void Tape::copy_blobs_in(const Rows& rows, const BlobRoom& room, uint64_t at, uint64_t seq) {
  if (room.bytes > 0) ring_.write(at, room.bytes, rows.blobs + room.from);
  const uint64_t moved = at - room.from - rows.blob_first;
  for (uint64_t end = seq + rows.n - room.skip; seq < end; ++seq)
    for (const BlobLeaf& leaf : blob_leaves_) {
      auto* place = const_cast<uint8_t*>(row(seq)) + form_.stored(leaf.offset);
      uint64_t position;
      copy_fixed<8>(reinterpret_cast<uint8_t*>(&position), place);
      position += moved;
      copy_fixed<8>(place, reinterpret_cast<const uint8_t*>(&position));
    }
}

uint64_t Tape::first_beyond(uint64_t position, uint64_t tail, uint64_t head) const {
  // Positions ascend with seqs. Mostly it is one of the next rows: steps that double, then halves.
  if (tail >= head || blob_begin(tail) >= position) return tail;
  uint64_t low = tail, step = 1;
  while (step < head - low && blob_begin(low + step) < position) {
    low += step;
    step *= 2;
  }
  uint64_t high = std::min(low + step, head);
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (blob_begin(middle) < position ? low : high) = middle;
  }
  return high;
}

}  // namespace contig
