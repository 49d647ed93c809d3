// A tape's memory: its header, room for rows and index, and filling it from a checkpoint.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "native/sys/wait.h"
#include "native/tape/tape.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto release = std::memory_order_release;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kExtentBytes = 4u << 20;

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

void allocate(int fd, uint64_t offset, uint64_t bytes, const char* what) {
#if defined(__linux__)
  if (fd < 0) return;
  int rc;
  do {
    rc = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc != 0)
    throw NoSpace("cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " +
                  what + ": " + std::strerror(errno) +
                  "; nothing was written. Use a smaller capacity or a larger /dev/shm.");
#else
  (void)fd, (void)offset, (void)bytes, (void)what;
#endif
}
}  // namespace

namespace {
uint64_t chunk_bytes(uint64_t shift) { return (sizeof(Entry) + sizeof(Stamp)) << shift; }

struct Shape {
  explicit Shape(uint64_t capacity) {
    chunk_shift = 0;
    while (chunk_shift < kChunkShift && (uint64_t{1} << chunk_shift) < capacity) ++chunk_shift;
    // One more than they need: live entries need not start at a chunk's start.
    map_length = ((capacity - 1) >> chunk_shift) + 2;
    producers = sizeof(Header) + round_up(2 * map_length * sizeof(Word), 64);
    index = round_up(producers + kProducers * sizeof(Producer), kPage);
    bytes = round_up(index + map_length * chunk_bytes(chunk_shift), kPage);
  }
  uint64_t chunk_shift, map_length, producers, index, bytes;
};
}  // namespace

uint64_t Tape::control_bytes(uint64_t capacity) { return Shape(capacity).bytes; }

uint64_t Tape::table_bytes(uint64_t capacity) { return Shape(capacity).index; }

void Tape::format(uint8_t* control, uint64_t capacity) {
  const Shape shape(capacity);
  auto* h = new (control) Header{};
  h->format = kFormat;
  h->capacity = capacity;
  h->chunk_shift = shape.chunk_shift;
  h->map_length = shape.map_length;
  h->producers_offset = shape.producers;
  h->index_offset = shape.index;
  h->control_bytes = shape.bytes;
  lock_init(h->lock);
  h->undo_head.store(kNone);
  h->magic = kMagic;
}

Tape::Tape(uint8_t* control, int fd) : h_(reinterpret_cast<Header*>(control)), fd_(fd) {
  if (h_->magic != kMagic) throw std::invalid_argument("not a contig tape (bad magic)");
  if (h_->format != kFormat)
    throw std::invalid_argument(
        "tape format " + std::to_string(h_->format) + ", this contig reads format " +
        std::to_string(kFormat) +
        ": it was made by another version of contig. Use one version in all processes that share "
        "a tape; to take its rows along, save() it there and load() the checkpoint here.");
  map_length_ = h_->map_length;
  map_ = reinterpret_cast<Word*>(control + sizeof(Header));
  stamped_ = map_ + map_length_;
  producers_ =
      Producers(reinterpret_cast<Producer*>(control + h_->producers_offset), &h_->producer_clock);
  index_ = control + h_->index_offset;
  chunk_shift_ = h_->chunk_shift;
  chunk_mask_ = (uint64_t{1} << chunk_shift_) - 1;
  chunk_bytes_ = chunk_bytes(chunk_shift_);
}

bool Tape::publish(const char* schema, uint64_t schema_bytes, uint64_t record_size) {
  if (ready()) return false;
  // Rows of whole cache lines, if that costs little: a row of 184 bytes touches three lines, not
  // mostly four.
  const uint64_t lines = round_up(record_size, 64);
  const uint64_t stride = (lines - record_size) * 8 <= record_size ? lines : record_size;
  uint64_t shift = 0;
  while ((uint64_t{1} << shift) < h_->capacity && (stride << (shift + 1)) <= kExtentBytes) ++shift;
  const uint64_t rows = uint64_t{1} << shift;
  h_->schema_offset = h_->control_bytes;
  h_->schema_bytes = schema_bytes;
  h_->data_offset = round_up(h_->control_bytes + schema_bytes, kPage);
  h_->record_size = record_size;
  h_->row_stride = stride;
  h_->extent_shift = shift;
  h_->n_extents = (h_->capacity + rows - 1) / rows;
#if defined(__linux__)
  if (fd_ >= 0) {
    if (ftruncate(fd_, static_cast<off_t>(round_up(file_bytes(), kPage))) != 0)
      throw NoSpace(std::string("cannot size the tape's file: ") + std::strerror(errno));
    allocate(fd_, h_->schema_offset, schema_bytes, "the schema");
    if (pwrite(fd_, schema, schema_bytes, static_cast<off_t>(h_->schema_offset)) !=
        static_cast<ssize_t>(schema_bytes))
      throw NoSpace(std::string("cannot write the tape's schema: ") + std::strerror(errno));
  }
#endif
  (void)schema;
  h_->ready.store(1, release);
  return true;
}

void Tape::publish_stored(uint64_t record_size, uint64_t stride, uint64_t shift,
                          uint64_t most_extents) {
  h_->record_size = record_size;
  h_->row_stride = stride;
  h_->row_crc = 1;
  h_->extent_shift = shift;
  // Whole extents are kept, so live rows may lie in one more than they fill.
  h_->n_extents = std::min(((h_->capacity - 1) >> shift) + 2, most_extents);
  h_->ready.store(1, release);
}

void Tape::attach_data(uint8_t* data) {
  record_size_ = h_->record_size;
  checked_ = h_->row_crc != 0;
  stride_ = h_->row_stride;
  shift_ = h_->extent_shift;
  mask_ = (uint64_t{1} << shift_) - 1;
  n_extents_ = h_->n_extents;
  data_ = data;
}

void Tape::reserve_data(uint64_t from, uint64_t to) {
  const uint64_t have = h_->reserved_extents.load(relaxed);
  if (have == n_extents_ || from == to) return;
  const uint64_t want = std::min(((to - 1) >> shift_) + 1, n_extents_);
  if (want <= have) return;
  const uint64_t bytes = stride_ << shift_;
  if (bytes > 0) allocate(fd_, h_->data_offset + have * bytes, (want - have) * bytes, "rows");
  h_->reserved_extents.store(want, release);
}

void Tape::reserve_chunks(uint64_t from, uint64_t to) {
  if (from >= to) return;
  const uint64_t want = ((to - 1) >> chunk_shift_) - (from >> chunk_shift_) + 1;
  for (uint64_t have = h_->reserved_chunks.load(relaxed); have < want; ++have) {
    allocate(fd_, h_->index_offset + have * chunk_bytes_, sizeof(Entry) << chunk_shift_,
             "the index");
    reserve_stamps(have, 1);
    h_->reserved_chunks.store(have + 1, release);
  }
}

void Tape::reserve_stamps(uint64_t place, uint64_t n) {
  if (stamped_[place].load(relaxed) >= n) return;
  // A page of them, or all: an index that was full once needs no more memory for the same rows.
  const uint64_t page = kPage / sizeof(Stamp), most = chunk_mask_ + 1;
  const uint64_t want = n <= page ? std::min(page, most) : most;
  const uint64_t stamps = place * chunk_bytes_ + (sizeof(Entry) << chunk_shift_);
  allocate(fd_, h_->index_offset + stamps, want * sizeof(Stamp), "the index");
  stamped_[place].store(want, release);
}

// At most the entry's own place in its chunk, also where what lies before it there is no entry of
// this index: a checkpoint may begin in the middle of a chunk.
uint64_t Tape::next_stamp(uint64_t number) const {
  const uint64_t position = number & chunk_mask_;
  if (position == 0 || number >= h_->mapped_index.load(relaxed)) return 0;
  const uint64_t before = entry(number - 1).before_stamp.load(relaxed) & chunk_mask_;
  return std::min(before + 1, position);
}

void Tape::map_chunks(uint64_t from, uint64_t to) {
  uint64_t mapped = h_->mapped_index.load(relaxed);
  while (mapped < to) {
    // The first place that no chunk of a live entry has.
    const uint64_t chunk = mapped >> chunk_shift_;
    std::vector<bool> taken(h_->reserved_chunks.load(relaxed), false);
    for (uint64_t live = from >> chunk_shift_; live < chunk; ++live)
      taken[map_[slot_of_chunk(live)].load(relaxed)] = true;
    const auto place = std::find(taken.begin(), taken.end(), false) - taken.begin();
    map_[slot_of_chunk(chunk)].store(static_cast<uint64_t>(place), release);
    mapped = (chunk + 1) << chunk_shift_;
    h_->mapped_index.store(mapped, release);
  }
}

void Tape::clear() {
  h_->tail.store(h_->head.load(relaxed), release);
  h_->index_tail.store(h_->index_head.load(relaxed), release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Tape::retire(uint64_t tail) {
  const uint64_t index_head = h_->index_head.load(relaxed);
  uint64_t index_tail = h_->index_tail.load(relaxed);
  tail = std::min(std::max(tail, h_->tail.load(relaxed)), h_->head.load(relaxed));
  while (index_tail < index_head) {
    const Entry& oldest = entry(index_tail);
    if (oldest.first.load(relaxed) + (oldest.steps_flags.load(relaxed) >> kFlagBits) > tail) break;
    ++index_tail;
  }
  h_->tail.store(tail, release);
  h_->index_tail.store(index_tail, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Tape::follow(const uint64_t* entries, size_t n, const Snapshot& then, uint64_t trajectories) {
  const uint64_t known = h_->index_head.load(relaxed);
  check_words(entries, n, n > 0 ? entries[EntryWords::number] : 0);
  reserve_chunks(then.index_tail, then.index_head);
  for (uint64_t place = 0; place < h_->reserved_chunks.load(relaxed); ++place)
    reserve_stamps(place, chunk_mask_ + 1);
  h_->tail.store(then.tail, release);
  h_->index_tail.store(then.index_tail, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  map_chunks(then.index_tail, then.index_head);
  for (size_t i = 0; i < n; ++i, entries += EntryWords::count) {
    const uint64_t number = entries[EntryWords::number];
    if (number >= known) {
      write_words(entries, number, next_stamp(number), entries, number);
      continue;
    }
    Entry& e = entry(number);
    e.steps_flags.store(entries[EntryWords::steps_flags], release);
    e.ret.store(entries[EntryWords::ret], release);
  }
  h_->trajectories.store(trajectories, release);
  h_->index_head.store(then.index_head, release);
  h_->head.store(then.head, release);
  wake(h_->wake_word, h_->waiters);
}

void Tape::prepare(const uint64_t* entries, uint64_t index_tail, uint64_t index_head) {
  const uint64_t stamps = check_words(entries, index_head - index_tail, index_tail);
  reserve_chunks(index_tail, index_head);
  for (uint64_t place = 0; place < h_->reserved_chunks.load(relaxed); ++place)
    reserve_stamps(place, stamps);
}

void Tape::restore(const uint8_t* records, uint64_t tail, uint64_t head, const uint64_t* entries,
                   uint64_t index_tail, uint64_t index_head, uint64_t trajectories) {
  prepare(entries, index_tail, index_head);
  if (records != nullptr) reserve_data(0, head > tail ? h_->capacity : 0);
  // Seqs become those of the checkpoint, so that priorities and indices still fit: for once they
  // may go back. Readers see it by `restores`, and repair by its being odd.
  h_->restores.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  h_->undo_head.store(kNone, release);
  h_->tail.store(head, release);
  h_->index_tail.store(index_head, release);
  h_->index_head.store(index_head, release);
  h_->head.store(head, release);
  h_->mapped_index.store(index_tail >> chunk_shift_ << chunk_shift_, release);
  map_chunks(index_tail, index_head);
  Rows rows;
  rows.n = head - tail;
  rows.records = records;
  if (records != nullptr) copy_in(rows, 0, tail);
  write_index(entries, index_head - index_tail, index_tail);
  h_->trajectories.store(trajectories, release);
  h_->index_tail.store(index_tail, release);
  h_->tail.store(tail, release);
  h_->restores.fetch_add(1, std::memory_order_seq_cst);
  wake(h_->wake_word, h_->waiters);
}

}  // namespace contig
