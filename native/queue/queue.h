// The batch queue: first in, first out, each item once. A ring of blocks in shared memory; an
// append scatters records into the columns of the block being filled, and a full block is handed
// over as a batch without a copy, pinned until nobody looks at it.
//
//   [ QueueHeader | slots | producers | columns | schema JSON ] [ block 0 | block 1 | ... ]
//
// The item at place n goes to block n / batch_size. A block gets a free slot when its first item
// comes, and gives it back when its consumer lets go of it. Each change has one commit point,
// behind which a kill leaves nothing undone that `repair` does not do: `head` of an append, `taken`
// of a take, `block` of a release. A slot is held if its block is below `taken`.
//
// Thread-safety: `accept`, `take` and what is about producers want the lock held by the caller;
// `release` does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/queue/histogram.h"
#include "native/sys/lock.h"
#include "native/tape/producers.h"

namespace contig {

using QueueWord = std::atomic<uint64_t>;

struct QueueSlot {
  QueueWord block;     // the block in it, or kFreeSlot
  QueueWord holder;    // the process that took it
  QueueWord first_ns;  // when its first item came
  QueueWord unused;
};

struct QueueColumn {
  uint64_t offset, bytes;  // place and size of the leaf in a record
  uint64_t start;          // of its column in a block
};

struct alignas(64) QueueHeader {
  uint64_t magic, format, record_size, batch_size, num_slots, n_columns;
  uint64_t total_bytes;  // the seventh word of every segment: what to map
  uint64_t block_bytes, slots_offset, producers_offset, columns_offset, schema_offset, schema_bytes,
      blocks_offset;

  alignas(64) Lock lock;
  alignas(64) QueueWord head;  // the next item's place; a block taken half full ends early
  QueueWord taken;             // blocks ever handed over
  QueueWord closed;            // no more items will come
  // What the last append was about to change; valid while undo_head == head.
  QueueWord undo_head, undo_producer, undo_seq;
  QueueWord producer_clock;  // of the table of producers: which of them is idle for longest

  alignas(64) std::atomic<uint32_t> data_word, data_waiters;    // consumers wait here
  alignas(64) std::atomic<uint32_t> space_word, space_waiters;  // producers wait here

  alignas(64) QueueWord blocked;  // pushes that found no room
  QueueWord fresh;                // blocks handed over as copies, because all slots were held
  QueueWord duplicates;           // items seen before
  QueueWord skipped;              // places without an item
  QueueWord connections, depth_sum, depth_max;  // told by whoever holds the sockets
  Histogram drain_round, memcpy_ns, queue_dwell;
};

class Queue {
 public:
  static constexpr uint64_t kMagic = 0x3165756575716E63ull;  // "cnqueue1"
  static constexpr uint64_t kFreeSlot = ~uint64_t{0};
  static constexpr uint64_t kNoProducer = 0;

  struct Spec {
    uint64_t record_size, batch_size, num_slots, block_bytes, schema_bytes;
    std::vector<QueueColumn> columns;
  };
  // Throws std::invalid_argument for sizes that make no queue.
  static uint64_t bytes_for(const Spec& spec);
  static void format(uint8_t* memory, const Spec& spec, const char* schema);

  // `memory` must be formatted. Throws std::invalid_argument if it is no whole queue of `bytes`.
  Queue(uint8_t* memory, uint64_t bytes);

  struct Accepted {
    uint64_t seen;   // items of the producer that are in
    uint64_t added;  // by this call
    bool gap, full;  // `first` is beyond what comes next; some did not fit
  };
  // Appends n records, items `first`... of the producer, without those seen before: those below
  // `next`, if the producer is not known.
  Accepted accept(uint64_t producer, uint64_t first, const uint8_t* records, uint64_t n,
                  uint64_t next = 0);
  // The same for records that are all new and find room, if their checksum is this: it is taken
  // while they are copied to where they do not count yet. False: it is another.
  bool sums() const { return !large_.empty(); }  // whether that saves time
  bool accept_summed(uint64_t producer, uint64_t first, const uint8_t* records, uint64_t n,
                     uint32_t crc);
  // Whether n more items find room.
  bool has_room(uint64_t n) const;
  // How many items of a producer are in; `next` if it is not known. It is connected: one that is
  // known stays so.
  uint64_t seen(uint64_t producer, uint64_t next);
  // Items below a number will not come.
  void skip(uint64_t producer, uint64_t next);
  // A producer's connection is gone; all those of a process that is no more.
  void leave(uint64_t producer) { producers_.leave(producer); }
  void leave_all() { producers_.leave_all(); }

  struct Taken {
    uint64_t slot, rows;
    bool last_free;  // taking it leaves no slot to fill
  };
  // The next block: full, or, with `partial`, whatever there is. False: none yet.
  bool take(bool partial, uint64_t holder, Taken* out);
  void release(uint64_t slot);
  void repair();

  uint64_t items() const;  // ever taken in
  uint8_t* block(uint64_t slot) const { return blocks_ + slot * spec_.block_bytes; }
  QueueHeader& header() const { return *h_; }
  const Spec& spec() const { return spec_; }
  const char* schema() const { return schema_; }

 private:
  bool held(uint64_t slot, uint64_t taken) const;
  uint64_t slot_of(uint64_t block) const;
  uint64_t slot_for(uint64_t block);
  void scatter(uint8_t* block, uint64_t at, const uint8_t* records, uint64_t n,
               uint32_t* crc) const;
  uint64_t store(uint64_t head, const uint8_t* records, uint64_t n, uint64_t now, uint32_t* crc);
  void commit(uint64_t producer, uint64_t first, uint64_t head, uint64_t to);

  QueueHeader* h_;
  Spec spec_;  // read once: what a stray write does to the header moves no pointer
  QueueSlot* slots_;
  Producers producers_;
  uint8_t* blocks_;
  const char* schema_;
  std::vector<QueueColumn> large_;  // leaves that are copied one by one, in the record's order
};

}  // namespace contig
