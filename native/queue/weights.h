// Weights in shared memory: one writer, many readers, never torn. Three copies in turn; a reader
// copies the newest and asks its sequence word whether it still is what it set out to read.
//
//   [ BoardHeader | schema JSON ] [ copy 0 | copy 1 | copy 2 ]
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace contig {

struct alignas(64) BoardHeader {
  static constexpr uint64_t kCopies = 3;
  uint64_t magic, format, record_size, stride, schema_offset, schema_bytes;
  uint64_t total_bytes;  // the seventh word of every segment: what to map
  uint64_t data_offset;
  alignas(
      64) std::atomic<uint64_t> published;  // how many; the newest is in copy published % kCopies
  std::atomic<uint32_t> wake_word, waiters;
  struct alignas(64) Copy {
    std::atomic<uint64_t> sequence;  // 2n: the nth that was published; 2n - 1: being written
    std::atomic<int64_t> version;
  } copies[kCopies];
};

class Board {
 public:
  static constexpr uint64_t kMagic = 0x31647261626E6F63ull;  // "conbard1"
  static constexpr uint64_t kFormat = 2;
  // Throws std::invalid_argument for sizes that make no board.
  static uint64_t bytes_for(uint64_t record_size, uint64_t schema_bytes);
  static void format(uint8_t* memory, uint64_t record_size, const char* schema,
                     uint64_t schema_bytes);
  // Throws std::invalid_argument if it is no whole board of `bytes`.
  Board(uint8_t* memory, uint64_t bytes);

  void publish(int64_t version, const uint8_t* record);
  // The newest version into `out`; false if nothing was published yet.
  bool read(uint8_t* out, int64_t* version) const;
  // The newest version; false if there is none.
  bool newest(int64_t* version) const;
  // The two steps of a read: how many were published, and the nth of them (`out` may be null);
  // false if its place is, or is being, taken by a later one.
  uint64_t published() const;
  bool read_nth(uint64_t n, uint8_t* out, int64_t* version) const;
  BoardHeader& header() const { return *h_; }
  uint64_t record_size() const { return record_size_; }
  const char* schema() const { return reinterpret_cast<const char*>(h_ + 1); }
  uint64_t schema_bytes() const { return schema_bytes_; }

 private:
  uint8_t* copy(uint64_t slot) const { return copies_ + slot * stride_; }

  BoardHeader* h_;
  // Read once, and checked: what a stray write does to the header moves no pointer.
  uint64_t record_size_, stride_, schema_bytes_;
  uint8_t* copies_;
};

}  // namespace contig
