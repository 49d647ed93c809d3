// What a client has to send: records gather in a frame that is open until it is full or taken.
// One thread at a time adds to it (`room`, then `commit` or `cancel`); another may take from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "native/tape/tape.h"
#include "native/wire/out_frame.h"
#include "native/wire/row_packer.h"

namespace contig {

// What items bring besides their rows.
struct ItemExtras {
  const uint8_t* fields = nullptr;  // on the wire's terms: mask and fields of each
  uint64_t field_bytes = 0;
  uint64_t bytes = 0;  // of leaves of any size
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
  // Before the first record: where it has positions of leaves of any size.
  void set_variable(std::vector<uint64_t> offsets) { variable_ = std::move(offsets); }
  // From the next frame on, rows of runs are compact, as the tape has them that they are for; null:
  // they are whole. Frames have at most `most` bytes behind their headers. Nobody fills one.
  void set_shared(const SharedForm* form, uint64_t most) {
    const std::lock_guard lock(mutex_);
    share(form, most);
  }
  const SharedForm* shared() const { return packer_ ? &packer_->form() : nullptr; }

  // Room for some records at the end of the open frame, which nobody takes meanwhile; nothing
  // counts until it is committed.
  uint8_t* room(uint64_t rows, uint64_t runs = 1, const ItemExtras& extras = {});
  // And for their bytes of any size, whose positions in the records begin at 0.
  uint8_t* bytes_room() {
    return packer_ ? held_bytes_.data() : open_->bytes.data + open_->bytes.used;
  }
  // Room that holds these rows of columns already; they stay where they are until the commit.
  void room_for(const Rows& rows, uint64_t runs, const ItemExtras& extras);
  void cancel();
  void commit_records(uint64_t rows);                  // of a queue: each is an item
  void commit_record(LeafSums sums);                   // one, of which some checksums are known
  void commit_run(const WireRun& run);                 // of a tape: its rows are one item
  void commit_runs(const std::vector<WireRun>& runs);  // several, whose rows the room was for
  // More rows for the last run of the open frame, if they go on with its trajectory or its one
  // lane, and their fields are the same; false: they need a run of their own.
  bool grow_run(const WireRun& run);

  // The oldest frame, sealed, or null: one that is full, or, with `open`, the open one too.
  std::shared_ptr<OutFrame> take(bool open);

  uint64_t next() const { return next_.load(std::memory_order_relaxed); }  // item's number
  uint64_t record_size() const { return record_size_; }

  // Where records have positions of leaves of any size.
  const std::vector<uint64_t>& variable() const { return variable_; }
  uint64_t frame_bytes() const { return frame_bytes_; }

  // For who takes frames, with the mutex held.
  std::mutex& mutex() { return mutex_; }
  std::shared_ptr<OutFrame> take_locked(bool open);
  void share(const SharedForm* form, uint64_t most);
  uint64_t open_bytes() const {
    return open_ ? open_->records.used + open_->slots.used + open_->bytes.used : 0;
  }
  bool open_to_take() const { return open_ && open_->items > 0 && !filling_; }

 private:
  void add_runs(const WireRun* runs, size_t n);  // with the fields of the room
  bool same_fields(const WireRun& there, const WireRun& run) const;
  bool can_grow(const WireRun& run) const;
  void grow_last(const WireRun& run);
  void sum(uint64_t rows, uint64_t row_bytes, const std::vector<uint64_t>& variable);
  // What was written to the room, and is in the checksums, counts from here on.
  struct Added {
    uint64_t rows, items, bytes;
    uint64_t slots = 0;    // bytes of them
    uint64_t another = 0;  // bytes of rows like these, if they came once more
  };
  void added(const Added& what);

  // Of compact rows: packs them behind what the open frame holds, or into the next one.
  void commit_compact(const WireRun* runs, size_t n, bool may_grow);
  uint64_t pack(const WireRun* runs, size_t n);
  void open_next(bool compact);
  void open_whole(uint64_t rows);
  uint64_t shared_limit() const;

  const uint64_t record_size_, frame_bytes_;
  const bool padded_;
  std::vector<uint64_t> variable_, kept_variable_;  // in records, and in compact rows
  ItemExtras extras_;                               // of what the room is for
  std::mutex mutex_;
  std::atomic<uint64_t> next_;
  bool filling_ = false;  // a caller is writing behind what the open frame holds
  std::shared_ptr<OutFrame> open_;
  std::deque<std::shared_ptr<OutFrame>> full_;
  // Of compact rows:
  std::unique_ptr<RowPacker> packer_;
  uint64_t most_ = ~uint64_t{0};
  Rows offered_;          // what the room is for
  bool packing_ = false;  // it is in the packer's memory, and not in the frame's counts
  std::unique_ptr<uint8_t[]> held_;
  uint64_t held_size_ = 0;
  std::vector<uint8_t> held_bytes_;
};

}  // namespace contig
