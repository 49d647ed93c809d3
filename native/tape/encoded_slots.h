// Slots that a tape keeps as lz4 blocks: those of an append, before they are written, and those
// that are there, decoded to be compared.
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/slot_memory.h"

namespace contig {

// New slots, encoded one after another.
class EncodedSlots {
 public:
  // Positions go on from `head`; no block lies in two chunks of so many bytes.
  void start(uint64_t head, uint64_t chunk);
  void add(const uint8_t* slot, uint64_t bytes);
  uint64_t head() const { return head_; }
  uint64_t end() const { return end_; }
  // With the memory mapped: writes them as slots from `number` on.
  void put(const SlotMemory& memory, uint64_t number) const;

 private:
  uint64_t head_ = 0, end_ = 0, chunk_ = 0;
  std::vector<EncodedPlace> places_;
  std::vector<uint8_t> bytes_;
};

// Slots that are there, one at a time.
class DecodedSlots : public SlotReader {
 public:
  explicit DecodedSlots(const SlotMemory& memory)
      : memory_(memory), slot_(memory.shape().decoded_bytes) {}
  const uint8_t* slot(uint64_t number) const override {
    return memory_.decode(number, &scratch_, slot_.data()) ? slot_.data() : nullptr;
  }

 private:
  const SlotMemory& memory_;
  mutable std::vector<uint8_t> scratch_, slot_;
};

}  // namespace contig
