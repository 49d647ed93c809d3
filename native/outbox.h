// What a client has to send: records gather in a frame that is open until it is full or taken.
// Not thread-safe: the client holds its lock around every call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "block.h"
#include "frame.h"

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
  uint32_t crc = 0;  // of the records so far, which are still in the cache; without runs
  std::vector<uint8_t> runs;
  std::vector<uint8_t> head;  // once sealed
  void seal();
};

class Outbox {
 public:
  // `padded`: records have bytes between leaves, which are to be 0.
  Outbox(uint64_t record_size, bool padded, uint64_t first, uint64_t frame_bytes);

  // Room for some records at the end of the open frame; nothing counts until `commit`.
  uint8_t* room(uint64_t rows);
  void commit_records(uint64_t rows);   // of a queue: each is an item
  void commit_run(const WireRun& run);  // of a tape: its rows are one item
  // More rows for the last run of the open frame, if they go on with its trajectory or its one
  // lane; false: they need a run of their own.
  bool grow_run(const WireRun& run);

  // The oldest frame, sealed, or null: one that is full, or, with `open`, the open one too.
  std::shared_ptr<OutFrame> take(bool open);

  uint64_t next() const { return next_; }  // sequence number of the next item
  uint64_t open_bytes() const { return open_ ? open_->used : 0; }
  uint64_t full_frames() const { return full_.size(); }
  bool empty() const { return full_.empty() && (!open_ || open_->items == 0); }
  uint64_t record_size() const { return record_size_; }

 private:
  uint64_t record_size_, next_, frame_bytes_;
  bool padded_;
  std::shared_ptr<OutFrame> open_;
  std::deque<std::shared_ptr<OutFrame>> full_;
};

}  // namespace contig
