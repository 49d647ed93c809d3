// The tape: a window [tail, head) of the infinite row sequence.
//
// Thread-safety: `append`, `clear`, `publish` and `restore` want the lock held by the caller
// (class Hold); everything a reader uses is lock-free. A Tape is one process's handle; the memory
// belongs to the caller. DESIGN: docs/design/tape.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/tape/row_sums.h"
#include "native/tape/tape_format.h"

namespace contig {

struct Busy : std::runtime_error {
  Busy(uint64_t pid, double timeout_s);
  uint64_t pid;
};
struct NoSpace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where appended rows come from: packed records, or one column per leaf of the record.
struct Column {
  const uint8_t* data;
  size_t offset, bytes;  // place and size within the record
  size_t stride;         // bytes from one row to the next
};
struct Rows {
  uint64_t n = 0;
  const uint8_t* records = nullptr;  // set, or else columns
  const Column* columns = nullptr;
  size_t n_columns = 0;
};

// One trajectory a writer has open: where its next run continues.
struct Track {
  uint64_t last_entry = kNone, ordinal = kNone, steps = 0, flags = 0;
  double ret = 0;
  bool known = false;  // false: nothing of it was appended by this writer
};

// Rows of one trajectory within an append, in the append's order.
struct Run {
  Track* track;
  uint64_t rows;
  uint64_t flags;  // kTerminated, kTruncated at its last row; kBegins if it starts a trajectory
  bool starts;     // a new trajectory, whatever the track held before
  double reward;   // sum over its rows
  int64_t traj_id, version;
};

struct Append {
  Rows rows;
  Run* runs = nullptr;
  size_t n_runs = 0;
  uint64_t writer = 0;
  // Producer 0: none. Else how many of its items are in after this append, and were before it.
  uint64_t producer = 0, producer_seq = 0, producer_before = 0;
  bool stored = false;  // the rows are in their places already: only the index is written
};

struct Snapshot {
  uint64_t head, tail, index_head, index_tail;
};

// A consistent copy of one index entry.
struct EntryView {
  uint64_t first, steps, flags, prev, jump, before, ordinal;
  int64_t version;
};

class Tape {
 public:
  static uint64_t control_bytes(uint64_t capacity);
  // What of it needs memory at once: all but the index.
  static uint64_t table_bytes(uint64_t capacity);
  // Writes a fresh header over zeroed memory.
  static void format(uint8_t* control, uint64_t capacity);

  // `control` must hold a formatted header; `fd` is the file behind it or -1.
  Tape(uint8_t* control, int fd);

  // Makes room for the schema and the data in the file and announces them. With the lock.
  // Returns false if another process published first.
  bool publish(const char* schema, uint64_t schema_bytes, uint64_t record_size);
  // The same for rows that somebody else stores, in extents of 2^shift rows, each row followed by
  // its checksum.
  void publish_stored(uint64_t record_size, uint64_t stride, uint64_t shift, uint64_t most_extents);
  bool ready() const { return h_->ready.load(std::memory_order_acquire) != 0; }
  uint64_t file_bytes() const { return h_->data_offset + data_bytes(); }
  uint64_t data_bytes() const { return (h_->n_extents << h_->extent_shift) * h_->row_stride; }
  // Tells where the data is mapped in this process.
  void attach_data(uint8_t* data);

  uint64_t append(const Append& a);  // with the lock; returns the first seq
  // With the lock: a producer's items so far, `next` if it is not known; and its last entry. It is
  // connected: one that is known stays so.
  struct Seen {
    uint64_t seq, entry;
  };
  Seen seen(uint64_t producer, uint64_t next);
  void skip(uint64_t producer, uint64_t next);  // with the lock: items below will not come
  // With the lock: a producer's connection is gone; all those of a process that is no more; what a
  // producer has sent according to a file.
  void leave(uint64_t producer) { producers_.leave(producer); }
  void leave_all() { producers_.leave_all(); }
  void recall(uint64_t producer, uint64_t seq);
  void clear();                // with the lock: evicts everything
  void retire(uint64_t tail);  // with the lock: evicts rows below a seq, and their runs
  void repair();               // with the lock; Hold does it
  // What another process appended to the same files: entries (16 words each, the last the number)
  // that are new, or the newest one grown; and the bounds then. With the lock.
  void follow(const uint64_t* entries, size_t n, const Snapshot& then, uint64_t trajectories);
  // Throws what would make `restore` fail for these entries, and has memory for them. With the
  // lock.
  void prepare(const uint64_t* entries, uint64_t index_tail, uint64_t index_head);
  // Fills an empty tape from a checkpoint; without records, they are in their places. With the
  // lock.
  void restore(const uint8_t* records, uint64_t tail, uint64_t head, const uint64_t* entries,
               uint64_t index_tail, uint64_t index_head, uint64_t trajectories);

  Snapshot snapshot() const;
  bool read_entry(uint64_t number, EntryView* out) const;
  // Unchecked: for searches whose result is checked by read_entry.
  uint64_t first_of(uint64_t number) const {
    return entry(number).first.load(std::memory_order_relaxed);
  }
  // For many of them: finds entries without looking their chunks up each time, and asks for them
  // before they are read. Unchecked too.
  class Cursor {
   public:
    explicit Cursor(const Tape& tape) : tape_(tape) {}
    const Entry* ask(uint64_t number) {
      if (number >> tape_.chunk_shift_ != chunk_) {
        chunk_ = number >> tape_.chunk_shift_;
        entries_ = reinterpret_cast<const Entry*>(tape_.chunk(number));
      }
      const Entry* found = entries_ + (number & tape_.chunk_mask_);
#if defined(__GNUC__) || defined(__clang__)
      __builtin_prefetch(found, 0, 1);
#endif
      return found;
    }

   private:
    const Tape& tape_;
    uint64_t chunk_ = kNone;
    const Entry* entries_ = nullptr;
  };
  // The whole entry as 16 words, `steps_flags` and `ret` consistent. `unsettled`: an append that
  // grows it has not finished; under the lock that cannot be.
  // `grew`: it did since h, so that what else was read with h may lack a part of the same append.
  enum class Read { ok, gone, grew, unsettled };
  Read read_entry_words(uint64_t number, uint64_t h, uint64_t out[EntryWords::count]) const;

  const uint8_t* row(uint64_t seq) const {
    const uint64_t number = seq >> shift_;
    const uint64_t extent =  // a 64-bit division costs as much as the rest
        number <= UINT32_MAX ? static_cast<uint32_t>(number) % static_cast<uint32_t>(n_extents_)
                             : number % n_extents_;
    return data_ + ((extent << shift_) + (seq & mask_)) * stride_;
  }

  Header& header() const { return *h_; }
  uint64_t record_size() const { return record_size_; }
  uint64_t stride() const { return stride_; }
  bool checked() const { return checked_; }
  RowSums& sums() { return sums_; }
  const RowSums& sums() const { return sums_; }
  bool attached() const { return data_ != nullptr; }

 private:
  uint8_t* chunk(uint64_t number) const {
    const uint64_t place =
        map_[slot_of_chunk(number >> chunk_shift_)].load(std::memory_order_relaxed);
    return index_ + place * chunk_bytes_;
  }
  Entry& entry(uint64_t number) const {
    return reinterpret_cast<Entry*>(chunk(number))[number & chunk_mask_];
  }
  // A stamp of the chunk that entry `number` is in.
  Stamp& stamp(uint64_t number, uint64_t slot) const {
    auto* stamps = chunk(number) + (sizeof(Entry) << chunk_shift_);
    return reinterpret_cast<Stamp*>(stamps)[slot & chunk_mask_];
  }
  uint64_t slot_of_chunk(uint64_t chunk) const {
    return chunk <= UINT32_MAX ? static_cast<uint32_t>(chunk) % static_cast<uint32_t>(map_length_)
                               : chunk % map_length_;
  }
  void reserve_data(uint64_t from, uint64_t to);
  void reserve_chunks(uint64_t from, uint64_t to);  // memory for live entries [from, to)
  void reserve_stamps(uint64_t place, uint64_t n);  // memory for a place's first n stamps
  uint64_t next_stamp(uint64_t number) const;       // free, for an entry that is to be the newest
  // Whether `n` entries from `base` on can be what their 16 words say, else an error; and how many
  // stamps the fullest chunk needs.
  uint64_t check_words(const uint64_t* words, uint64_t n, uint64_t base) const;
  void write_index(const uint64_t* words, uint64_t n, uint64_t base);
  // One of them, with the stamp in `slot`; `all` are those from `base` on.
  void write_words(const uint64_t* words, uint64_t number, uint64_t slot, const uint64_t* all,
                   uint64_t base);
  void map_chunks(uint64_t from, uint64_t to);  // and places, once older ones are evicted
  void copy_in(const Rows& rows, uint64_t skip, uint64_t seq);
  // What an append needs and what gives way to it: rows, entries, and those that do not fit.
  struct Room {
    uint64_t head, new_head, tail, index_head, index_tail, new_runs;
    uint64_t skip, skip_in_run;  // leading rows that get no seq; and of the first run that does
    size_t first_run = 0;
  };
  Room find_room(const Append& a) const;
  uint64_t reserve(const Append& a, const Room& r);  // memory for it; returns the first free stamp
  bool grows_newest(const Append& a, const Room& r) const;  // whether its first run does
  void write_undo(const Append& a, const Room& r, bool grows, uint64_t producer);
  // Writes the entries, from stamp `slot` on; returns the index's new head.
  uint64_t write_runs(const Append& a, const Room& r, bool grows, uint64_t slot);
  void grow_newest(const Run& run, uint64_t rows);
  void write_run(uint64_t number, const Run& run, uint64_t first, uint64_t rows, uint64_t dropped,
                 uint64_t index_tail, uint64_t stamp);

  Header* h_;
  Word* map_;
  Word* stamped_;  // of each place, stamps that have memory
  Producers producers_;
  uint8_t* index_;
  uint64_t chunk_shift_, chunk_mask_, chunk_bytes_, map_length_;
  int fd_;
  uint8_t* data_ = nullptr;  // rows, extent by extent
  uint64_t record_size_ = 0, stride_ = 0, shift_ = 0, mask_ = 0, n_extents_ = 0;
  bool checked_ = false;
  RowSums sums_;  // of rows that are stored with a checksum
};

// Holds the tape's lock and repairs what a killed holder left.
class Hold {
 public:
  Hold(Tape& tape, double timeout_s);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  Tape& tape_;
};

}  // namespace contig
