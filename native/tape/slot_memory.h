// Where slots are. They have numbers in the order in which they were written, and lie in chunks;
// where a chunk is, a map says, so that the memory of chunks that nobody refers to any more serves
// new ones: there is memory for live slots only. Slots that are encoded are places, and their bytes
// lie in chunks of their own; none of them in two.
//
//   [ marks, a pair of words for each block of rows | maps ] [ chunks ... ] [ chunks of bytes ... ]
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "native/tape/chunk_map.h"
#include "native/tape/shared_form.h"
#include "native/tape/slots.h"

namespace contig {

// Of a tape with a capacity, the sizes of all that; the same in every process.
struct SlotShape {
  SlotShape() = default;
  // Throws if references could not tell that many slots apart.
  SlotShape(uint64_t capacity, const SharedForm& form);

  uint64_t slot_bytes = 0, chunk_shift = 0, blocks = 0;
  uint64_t places = 0;      // chunks that there is room for: as many as can be live
  uint64_t map_length = 0;  // a power of two
  uint64_t reach = 0;       // how far behind the newest slot one may be that a row refers to
  uint64_t tables = 0;      // bytes of marks and maps
  uint64_t bytes = 0;       // of all
  // Of slots that are encoded: bytes of one that is not, and chunks of bytes.
  uint64_t decoded_bytes = 0, encoded_shift = 0, encoded_places = 0, encoded_length = 0;
  uint64_t encoded_at = 0;

  uint64_t chunk_bytes() const { return slot_bytes << chunk_shift; }
  uint64_t encoded_chunk() const { return uint64_t{1} << encoded_shift; }
};

// Of a slot that is encoded.
struct EncodedPlace {
  uint64_t position = 0, bytes = 0;
};

class SlotMemory {
 public:
  using Word = std::atomic<uint64_t>;
  SlotMemory() = default;
  SlotMemory(uint8_t* memory, const SlotShape& shape);

  const SlotShape& shape() const { return shape_; }
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(marks_); }  // where all of it begins
  // By its number, or the low 32 bits of it. Of one that is encoded, its place.
  uint8_t* slot(uint64_t number) const {
    const uint64_t place = map_.at(number >> shape_.chunk_shift);
    return chunks_ + place * shape_.chunk_bytes() + (number & mask_) * shape_.slot_bytes;
  }
  uint64_t chunk_of(uint64_t slot) const { return slot >> shape_.chunk_shift; }

  // Of slots that are encoded: where bytes are, and what they decode to. False: it is not there any
  // more. `scratch` is for a copy of the bytes, which others may be writing to.
  uint8_t* encoded(uint64_t position) const {
    const uint64_t place = encoded_map_.at(chunk_of_encoded(position));
    return encoded_ + (place << shape_.encoded_shift) + (position & (shape_.encoded_chunk() - 1));
  }
  uint64_t chunk_of_encoded(uint64_t position) const { return position >> shape_.encoded_shift; }
  EncodedPlace place_of(uint64_t number) const;
  bool decode(uint64_t number, std::vector<uint8_t>* scratch, uint8_t* out) const;

  // Under the lock only.
  Word& start(uint64_t block) const { return marks_[2 * (block % shape_.blocks)]; }
  Word& low(uint64_t block) const { return marks_[2 * (block % shape_.blocks) + 1]; }
  // The least slot that rows [tail, head) refer to, or less.
  uint64_t least(uint64_t tail, uint64_t head) const;
  const ChunkMap& map() const { return map_; }
  const ChunkMap& encoded_map() const { return encoded_map_; }

 private:
  SlotShape shape_;
  Word* marks_ = nullptr;
  ChunkMap map_, encoded_map_;
  uint8_t* chunks_ = nullptr;
  uint8_t* encoded_ = nullptr;
  uint64_t mask_ = 0;
};

}  // namespace contig
