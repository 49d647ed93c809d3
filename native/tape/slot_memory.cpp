#include "native/tape/slot_memory.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/kernels/copy.h"
#include "native/kernels/decode.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr uint64_t kChunkBytes = 1 << 20, kPage = 4096;
constexpr uint64_t kLeastReach = 64;  // slots

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

uint64_t power_of_two(uint64_t least) {
  uint64_t n = 1;
  while (n < least) n *= 2;
  return n;
}
}  // namespace

SlotShape::SlotShape(uint64_t capacity, const SharedForm& form)
    : slot_bytes(form.encoded() ? sizeof(EncodedPlace) : form.slot_bytes()) {
  reach = std::max(kLeastReach, capacity / 16);
  while (chunk_shift < 3 || ((uint64_t{1} << chunk_shift) < capacity / 16 &&
                             slot_bytes << (chunk_shift + 1) <= kChunkBytes))
    ++chunk_shift;
  constexpr uint64_t block = uint64_t{1} << kBlockShift;
  blocks = capacity / block + 3;
  // Rows of whole blocks are live, all of their slots new; and as far as they reach back.
  const uint64_t live = form.references() * (capacity + 2 * block) + reach;
  places = (live >> chunk_shift) + 3;
  map_length = power_of_two(places);
  if (map_length << chunk_shift > uint64_t{1} << 32)
    throw std::invalid_argument(
        "a storage of " + std::to_string(capacity) +
        " rows cannot store observations once: it would have more than 2^32; give share_next=False "
        "(and no stack=), or a smaller capacity");
  if (form.encoded()) {
    decoded_bytes = form.slot_bytes();
    encoded_shift = 12;  // a page
    while (encoded_chunk() < 4 * decoded_bytes ||
           (encoded_chunk() < kChunkBytes && encoded_chunk() < capacity * decoded_bytes / 64))
      ++encoded_shift;
    // None is larger than it was, and none lies in two: a chunk is full to three quarters.
    encoded_places = (live * decoded_bytes / 3 * 4 >> encoded_shift) + 3;
    encoded_length = power_of_two(encoded_places);
  }
  tables = round_up((2 * blocks + map_length + encoded_length) * sizeof(uint64_t), kPage);
  encoded_at = tables + round_up(places * chunk_bytes(), kPage);
  bytes = encoded_at + (encoded_places << encoded_shift);
}

SlotMemory::SlotMemory(uint8_t* memory, const SlotShape& shape)
    : shape_(shape),
      marks_(reinterpret_cast<Word*>(memory)),
      map_(marks_ + 2 * shape.blocks, shape.map_length, shape.places),
      chunks_(memory + shape.tables),
      mask_((uint64_t{1} << shape.chunk_shift) - 1) {
  if (shape.encoded_places == 0) return;
  encoded_map_ = ChunkMap(marks_ + 2 * shape.blocks + shape.map_length, shape.encoded_length,
                          shape.encoded_places);
  encoded_ = memory + shape.encoded_at;
}

EncodedPlace SlotMemory::place_of(uint64_t number) const {
  EncodedPlace place;
  const uint8_t* from = slot(number);
  copy_fixed<8>(reinterpret_cast<uint8_t*>(&place.position), from);
  copy_fixed<8>(reinterpret_cast<uint8_t*>(&place.bytes), from + 8);
  return place;
}

bool SlotMemory::decode(uint64_t number, std::vector<uint8_t>* scratch, uint8_t* out) const {
  const EncodedPlace place = place_of(number);
  // What is not there any more may say anything.
  const uint64_t in_chunk = place.position & (shape_.encoded_chunk() - 1);
  if (place.bytes > shape_.decoded_bytes || place.bytes > shape_.encoded_chunk() - in_chunk)
    return false;
  if (place.bytes == shape_.decoded_bytes) {  // it did not get smaller
    copy_bytes(out, encoded(place.position), place.bytes);
    return true;
  }
  scratch->resize(shape_.decoded_bytes);
  copy_bytes(scratch->data(), encoded(place.position), place.bytes);
  return decode_lz4(scratch->data(), place.bytes, out, shape_.decoded_bytes);
}

uint64_t SlotMemory::least(uint64_t tail, uint64_t head) const {
  uint64_t least = ~uint64_t{0};
  if (tail >= head) return least;
  // Rows of later blocks reach back at most so far: mostly it is one of the first blocks.
  for (uint64_t block = tail >> kBlockShift; block <= (head - 1) >> kBlockShift; ++block) {
    const uint64_t from = start(block).load(relaxed);
    if (from >= shape_.reach && from - shape_.reach >= least) break;
    least = std::min(least, low(block).load(relaxed));
  }
  return least;
}

void ChunkMap::place(uint64_t live, uint64_t from, uint64_t to) const {
  std::vector<bool> taken(places_, false);
  for (uint64_t chunk = live; chunk < from; ++chunk) taken[at(chunk)] = true;
  size_t place = 0;
  for (uint64_t chunk = from; chunk < to; ++chunk, ++place) {
    while (place < taken.size() && taken[place]) ++place;
    if (place == taken.size()) throw std::logic_error("slots: more chunks than can be live");
    (*this)[chunk].store(place, std::memory_order_release);
  }
}

}  // namespace contig
