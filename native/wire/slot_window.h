// The slots that came last over a connection, as many as there is room for: what frames may refer
// to. Both sides of the connection have the same ones. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace contig {

class SlotWindow {
 public:
  // Nothing came yet; so many bytes at most are kept.
  void restart(uint64_t most) {
    most_ = most;
    next_ = 0;
  }
  uint64_t most() const { return most_; }
  bool keeps(uint64_t slot_bytes) const { return slot_bytes > 0 && most_ / slot_bytes > 0; }

  // Slots have numbers in the order in which they came; of all that have one size.
  uint64_t next() const { return next_; }
  uint64_t first(uint64_t slot_bytes) const {
    const uint64_t places = most_ / slot_bytes;
    return next_ > places ? next_ - places : 0;
  }
  const uint8_t* at(uint64_t number, uint64_t slot_bytes) const {
    return slots_.data() + number % (most_ / slot_bytes) * slot_bytes;
  }
  // Its number. The one that came so many before has its place, then.
  uint64_t add(const uint8_t* slot, uint64_t slot_bytes) {
    const uint64_t place = next_ % (most_ / slot_bytes) * slot_bytes;
    if (slots_.size() < place + slot_bytes) grow(place + slot_bytes);
    std::memcpy(slots_.data() + place, slot, slot_bytes);
    return next_++;
  }

 private:
  // As there is need, and never to more than is to be kept.
  void grow(uint64_t bytes) {
    if (slots_.capacity() < bytes)
      slots_.reserve(std::min<uint64_t>(most_, std::max<uint64_t>(bytes, 2 * slots_.capacity())));
    slots_.resize(bytes);
  }

  uint64_t most_ = 0, next_ = 0;
  std::vector<uint8_t> slots_;
};

}  // namespace contig
