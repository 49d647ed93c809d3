// What a client has to send: records gather in a frame that is open until it is full or taken.
// One thread at a time adds to it (`room`, then `commit` or `cancel`); another may take from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "native/sys/block.h"
#include "native/wire/frame.h"

namespace contig {

// A frame ready to be sent, in two parts: header with runs, and records.
struct OutFrame {
  OutFrame(uint64_t bytes) : body(block_take(bytes)), capacity(bytes) {}
  ~OutFrame() { block_give(body, capacity); }
  OutFrame(const OutFrame&) = delete;
  OutFrame& operator=(const OutFrame&) = delete;

  uint8_t* body;
  uint64_t capacity, used = 0;
  uint64_t first = 0, items = 0, rows = 0;
  uint32_t crc = 0;  // of the records so far, taken while they are in the cache
  std::vector<uint8_t> runs;
  std::vector<uint8_t> head;  // once sealed
  void seal();
  uint64_t bytes() const { return head.size() + used; }
};

// Checksums of some leaves of one record, taken while they were copied to it.
class LeafSums {
 public:
  struct Sum {
    size_t offset, bytes;
    uint32_t crc;
  };
  bool wants(size_t bytes) const { return bytes >= 4096 && n_ < kMost; }
  void add(const Sum& sum) { sums_[n_++] = sum; }
  // The checksum of a record that follows what `before` is of.
  uint32_t over(uint32_t before, const uint8_t* record, size_t bytes);

 private:
  static constexpr size_t kMost = 8;
  Sum sums_[kMost];
  size_t n_ = 0;
};

class FrameBuilder {
 public:
  // `padded`: records have bytes between leaves, which are to be 0.
  FrameBuilder(uint64_t record_size, bool padded, uint64_t first, uint64_t frame_bytes);

  // Room for some records at the end of the open frame, which nobody takes meanwhile; nothing
  // counts until it is committed.
  uint8_t* room(uint64_t rows, uint64_t runs = 1);
  void cancel();
  void commit_records(uint64_t rows);                  // of a queue: each is an item
  void commit_record(LeafSums sums);                   // one, of which some checksums are known
  void commit_run(const WireRun& run);                 // of a tape: its rows are one item
  void commit_runs(const std::vector<WireRun>& runs);  // several, whose rows the room was for
  // More rows for the last run of the open frame, if they go on with its trajectory or its one
  // lane; false: they need a run of their own.
  bool grow_run(const WireRun& run);

  // The oldest frame, sealed, or null: one that is full, or, with `open`, the open one too.
  std::shared_ptr<OutFrame> take(bool open);

  uint64_t next() const { return next_.load(std::memory_order_relaxed); }  // item's number
  uint64_t record_size() const { return record_size_; }

  // For who takes frames, with the mutex held.
  std::mutex& mutex() { return mutex_; }
  std::shared_ptr<OutFrame> take_locked(bool open);
  uint64_t open_bytes() const { return open_ ? open_->used : 0; }
  bool open_to_take() const { return open_ && open_->items > 0 && !filling_; }

 private:
  void sum(uint64_t rows);
  void added(uint64_t rows, uint64_t items);

  const uint64_t record_size_, frame_bytes_;
  const bool padded_;
  std::mutex mutex_;
  std::atomic<uint64_t> next_;
  bool filling_ = false;  // a caller is writing behind what the open frame holds
  std::shared_ptr<OutFrame> open_;
  std::deque<std::shared_ptr<OutFrame>> full_;
};

}  // namespace contig
