// The tape: a window [tail, head) of the infinite row sequence.
//
// Thread-safety: `append`, `clear`, `publish` and `restore` want the lock held by the caller
// (class Hold); everything a reader uses is lock-free. A Tape is one process's handle; the memory
// belongs to the caller. DESIGN: docs/design/tape.md.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "native/kernels/copy.h"
#include "native/sys/descriptor.h"
#include "native/sys/errors.h"
#include "native/sys/pages.h"
#include "native/tape/blobs.h"
#include "native/tape/compact_rows.h"
#include "native/tape/encoded_slots.h"
#include "native/tape/fields.h"
#include "native/tape/row_sums.h"
#include "native/tape/slot_memory.h"
#include "native/tape/tape_format.h"

namespace contig {

struct Busy : std::runtime_error {
  Busy(uint64_t pid, double timeout_s);
  uint64_t pid;
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
  // Bytes of leaves of any size, in packed order; and the position that records give the first.
  const uint8_t* blobs = nullptr;
  uint64_t blob_bytes = 0, blob_first = 0;
  // Rows with slots of their own, whose columns are those of the leaves that stay.
  const CompactRows* compact = nullptr;
};

// One trajectory a writer has open: where its next run continues.
struct Track {
  uint64_t last_entry = kNone, ordinal = kNone, steps = 0;
  double ret = 0;
  uint32_t flags = 0;
  bool known = false;  // false: nothing of it was appended by this writer
  // As of its last run, if the tape has any. Not inside: a writer's slot is a cache line.
  std::unique_ptr<std::vector<uint8_t>> fields;
  std::unique_ptr<SlotTrail> slots;  // if observations are stored once

  // Zeros, if there are none yet.
  uint8_t* record(size_t room) {
    if (fields == nullptr) fields = std::make_unique<std::vector<uint8_t>>(room);
    return fields->data();
  }
};

// Rows of one trajectory within an append, in the append's order.
struct Run {
  Track* track;
  uint64_t rows;
  uint64_t flags;  // kTerminated, kTruncated at its last row; kBegins if it starts a trajectory
  bool starts;     // a new trajectory, whatever the track held before
  double reward;   // sum over its rows
  int64_t traj_id, version;
  const uint8_t* fields = nullptr;  // those leaves of the record that the mask has are given
  uint64_t field_mask = 0;
  uint64_t lane = 0;  // of a producer's: see `lane_of`
};

struct Append {
  Rows rows;
  Run* runs = nullptr;
  size_t n_runs = 0;
  uint64_t writer = 0;
  // Producer 0: none. Else how many of its items are in after this append, and were before it.
  uint64_t producer = 0, producer_seq = 0, producer_before = 0;
  bool stored = false;  // the rows are in their places already: only the index is written
  BlobRoom blob_room;   // of rows that are: see Tape::blob_room
};

// Leaves of any size whose bytes are in files: how many, the addresses their files are mapped at,
// and how many bytes are kept at most.
struct StoredBlobs {
  uint64_t leaves = 0, ring = 0, most = 0;
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

  // `control` must hold a formatted header; `fd` is the file behind it or -1. The tape works with a
  // duplicate of it: the caller may close its own while a call waits for the lock. Throws Damaged
  // unless the header's words fit together and `bytes` of memory.
  Tape(uint8_t* control, int fd, uint64_t bytes = ~uint64_t{0});

  // From now on whatever would change rows, index or fields throws Closed, also a call that waits
  // for the lock already. What is there can be read.
  void close() { closed_.store(true); }
  void check_open() const {
    if (closed_.load()) throw Closed();
  }

  // Makes room for the schema and the data in the file and announces them. With the lock.
  // Returns false if another process published first.
  bool publish(const char* schema, uint64_t schema_bytes, uint64_t record_size,
               uint64_t fields_size = 0, uint64_t blob_leaves = 0, uint64_t blob_ring = 0,
               const SharedForm& form = {});
  // The same for rows that somebody else stores, in extents of 2^shift rows, each row followed by
  // its checksum.
  void publish_stored(uint64_t record_size, uint64_t stride, uint64_t shift, uint64_t most_extents,
                      uint64_t fields_size = 0, const StoredBlobs& blobs = {});
  // Throws Damaged if something was written over what never changes once it is ready.
  void check_published() const;
  bool ready() const { return h_->ready.load(std::memory_order_acquire) != 0; }
  uint64_t data_bytes() const { return (h_->n_extents << h_->extent_shift) * h_->row_stride; }
  // Tells where the data is mapped in this process, and where the fields are, if there are any.
  void attach_data(uint8_t* data);
  void attach_fields(uint8_t* memory);
  void set_field_leaves(FieldLeaves leaves) { fields_.set_leaves(std::move(leaves)); }
  const Fields& fields() const { return fields_; }
  uint64_t fields_size() const { return fields_.size(); }
  // The same of slots, before the ring of bytes; and what is in them.
  void attach_slots(uint8_t* memory, SharedForm form);
  // Of rows in files: what is in slots, which are in the ring of bytes, and how far behind the
  // newest one that a row refers to may be.
  void attach_stored_slots(SharedForm form, uint64_t reach);
  // Which slots rows that are to be stored refer to; new ones are behind the ring's last byte. It
  // counts until the next one; `older` is read while it is made. With the lock, or alone.
  const SlotPlan& plan_stored(const Append& a, const SlotReader& older);
  // The same of the ring of bytes; and which leaves of the record have any size, in its order.
  void attach_blobs(uint8_t* ring, std::vector<BlobLeaf> leaves,
                    std::vector<std::string> names = {});

  uint64_t append(const Append& a);  // with the lock; returns the first seq
  // What rows need of the ring of bytes. Throws if theirs are not in packed order, or if one has
  // more than the ring.
  BlobRoom blob_room(const Rows& rows) const;
  // With the lock: a producer's items so far, `next` if it is not known. It is connected: one that
  // is known stays so.
  uint64_t seen(uint64_t producer, uint64_t next);
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
  // that are new, the newest one grown, or any whose fields were changed; the bounds then; and
  // the fields of each. With the lock.
  void follow(const uint64_t* entries, size_t n, const Snapshot& then, uint64_t trajectories,
              const uint8_t* fields = nullptr);
  // Throws what would make `restore` fail for these entries, and has memory for them. With the
  // lock.
  void prepare(const uint64_t* entries, uint64_t index_tail, uint64_t index_head);
  // Fills an empty tape from a checkpoint, rows [tail, head); without records, they are in their
  // places; without fields, they are zero. Compact ones are of the tape's own form, or, if it
  // stores nothing once, of `form`. With the lock.
  void restore(const Rows& rows, uint64_t tail, uint64_t head, const uint64_t* entries,
               uint64_t index_tail, uint64_t index_head, uint64_t trajectories,
               const uint8_t* fields = nullptr, const SharedForm* form = nullptr);

  // An entry's fields, `fields().room()` bytes; false: it is gone.
  bool read_fields(uint64_t number, uint8_t* out) const;
  // With the lock: changes leaves of a live entry's, whole or not at all; and, when all of them
  // are done, wakes who waits.
  void write_fields(uint64_t number, const uint8_t* given, uint64_t mask);
  void fields_changed();
  uint64_t fields_changes() const { return h_->fields_changes.load(std::memory_order_acquire); }
  // Which they were of: see Fields::noted.
  bool changed_fields(uint64_t since, uint64_t* now, std::vector<uint64_t>* numbers) const {
    return fields_.noted(h_->fields_changes, since, now, numbers);
  }

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

  // Whether a row does not lie behind the one before it.
  bool starts_extent(uint64_t seq) const { return (seq & mask_) == 0; }

  Header& header() const { return *h_; }
  // Of rows as they come in and go out.
  uint64_t record_size() const { return record_size_; }
  // As they are stored.
  uint64_t row_bytes() const { return form_ ? form_.row_bytes() : record_size_; }
  // Of those in files, without checksums.
  uint64_t stored_size() const;
  const SharedForm& form() const { return form_; }
  const SlotMemory& slots() const { return slots_; }
  uint64_t slot_head() const;  // the next one's number; with the lock
  uint64_t stride() const { return stride_; }
  bool checked() const { return checked_; }
  RowSums& sums() { return sums_; }
  const RowSums& sums() const { return sums_; }
  bool attached() const { return data_ != nullptr; }
  const BlobRing& blobs() const { return ring_; }
  const std::vector<BlobLeaf>& blob_leaves() const { return blob_leaves_; }
  // Where a row's bytes begin.
  uint64_t blob_begin(uint64_t seq) const {
    return load_place(row(seq) + form_.stored(blob_leaves_.front().offset)).position;
  }

 private:
  // Where a chunk of the index lies. What a stray write left in the map leads to the first one.
  uint64_t place_of(uint64_t chunk) const {
    const uint64_t place = map_[slot_of_chunk(chunk)].load(std::memory_order_relaxed);
    return place < map_length_ ? place : 0;
  }
  uint8_t* chunk(uint64_t number) const {
    return index_ + place_of(number >> chunk_shift_) * chunk_bytes_;
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
  // With the lock: throws Damaged unless an append can rely on what bounds it. Of a tape that is
  // attached to: unless all of it can be what writers left.
  void check_bounds() const;
  void check_state();
  // What cannot be, or null. Without the lock it may be an append that has not finished.
  const char* flaw() const;
  const char* flaw_of_bounds() const;
  const char* flaw_of_index() const;
  const char* flaw_of_blobs() const;
  const char* flaw_of_slots() const;
  Snapshot load_bounds() const;
  void allocate(uint64_t offset, uint64_t bytes, const char* what);  // memory of the file
  void reserve_data(uint64_t from, uint64_t to);
  void reserve_chunks(uint64_t from, uint64_t to);  // memory for live entries [from, to)
  void reserve_stamps(uint64_t place, uint64_t n);  // memory for a place's first n stamps
  void reserve_fields(uint64_t place);              // and for its fields
  void reserve_first_fields();
  void reserve_log(uint64_t n);  // memory for so many more changes of fields
  void place_fields(uint64_t offset, uint64_t size);
  Word* fields_slot(uint64_t number) const;
  bool changes_fields(uint64_t number, const Run& run) const;  // what the run gives
  void keep_fields(Track* track) const;                        // those of its last entry
  void save_fields(uint64_t index_tail);   // that were changed, of runs that are evicted next
  void reserve_evicted(uint64_t ordinal);  // memory for those of this trajectory
  // Of a run that is next: what the trajectory has, if that is known, or its track; and what is
  // given. They are the track's then.
  uint8_t* take_fields(const Run& run, uint64_t index_tail);
  void fill_fields(const uint8_t* records, uint64_t n, uint64_t base);
  void follow_fields(const uint8_t* record, uint64_t number, bool known);
  void repair_fields();
  void check_undo(uint64_t grown) const;
  uint64_t next_stamp(uint64_t number) const;  // free, for an entry that is to be the newest
  // Whether `n` entries from `base` on can be what their 16 words say, else an error; and how many
  // stamps the fullest chunk needs.
  uint64_t check_words(const uint64_t* words, uint64_t n, uint64_t base) const;
  void write_index(const uint64_t* words, uint64_t n, uint64_t base);
  // One of them, with the stamp in `slot`; `all` are those from `base` on.
  void write_words(const uint64_t* words, uint64_t number, uint64_t slot, const uint64_t* all,
                   uint64_t base);
  void map_chunks(uint64_t from, uint64_t to);  // and places, once older ones are evicted
  void copy_in(const Rows& rows, uint64_t skip, uint64_t seq);
  void reserve_blobs(uint64_t to);  // memory for the ring's bytes up to a position
  // Writes what `room` says of the rows' bytes from position `at` on, and where they are then
  // into the records from `seq` on.
  void copy_blobs_in(const Rows& rows, const BlobRoom& room, uint64_t at, uint64_t seq);
  // The first row of [tail, head) whose bytes begin at a position or after it.
  uint64_t first_beyond(uint64_t position, uint64_t tail, uint64_t head) const;
  struct Room;
  // Of its own: those of rows in files are in the ring of bytes.
  bool has_slots() const { return form_ && !checked_; }
  // Slots of an append, in this order: which its rows refer to; memory for new ones; behind the
  // fence, places for their chunks; their numbers; the copy, rows included.
  void plan_slots(const Append& a, const Room& r);
  void plan_runs(const Append& a, const Room& r);
  // Of rows that a checkpoint has; null: they are in their places, and so are their slots.
  void plan_entries(const Rows* rows, uint64_t tail, const uint64_t* entries, uint64_t n,
                    uint64_t base);
  void reserve_slots(uint64_t tail, uint64_t head);
  uint64_t encoded_head() const;
  void encode_slots(const Rows& rows);
  void reserve_places(Word* reserved, uint64_t want, uint64_t most, uint64_t from, uint64_t bytes);
  void put_encoded();
  void map_slots();
  void give_slots();
  void copy_slots_in(const Rows& rows, uint64_t skip, uint64_t seq);
  void copy_observations_in();
  void copy_kept_in(const Rows& rows, uint64_t skip, uint64_t seq);
  void copy_compact_in(const CompactRows& from, uint64_t skip, uint64_t seq);
  // Whole rows of compact ones.
  void expand_in(const CompactRows& from, const SharedForm& form, uint64_t n, uint64_t seq);
  // The references of a row of the plan, where the row begins.
  void put_references(uint64_t number, uint8_t* to) const {
    const uint64_t* references = plan_.references(number);
    for (uint64_t j = 0; j < form_.references(); ++j) {
      const auto low = static_cast<uint32_t>(references[j]);
      copy_fixed<4>(to + 4 * j, reinterpret_cast<const uint8_t*>(&low));
    }
  }
  // Calls for each row, from `seq` on, with its number among them and where it lies.
  template <class Call>
  void each_row(uint64_t seq, uint64_t n, Call call) const {
    for (uint64_t i = 0; i < n;) {
      auto* to = const_cast<uint8_t*>(row(seq + i));
      const uint64_t end = std::min(n, i + mask_ + 1 - ((seq + i) & mask_));
      for (; i < end; ++i, to += stride_) call(i, to);
    }
  }
  void keep_slots(Track* track, uint64_t row) const;  // of the row so far behind the first
  // What an append needs and what gives way to it: rows, entries, and those that do not fit.
  struct Room {
    uint64_t head, new_head, tail, index_head, index_tail, new_runs;
    uint64_t skip, skip_in_run;  // leading rows that get no seq; and of the first run that does
    size_t first_run = 0;
    BlobRoom blobs;
  };
  Room find_room(const Append& a) const;
  uint64_t reserve(const Append& a, const Room& r);  // memory for it; returns the first free stamp
  bool grows_newest(const Append& a, const Room& r) const;  // whether its first run does
  void write_undo(const Append& a, const Room& r, bool grows, uint64_t producer);
  // Writes the entries, from stamp `slot` on; returns the index's new head.
  uint64_t write_runs(const Append& a, const Room& r, bool grows, uint64_t slot);
  void grow_newest(const Run& run, uint64_t rows);
  void write_run(uint64_t number, const Run& run, uint64_t first, uint64_t rows, uint64_t dropped,
                 uint64_t index_tail, uint64_t stamp, uint64_t lane);

  Header* h_;
  Word* map_;
  Word* stamped_;  // of each place, stamps that have memory
  Producers producers_;
  uint8_t* index_;
  uint64_t chunk_shift_, chunk_mask_, chunk_bytes_, map_length_;
  Descriptor file_;
  std::atomic<bool> closed_{false};
  LargePages large_pages_;
  uint8_t* data_ = nullptr;  // rows, extent by extent
  uint64_t record_size_ = 0, stride_ = 0, shift_ = 0, mask_ = 0, n_extents_ = 0;
  bool checked_ = false;
  Fields fields_;
  RowSums sums_;  // of rows that are stored with a checksum
  BlobRing ring_;
  std::vector<BlobLeaf> blob_leaves_;
  std::vector<std::string> blob_names_;  // for messages
  SharedForm form_;
  SlotMemory slots_;
  // Of the append that is being made: with the lock.
  SlotPlan plan_;
  Observations observations_;  // of its rows, unless they are compact
  std::vector<uint64_t> before_;
  uint64_t plans_ = 0;
  uint64_t slot_bound_ = 0, chunks_wanted_ = 0, encoded_bound_ = 0, encoded_wanted_ = 0;
  EncodedSlots encoded_;  // of the plan, if slots are encoded
  uint64_t reach_ = 0;    // of slots in files
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
