// What a tape's control region looks like in memory. Shared between processes, so every field that
// a reader may load without the lock is atomic, and nothing here ever moves.
//
//   [ Header | chunk map | producer table | index chunks ] [ schema JSON ] [ data extents ... ]
//   '------------------ control region -----------------'
//
// and behind the data a ring of bytes, if a leaf has any size, the fields of trajectories, if there
// are any (fields.h), and slots, if observations are stored once (slot_memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/sys/lock.h"
#include "native/tape/producers.h"
#include "native/tape/run_flags.h"

namespace contig {

using Word = std::atomic<uint64_t>;
static_assert(sizeof(Word) == 8 && Word::is_always_lock_free, "tapes need lock-free 64-bit words");

constexpr uint64_t kMagic = 0x31657061746E6F63ull;  // "contape1", little-endian
constexpr uint64_t kFormat = 7;
constexpr uint64_t kNone = ~0ull;

// `steps_flags` is lane << 44 | rows << 8 | flags. Flags of a run are `RunFlag`.
constexpr int kFlagBits = 8, kLaneShift = 44;
constexpr uint64_t kFlagMask = (1 << kFlagBits) - 1;
constexpr uint64_t kMostRunRows = (uint64_t{1} << (kLaneShift - kFlagBits)) - 1;
inline uint64_t run_rows(uint64_t steps_flags) { return steps_flags >> kFlagBits & kMostRunRows; }

// The lane of a producer's run: with the producer's number, which is the run's writer, it tells a
// later server process where this producer goes on. 0: nobody goes on from it.
constexpr uint64_t kFirstLane = 1, kFirstEnv = uint64_t{1} << 19, kNamedLane = (1 << 20) - 1;
inline uint64_t lane_of(uint64_t steps_flags) { return steps_flags >> kLaneShift; }

// One run: rows of one trajectory that are adjacent on the tape. Immutable once committed, except
// that the newest entry's `steps_flags` and `ret` change while its own writer grows it. One cache
// line: steps of many envs are an entry for each row.
struct alignas(64) Entry {
  Word first;         // seq of the first row
  Word steps_flags;   // lane, rows and flags
  Word ret;           // return of the trajectory up to this run's end, double
  Word version;       // policy version, int64
  Word traj_id;       // id as given by the data, int64, -1 if none
  Word links;         // how many entries back: the previous run << 32 | the one to skip to; 0: none
  Word ordinal_rank;  // the trajectory's number, the public `id` << kRankBits | rank of the skip
  Word before_stamp;  // steps of the trajectory before this run << kStampBits | its stamp
};
static_assert(sizeof(Entry) == 64, "an index entry is a cache line");

// A skip link of rank r skips 2^r - 1 runs, as in a skew-binary list.
constexpr int kRankBits = 6;
// Stand-ins for entries of a damaged store have negative numbers: the sign is kept.
constexpr uint64_t kMostOrdinals = uint64_t{1} << (63 - kRankBits);
inline uint64_t ordinal_of(uint64_t ordinal_rank) {
  return static_cast<uint64_t>(static_cast<int64_t>(ordinal_rank) >> kRankBits);
}

// What the entries of one append have in common. An entry's stamp is a place in its own chunk of
// the index: entries without stamps of their own have the last one's before them.
struct Stamp {
  Word writer;   // writer id
  Word time_ns;  // wall clock of the append that made the run
};
constexpr int kStampBits = 13;
constexpr uint64_t kChunkShift = kStampBits;  // at most so many entries (and stamps) of a chunk
constexpr uint64_t kMostBefore = uint64_t{1} << (64 - kStampBits);

// An entry as 16 words: what checkpoints, storages on disk and Python (tape/entry.py) have. Links
// are numbers of entries.
struct EntryWords {
  enum { first, steps_flags, prev, jump, before, ordinal, version, ret, traj_id, writer, time_ns };
  // The rank of `jump`, marked; in stores of contig 0.1 the number of runs before this one.
  enum { depth = 11, number = 15, count = 16 };
  static constexpr uint64_t kRanked = uint64_t{1} << 62;
};

// The index is a ring of entry numbers, in chunks: so many entries, then so many stamps, which get
// memory as they are needed. Where a chunk lies is in the chunk map (one word per chunk, behind the
// header), so that the memory of evicted chunks serves new ones: there is memory for live entries
// only, and none of it is ever taken from under a slow reader. Behind the map there is a word for
// each place: how many of its stamps have memory.
struct alignas(64) Header {
  uint64_t magic, format, capacity, chunk_shift;
  uint64_t producers_offset, index_offset, control_bytes, map_length;

  // Published once, under the lock: `ready` is stored last.
  alignas(64) Word ready;
  uint64_t schema_offset, schema_bytes, data_offset, record_size, extent_shift, n_extents;
  uint64_t row_stride;  // bytes from one row to the next: record_size, or a little more
  uint64_t row_crc;     // whether a row's crc32c follows its record, to be checked when it is read
  uint64_t fields_offset, fields_bytes, fields_size;  // of a trajectory's; size 0: it has none
  uint64_t blob_leaves;  // how many leaves of any size there are; if any, where their ring of
  uint64_t blob_offset, blob_ring;     // bytes is, and how large
  uint64_t blob_most;                  // of them that are kept: all, but of a ring that is files
  uint64_t slots_offset, slots_bytes;  // of observations that are stored once; 0 bytes: none are
  uint64_t slot_bytes, slot_stack;     // bytes of one of them, and how many an observation has
  uint64_t slots_encoded;              // whether they are kept as lz4 blocks
  // Checksums of what never changes: of the words from `schema_offset` up to here, and of those
  // from `capacity` up to `ready`. A stray write to one of them must not become an address.
  uint64_t published_crc, shape_crc;

  alignas(64) Lock lock;

  alignas(64) Word head;  // the only commit point
  alignas(64) Word tail;
  Word index_head, index_tail;
  Word trajectories;      // ordinals given so far
  Word reserved_extents;  // of data, and chunks of the index, that have memory
  Word reserved_chunks;
  Word mapped_index;    // entries below it have a chunk
  Word fields_pending;  // the entry whose fields are being changed, plus one
  // Bytes of leaves of any size that were ever given room, a killed append's too: it is advanced
  // before `head` and never goes back, so that no two rows share a byte.
  Word blob_head;
  Word reserved_blobs;  // bytes of the ring that have memory

  // Of slots; with the lock only. The next one to be given has number `slots_after` if `slots_at`
  // is `head`, else `slots_before`: an append that was killed gave none.
  alignas(64) Word slots_before;
  Word slots_after, slots_at;
  Word slot_tail;        // slots below it have no memory any more
  Word mapped_slots;     // chunks below it have a place
  Word reserved_places;  // of chunks, that have memory
  // The same of the bytes of slots that are encoded.
  Word encoded_before, encoded_after, mapped_encoded, reserved_encoded;

  // What the last append was about to change; valid while undo_head == head.
  alignas(64) Word undo_head;
  Word undo_index_head, undo_trajectories, undo_entry, undo_steps_flags, undo_ret;
  Word undo_producer, undo_producer_seq;

  alignas(64) std::atomic<uint32_t> wake_word;
  std::atomic<uint32_t> waiters;
  Word inserted_base, sampled;  // rate limiter: rows in = head + base, rows out
  Word appends;
  Word drawn, drawn_age;  // rows that readers gathered, and their ages in rows, summed
  Word producer_clock;    // of the table of producers: which of them is idle for longest
  Word restores;          // odd while a checkpoint replaces the contents, then one more
  Word fields_changes;    // of trajectories that were there: how many so far
  Word reserved_log;      // of the log of them: changes that have memory
  Word reserved_evicted;  // of fields of evicted runs: places that have memory
};

// What its checksums should be.
uint64_t shape_crc(const Header& h);
uint64_t published_crc(const Header& h);

}  // namespace contig
