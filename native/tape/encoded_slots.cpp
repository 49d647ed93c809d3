#include "native/tape/encoded_slots.h"

#include "native/kernels/copy.h"
#include "native/kernels/encode.h"
#include "native/tape/tape.h"

namespace contig {

void EncodedSlots::start(uint64_t head, uint64_t chunk) {
  head_ = end_ = head;
  chunk_ = chunk;
  places_.clear();
  bytes_.clear();
}

void EncodedSlots::add(const uint8_t* slot, uint64_t bytes) {
  uint64_t size = encode_lz4(slot, bytes, &bytes_);
  if (size == 0) {  // it did not get smaller
    bytes_.insert(bytes_.end(), slot, slot + bytes);
    size = bytes;
  }
  if (end_ % chunk_ + size > chunk_) end_ += chunk_ - end_ % chunk_;
  places_.push_back(EncodedPlace{end_, size});
  end_ += size;
}

void EncodedSlots::put(const SlotMemory& memory, uint64_t number) const {
  const uint8_t* from = bytes_.data();
  for (const EncodedPlace& place : places_) {
    copy_bytes(memory.encoded(place.position), from, place.bytes);
    copy_bytes(memory.slot(number++), reinterpret_cast<const uint8_t*>(&place), sizeof place);
    from += place.bytes;
  }
}

uint64_t Tape::encoded_head() const {
  constexpr auto relaxed = std::memory_order_relaxed;
  return h_->slots_at.load(relaxed) == h_->head.load(relaxed) ? h_->encoded_after.load(relaxed)
                                                              : h_->encoded_before.load(relaxed);
}

void Tape::encode_slots(const Rows& rows) {
  encoded_.start(encoded_head(), slots_.shape().encoded_chunk());
  const uint64_t size = form_.slot_bytes();
  if (rows.compact != nullptr) {
    for (const SlotSource& source : plan_.sources())
      encoded_.add(rows.compact->slots + source.row * size, size);
    return;
  }
  std::vector<uint8_t> slot(size);
  for (const SlotSource& source : plan_.sources()) {
    observations_.take(form_, source, slot.data());
    encoded_.add(slot.data(), size);
  }
}

void Tape::put_encoded() { encoded_.put(slots_, plan_.head()); }

}  // namespace contig
