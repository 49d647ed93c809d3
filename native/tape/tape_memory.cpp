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
constexpr uint64_t kNotedAgain = 64;

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Where something of this size begins: at the start of a large page, if it has any.
uint64_t page_for(uint64_t bytes) { return bytes < kLargePage ? kPage : kLargePage; }

void size_file(int fd, uint64_t bytes) {
#if defined(__linux__)
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(round_up(bytes, kPage))) != 0)
    throw NoSpace(std::string("cannot size the tape's file: ") + std::strerror(errno) +
                  "; use a smaller capacity or a larger /dev/shm");
#else
  (void)fd, (void)bytes;
#endif
}

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

void Tape::allocate(uint64_t offset, uint64_t bytes, const char* what) {
#if defined(__linux__)
  if (file_.number() < 0) return;
  int rc;
  do {
    rc = fallocate(file_.number(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc != 0)
    throw NoSpace("cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " +
                  what + ": " + std::strerror(errno) +
                  "; nothing was written. Use a smaller capacity or a larger /dev/shm.");
#else
  (void)offset, (void)bytes, (void)what;
#endif
}

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
  h->shape_crc = shape_crc(*h);
  lock_init(h->lock);
  h->undo_head.store(kNone);
  h->magic = kMagic;
}

Tape::Tape(uint8_t* control, int fd, uint64_t bytes)
    : h_(reinterpret_cast<Header*>(control)), file_(fd) {
  if (h_->magic != kMagic) throw std::invalid_argument("not a contig tape (bad magic)");
  if (h_->format != kFormat)
    throw std::invalid_argument(
        "tape format " + std::to_string(h_->format) + ", this contig reads format " +
        std::to_string(kFormat) +
        ": it was made by another version of contig. Use one version in all processes that share "
        "a tape; to take its rows along, save() it there and load() the checkpoint here.");
  if (h_->shape_crc != shape_crc(*h_) || h_->control_bytes > bytes)
    throw Damaged("its header does not fit together");
  map_length_ = h_->map_length;
  map_ = reinterpret_cast<Word*>(control + sizeof(Header));
  stamped_ = map_ + map_length_;
  producers_ =
      Producers(reinterpret_cast<Producer*>(control + h_->producers_offset), &h_->producer_clock);
  index_ = control + h_->index_offset;
  chunk_shift_ = h_->chunk_shift;
  chunk_mask_ = (uint64_t{1} << chunk_shift_) - 1;
  chunk_bytes_ = chunk_bytes(chunk_shift_);
  check_state();
}

void Tape::place_fields(uint64_t offset, uint64_t size) {
  h_->fields_size = size;
  h_->fields_offset = round_up(offset, kPage);
  h_->fields_bytes = size > 0 ? round_up(Fields::bytes(size, chunk_shift_, map_length_), kPage) : 0;
}

bool Tape::publish(const char* schema, uint64_t schema_bytes, uint64_t record_size,
                   uint64_t fields_size, uint64_t blob_leaves, uint64_t blob_ring,
                   const SharedForm& form) {
  check_open();
  if (ready()) return false;
  const uint64_t row_bytes = form ? form.row_bytes() : record_size;
  // Rows of whole cache lines, if that costs little: a row of 184 bytes touches three lines, not
  // mostly four.
  const uint64_t lines = round_up(row_bytes, 64);
  const uint64_t stride = (lines - row_bytes) * 8 <= row_bytes ? lines : row_bytes;
  uint64_t shift = 0;
  while ((uint64_t{1} << shift) < h_->capacity && (stride << (shift + 1)) <= kExtentBytes) ++shift;
  const uint64_t rows = uint64_t{1} << shift;
  h_->record_size = record_size;
  h_->row_stride = stride;
  h_->extent_shift = shift;
  h_->n_extents = (h_->capacity + rows - 1) / rows;
  h_->schema_offset = h_->control_bytes;
  h_->schema_bytes = schema_bytes;
  h_->data_offset = round_up(h_->control_bytes + schema_bytes, page_for(data_bytes()));
  h_->blob_leaves = blob_leaves;
  h_->blob_offset = round_up(h_->data_offset + data_bytes(), kPage);
  h_->blob_ring = h_->blob_most = blob_ring;
  place_fields(h_->blob_offset + blob_ring, fields_size);
  h_->slots_offset = round_up(h_->fields_offset + h_->fields_bytes, kPage);
  if (form) {
    const SlotShape shape(h_->capacity, form);
    h_->slots_offset = round_up(h_->slots_offset, page_for(shape.bytes));
    h_->slots_bytes = shape.bytes;
    h_->slots_encoded = form.encoded() ? 1 : 0;
    h_->slot_bytes = form.slot_bytes();
    h_->slot_stack = form.stack();
    h_->slots_at.store(kNone, release);
  }
  size_file(file_.number(), h_->slots_offset + h_->slots_bytes);
  if (form) {
    const SlotShape shape(h_->capacity, form);
    allocate(h_->slots_offset, shape.tables, "observations");
  }
#if defined(__linux__)
  if (file_.number() >= 0) {
    allocate(h_->schema_offset, schema_bytes, "the schema");
    if (pwrite(file_.number(), schema, schema_bytes, static_cast<off_t>(h_->schema_offset)) !=
        static_cast<ssize_t>(schema_bytes))
      throw NoSpace(std::string("cannot write the tape's schema: ") + std::strerror(errno) +
                    "; use a larger /dev/shm");
  }
#endif
  (void)schema;
  reserve_first_fields();
  h_->published_crc = published_crc(*h_);
  h_->ready.store(1, release);
  return true;
}

void Tape::publish_stored(uint64_t record_size, uint64_t stride, uint64_t shift,
                          uint64_t most_extents, uint64_t fields_size, const StoredBlobs& blobs) {
  check_open();
  h_->record_size = record_size;
  h_->row_stride = stride;
  h_->row_crc = 1;
  h_->extent_shift = shift;
  // Whole extents are kept, so live rows may lie in one more than they fill.
  h_->n_extents = std::min(((h_->capacity - 1) >> shift) + 2, most_extents);
  h_->blob_leaves = blobs.leaves;
  h_->blob_ring = blobs.ring;
  h_->blob_most = blobs.most;
  if (fields_size > 0) {
    place_fields(h_->control_bytes, fields_size);
    size_file(file_.number(), h_->fields_offset + h_->fields_bytes);
    reserve_first_fields();
  }
  h_->published_crc = published_crc(*h_);
  h_->ready.store(1, release);
}

void Tape::attach_data(uint8_t* data) {
  check_published();
  record_size_ = h_->record_size;
  checked_ = h_->row_crc != 0;
  stride_ = h_->row_stride;
  shift_ = h_->extent_shift;
  mask_ = (uint64_t{1} << shift_) - 1;
  n_extents_ = h_->n_extents;
  data_ = data;
  check_state();
}

void Tape::reserve_data(uint64_t from, uint64_t to) {
  const uint64_t have = h_->reserved_extents.load(relaxed);
  if (have == n_extents_ || from == to) return;
  const uint64_t want = std::min(((to - 1) >> shift_) + 1, n_extents_);
  if (want <= have) return;
  const uint64_t bytes = stride_ << shift_;
  if (bytes > 0) {
    allocate(h_->data_offset + have * bytes, (want - have) * bytes, "rows");
    if (file_.number() >= 0) large_pages_.use(data_, have * bytes, want * bytes);
  }
  h_->reserved_extents.store(want, release);
}

void Tape::attach_blobs(uint8_t* ring, std::vector<BlobLeaf> leaves,
                        std::vector<std::string> names) {
  if (leaves.size() != h_->blob_leaves)
    throw std::invalid_argument("attach_blobs: other leaves than the tape was published with");
  // In memory, places are those of rows as they come in, also where some of a row is in slots.
  const uint64_t size = h_->row_crc != 0 ? stored_size() : h_->record_size;
  for (const BlobLeaf& leaf : leaves)
    if (leaf.element == 0 || leaf.offset % 8 != 0 || leaf.offset > size ||
        size - leaf.offset < kPlaceBytes)
      throw std::invalid_argument("attach_blobs: a leaf that the record has no room for");
  ring_ = BlobRing{ring, h_->blob_ring};
  blob_leaves_ = std::move(leaves);
  blob_names_ = std::move(names);
  check_state();
}

void Tape::reserve_blobs(uint64_t to) {
  const uint64_t have = h_->reserved_blobs.load(relaxed);
  if (have == ring_.size || to <= have) return;
  const uint64_t want = std::min(round_up(to, kExtentBytes), ring_.size);
  allocate(h_->blob_offset + have, want - have, "leaves of any size");
  h_->reserved_blobs.store(want, release);
}

void Tape::reserve_chunks(uint64_t from, uint64_t to) {
  if (from >= to) return;
  const uint64_t want = ((to - 1) >> chunk_shift_) - (from >> chunk_shift_) + 1;
  for (uint64_t have = h_->reserved_chunks.load(relaxed); have < want; ++have) {
    allocate(h_->index_offset + have * chunk_bytes_, sizeof(Entry) << chunk_shift_, "the index");
    reserve_stamps(have, 1);
    if (ready()) reserve_fields(have);
    h_->reserved_chunks.store(have + 1, release);
  }
}

void Tape::reserve_stamps(uint64_t place, uint64_t n) {
  if (stamped_[place].load(relaxed) >= n) return;
  // A page of them, or all: an index that was full once needs no more memory for the same rows.
  const uint64_t page = kPage / sizeof(Stamp), most = chunk_mask_ + 1;
  const uint64_t want = n <= page ? std::min(page, most) : most;
  const uint64_t stamps = place * chunk_bytes_ + (sizeof(Entry) << chunk_shift_);
  allocate(h_->index_offset + stamps, want * sizeof(Stamp), "the index");
  stamped_[place].store(want, release);
}

void Tape::reserve_fields(uint64_t place) {
  if (h_->fields_size == 0) return;
  const uint64_t bytes = Fields::slot_bytes(h_->fields_size) << chunk_shift_;
  const uint64_t slots = Fields::slots_offset(h_->fields_size, chunk_shift_, map_length_);
  allocate(h_->fields_offset + slots + place * bytes, bytes, "fields of trajectories");
}

void Tape::reserve_log(uint64_t n) {
  const uint64_t have = h_->reserved_log.load(relaxed);
  const uint64_t length = Fields::log_length(chunk_shift_, map_length_);
  // A repair, which must not fail, notes a change again: as often as it is killed itself.
  const uint64_t needed = h_->fields_changes.load(relaxed) + n + kNotedAgain;
  if (have == length || needed <= have) return;
  uint64_t want = have == 0 ? kFieldsLog : have;
  while (want < std::min(needed, length)) want *= 2;
  allocate(h_->fields_offset + have * sizeof(Word), (want - have) * sizeof(Word),
           "fields of trajectories");
  h_->reserved_log.store(want, release);
}

// The log, and fields of chunks that have memory already.
void Tape::reserve_first_fields() {
  if (h_->fields_size == 0) return;
  reserve_log(0);
  for (uint64_t place = 0; place < h_->reserved_chunks.load(relaxed); ++place)
    reserve_fields(place);
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
    // The first place that no chunk of a live entry has. An index that is restored without entries
    // may have no memory yet: its first place gets some with the next append.
    const uint64_t chunk = mapped >> chunk_shift_;
    std::vector<bool> taken(std::max<uint64_t>(h_->reserved_chunks.load(relaxed), 1), false);
    for (uint64_t live = from >> chunk_shift_; live < chunk; ++live)
      if (const uint64_t place = place_of(live); place < taken.size()) taken[place] = true;
    const auto place = std::find(taken.begin(), taken.end(), false);
    if (place == taken.end()) throw Damaged("the index has no room where it should");
    map_[slot_of_chunk(chunk)].store(static_cast<uint64_t>(place - taken.begin()), release);
    mapped = (chunk + 1) << chunk_shift_;
    h_->mapped_index.store(mapped, release);
  }
}

void Tape::clear() {
  check_open();
  save_fields(h_->index_head.load(relaxed));
  h_->tail.store(h_->head.load(relaxed), release);
  h_->index_tail.store(h_->index_head.load(relaxed), release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Tape::retire(uint64_t tail) {
  check_open();
  const uint64_t index_head = h_->index_head.load(relaxed);
  uint64_t index_tail = h_->index_tail.load(relaxed);
  tail = std::min(std::max(tail, h_->tail.load(relaxed)), h_->head.load(relaxed));
  while (index_tail < index_head) {
    const Entry& oldest = entry(index_tail);
    if (oldest.first.load(relaxed) + run_rows(oldest.steps_flags.load(relaxed)) > tail) break;
    ++index_tail;
  }
  save_fields(index_tail);
  h_->tail.store(tail, release);
  h_->index_tail.store(index_tail, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Tape::follow(const uint64_t* entries, size_t n, const Snapshot& then, uint64_t trajectories,
                  const uint8_t* fields) {
  check_open();
  const uint64_t known = h_->index_head.load(relaxed);
  check_words(entries, n, n > 0 ? entries[EntryWords::number] : 0);
  reserve_chunks(then.index_tail, then.index_head);
  for (uint64_t place = 0; place < h_->reserved_chunks.load(relaxed); ++place)
    reserve_stamps(place, chunk_mask_ + 1);
  if (fields_.size() != 0 && fields != nullptr) {
    uint64_t changed = 0;
    for (size_t i = 0; i < n; ++i)
      changed += entries[i * EntryWords::count + EntryWords::number] < known ? 1 : 0;
    reserve_log(changed);
    if (changed > 0) reserve_evicted(trajectories);
  }
  h_->tail.store(then.tail, release);
  h_->index_tail.store(then.index_tail, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  map_chunks(then.index_tail, then.index_head);
  for (size_t i = 0; i < n; ++i, entries += EntryWords::count) {
    const uint64_t number = entries[EntryWords::number];
    if (fields_.size() != 0 && (fields != nullptr || number >= known))
      follow_fields(fields != nullptr ? fields + i * fields_.size() : nullptr, number,
                    number < known);
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
  check_open();
  const uint64_t stamps = check_words(entries, index_head - index_tail, index_tail);
  reserve_chunks(index_tail, index_head);
  for (uint64_t place = 0; place < h_->reserved_chunks.load(relaxed); ++place)
    reserve_stamps(place, stamps);
}

void Tape::restore(const Rows& rows, uint64_t tail, uint64_t head, const uint64_t* entries,
                   uint64_t index_tail, uint64_t index_head, uint64_t trajectories,
                   const uint8_t* fields, const SharedForm* form) {
  prepare(entries, index_tail, index_head);
  const bool records = rows.records != nullptr || rows.compact != nullptr;
  if (records) reserve_data(0, head > tail ? h_->capacity : 0);
  if (has_slots())
    plan_entries(records ? &rows : nullptr, tail, entries, index_head - index_tail, index_tail);
  // Their bytes get positions behind all that were given: nothing else knows the old ones.
  const uint64_t blob_head = h_->blob_head.load(relaxed);
  BlobRoom blobs;
  if (records && h_->blob_leaves != 0) {
    blobs = blob_room(rows);
    if (blobs.skip > 0)
      throw std::invalid_argument("restore: more bytes than the ring of bytes has");
    reserve_blobs(blob_head + blobs.bytes);
  }
  // Seqs become those of the checkpoint, so that priorities and indices still fit: for once they
  // may go back. Readers see it by `restores`, and repair by its being odd.
  h_->restores.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  h_->undo_head.store(kNone, release);
  // Before numbers of entries may go back.
  if (fields_.attached()) fields_.forget_evicted(h_->reserved_evicted.load(relaxed));
  if (has_slots()) give_slots();
  h_->tail.store(head, release);
  h_->index_tail.store(index_head, release);
  h_->index_head.store(index_head, release);
  h_->head.store(head, release);
  h_->mapped_index.store(index_tail >> chunk_shift_ << chunk_shift_, release);
  map_chunks(index_tail, index_head);
  h_->blob_head.store(blob_head + blobs.bytes, release);
  if (has_slots() && records) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    map_slots();
    copy_slots_in(rows, 0, tail);
    h_->slots_at.store(head, release);
  } else if (rows.compact != nullptr) {
    expand_in(*rows.compact, *form, rows.n, tail);
  } else if (records) {
    copy_in(rows, 0, tail);
  }
  if (records && h_->blob_leaves != 0) copy_blobs_in(rows, blobs, blob_head, tail);
  write_index(entries, index_head - index_tail, index_tail);
  if (fields_.size() != 0) fill_fields(fields, index_head - index_tail, index_tail);
  h_->trajectories.store(trajectories, release);
  h_->index_tail.store(index_tail, release);
  h_->tail.store(tail, release);
  h_->restores.fetch_add(1, std::memory_order_seq_cst);
  wake(h_->wake_word, h_->waiters);
}

}  // namespace contig
