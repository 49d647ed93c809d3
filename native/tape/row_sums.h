// What the checksum of a stored row is of: the record alone (salt 0), or a salt, the row's seq and
// the record, so that a row is right only in its place. Salts count from a seq on; whoever appends
// to a store has one of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "native/kernels/crc32c.h"

namespace contig {

class RowSums {
 public:
  RowSums() : RowSums(nullptr, 0) {}
  RowSums(const uint64_t* pairs, size_t n) { set(pairs, n); }

  // `pairs`: (first seq, salt), ascending. Those who are reading go on with what they have: there
  // are few of these, so none is freed before the end. One thread at a time.
  void set(const uint64_t* pairs, size_t n) {
    auto list = std::make_unique<List>();
    if (n == 0 || pairs[0] != 0) list->push_back({0, 0, false});
    for (size_t i = 0; i < n; ++i) {
      const uint64_t first = pairs[2 * i], salt = pairs[2 * i + 1];
      if (i > 0 && first <= pairs[2 * i - 2])
        throw std::invalid_argument("salts: expected ascending seqs");
      uint8_t bytes[8];
      std::memcpy(bytes, &salt, 8);
      list->push_back({first, salt == 0 ? 0 : crc32c(0, bytes, 8), salt != 0});
    }
    now_.store(list.get(), std::memory_order_release);
    all_.push_back(std::move(list));
  }

  uint32_t of(uint64_t seq, const uint8_t* record, size_t size) const {
    const List& list = *now_.load(std::memory_order_acquire);
    const Salt* salt = &list.back();
    if (seq < salt->first)
      salt = &*(std::upper_bound(list.begin(), list.end(), seq,
                                 [](uint64_t s, const Salt& x) { return s < x.first; }) -
                1);
    if (!salt->named) return crc32c(0, record, size);
    uint8_t bytes[8];
    std::memcpy(bytes, &seq, 8);
    return crc32c(crc32c(salt->before, bytes, 8), record, size);
  }

  // Whether a row has the checksum that is stored behind its record.
  bool whole(uint64_t seq, const uint8_t* row, size_t size) const {
    uint32_t stored;
    std::memcpy(&stored, row + size, sizeof stored);
    return of(seq, row, size) == stored;
  }

 private:
  struct Salt {
    uint64_t first;
    uint32_t before;
    bool named;
  };
  using List = std::vector<Salt>;
  std::atomic<const List*> now_{nullptr};
  std::vector<std::unique_ptr<List>> all_;
};

}  // namespace contig
