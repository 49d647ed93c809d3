// A frame on its way out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "native/sys/block.h"
#include "native/wire/frame.h"

namespace contig {

// A frame ready to be sent, in parts: header with runs and fields; records, or compact rows and
// their slots; bytes of leaves of any size, if there are such.
struct OutFrame {
  // A part that grows behind what it holds.
  struct Part {
    Part() = default;
    ~Part() {
      if (data != nullptr) block_give(data, capacity);
    }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    void make(uint64_t bytes) {
      data = block_take(bytes);
      capacity = bytes;
    }
    bool fits(uint64_t more) const { return used + more <= capacity; }
    // Room for more bytes `at` bytes behind what it holds, which may move to where there is some.
    uint8_t* behind(uint64_t at, uint64_t bytes) {
      if (!fits(at + bytes)) {
        const uint64_t larger = std::max(used + at + bytes, 2 * capacity);
        uint8_t* block = block_take(larger);
        if (data != nullptr) {
          std::memcpy(block, data, used + at);
          block_give(data, capacity);
        }
        data = block;
        capacity = larger;
      }
      return data + used + at;
    }
    uint8_t* data = nullptr;
    uint64_t capacity = 0, used = 0;
    uint32_t crc = 0;  // of what it holds, taken while that is in the cache
  };

  Part records, slots, bytes;
  bool compact = false;
  uint64_t steps = 0;  // of each lane or trajectory, if rows are compact
  uint64_t first = 0, items = 0, rows = 0;
  uint64_t gathered = 0;  // bytes behind the header, so far
  std::vector<uint8_t> runs, fields;
  std::vector<uint8_t> head;  // once sealed
  void seal();
  uint64_t size() const { return head.size() + records.used + slots.used + bytes.used; }
};

}  // namespace contig
