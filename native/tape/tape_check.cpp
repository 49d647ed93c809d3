// Whether a tape's memory can be what its writers left. It may be shared, and a stray write of some
// process must not end all those that attach to it, nor give them rows that are none.
//
// What never changes has checksums. Bounds and counters have to fit together, and to the newest and
// the oldest entry. Places in memory are bounded where they are used, too: a word may be
// overwritten at any time.
#include <vector>

#include "native/kernels/crc32c.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr double kPatience_s = 1;
constexpr uint64_t kMostBytes = uint64_t{1} << 62;

uint64_t crc_between(const void* from, const void* to) {
  const auto *first = static_cast<const uint8_t*>(from), *last = static_cast<const uint8_t*>(to);
  return crc32c(0, first, static_cast<size_t>(last - first));
}

// Whether chunks [from, to) have places of their own, all of which have memory.
template <class PlaceOf>
bool has_places(uint64_t from, uint64_t to, uint64_t reserved, PlaceOf place_of) {
  std::vector<bool> taken(reserved, false);
  for (uint64_t chunk = from; chunk < to; ++chunk) {
    const uint64_t place = place_of(chunk);
    if (place >= reserved || taken[place]) return false;
    taken[place] = true;
  }
  return true;
}
}  // namespace

Damaged::Damaged(const std::string& what)
    : std::runtime_error("the memory of this storage was overwritten: " + what +
                         ". Its rows cannot be trusted: make another storage, and load a "
                         "checkpoint if there is one") {}

uint64_t shape_crc(const Header& h) { return crc_between(&h.capacity, &h.ready); }

uint64_t published_crc(const Header& h) { return crc_between(&h.schema_offset, &h.published_crc); }

void Tape::check_published() const {
  if (ready() && h_->published_crc != published_crc(*h_))
    throw Damaged("where its rows are does not fit together");
}

void Tape::check_bounds() const {
  if (const char* what = flaw_of_bounds()) throw Damaged(what);
}

void Tape::check_state() {
  if (!lock_is_sound(h_->lock)) throw Damaged("its lock is none");
  if (flaw() == nullptr) return;
  // Or somebody is in the middle of an append. Who holds the lock for so long may be stopped there.
  if (!lock_until(h_->lock, kPatience_s)) return;
  struct Release {
    Lock& lock;
    ~Release() { lock_release(lock); }
  } release{h_->lock};
  repair();
  if (const char* what = flaw()) throw Damaged(what);
}

const char* Tape::flaw() const {
  const uint64_t head = h_->head.load(acquire), ready = h_->ready.load(acquire);
  if (ready > 1 || (ready == 0 && head != 0)) return "it has rows, and no schema";
  if (h_->restores.load(acquire) % 2 != 0) return nullptr;  // a checkpoint is being taken in
  const char* what = flaw_of_bounds();
  // Rows in files have an index of one process.
  if (what != nullptr || (ready != 0 && h_->row_crc != 0)) return what;
  what = flaw_of_index();
  if (what != nullptr || data_ == nullptr) return what;
  if (h_->reserved_extents.load(relaxed) > n_extents_) return "it has memory for too many rows";
  if (ring_.data != nullptr) what = flaw_of_blobs();
  if (what == nullptr && has_slots()) what = flaw_of_slots();
  if (what == nullptr && fields_.attached() &&
      (h_->reserved_log.load(relaxed) > fields_.log_length() ||
       h_->reserved_evicted.load(relaxed) > fields_.log_length()))
    what = "it has memory for too many changes of fields";
  return what;
}

const char* Tape::flaw_of_bounds() const {
  const Snapshot s = load_bounds();
  if (s.tail > s.head || s.head - s.tail > h_->capacity) return "its oldest and newest row";
  if (s.index_tail > s.index_head || s.index_head - s.index_tail > h_->capacity)
    return "its oldest and newest index entry";
  const uint64_t mapped = h_->mapped_index.load(relaxed);
  if ((mapped & chunk_mask_) != 0 || mapped < s.index_head ||
      (mapped >> chunk_shift_) - (s.index_tail >> chunk_shift_) > map_length_)
    return "how far its index has places";
  if (h_->reserved_chunks.load(relaxed) > map_length_) return "how much of its index has memory";
  return nullptr;
}

const char* Tape::flaw_of_index() const {
  const Snapshot s = load_bounds();
  if (h_->trajectories.load(relaxed) > kMostOrdinals) return "how many trajectories it has had";
  if (s.index_tail == s.index_head)
    return s.tail == s.head ? nullptr : "it has rows without index entries";
  const auto place_of = [this](uint64_t chunk) { return map_[slot_of_chunk(chunk)].load(relaxed); };
  if (!has_places(s.index_tail >> chunk_shift_, ((s.index_head - 1) >> chunk_shift_) + 1,
                  h_->reserved_chunks.load(relaxed), place_of))
    return "where parts of its index are";
  EntryView oldest, newest;
  read_entry(s.index_tail, &oldest);
  read_entry(s.index_head - 1, &newest);
  if (oldest.first > s.tail || s.tail >= oldest.first + oldest.steps)
    return "its oldest index entry is not that of its oldest row";
  if (newest.first + newest.steps != s.head)
    return "its newest index entry is not that of its newest row";
  if (static_cast<int64_t>(newest.ordinal) >= static_cast<int64_t>(h_->trajectories.load(relaxed)))
    return "it has had more trajectories than it counted";
  return nullptr;
}

const char* Tape::flaw_of_blobs() const {
  const uint64_t head = h_->head.load(acquire), tail = h_->tail.load(acquire);
  const uint64_t given = h_->blob_head.load(relaxed);
  if (h_->reserved_blobs.load(relaxed) > ring_.size) return "how many bytes have memory";
  if (given > kMostBytes) return "how many bytes were given";
  if (tail >= head) return nullptr;
  const BlobPlace last = load_place(row(head - 1) + form_.stored(blob_leaves_.back().offset));
  if (last.bytes > ring_.size || last.position > given || last.bytes > given - last.position)
    return "its newest row has bytes that were not given";
  return nullptr;
}

const char* Tape::flaw_of_slots() const {
  const SlotShape& shape = slots_.shape();
  const uint64_t next = slot_head(), before = h_->slots_before.load(relaxed);
  const uint64_t most = shape.places << shape.chunk_shift;
  const uint64_t tail = h_->slot_tail.load(relaxed), mapped = h_->mapped_slots.load(relaxed);
  const uint64_t after = h_->slots_after.load(relaxed);
  if (before > after || after - before > most || tail > next) return "how many slots were given";
  const uint64_t first = slots_.chunk_of(tail);
  if (mapped < first || mapped - first > shape.places ||
      (next > 0 && mapped <= slots_.chunk_of(next - 1)))
    return "how far its slots have places";
  if (h_->reserved_places.load(relaxed) > shape.places) return "how many slots have memory";
  if (!has_places(first, mapped, h_->reserved_places.load(relaxed),
                  [this](uint64_t chunk) { return slots_.map()[chunk].load(relaxed); }))
    return "where its slots are";
  if (form_.encoded()) {
    const uint64_t end = encoded_head(), there = h_->mapped_encoded.load(relaxed);
    if (h_->encoded_before.load(relaxed) > h_->encoded_after.load(relaxed) ||
        there > kMostBytes >> shape.encoded_shift ||
        (end > 0 && there <= slots_.chunk_of_encoded(end - 1)) ||
        h_->reserved_encoded.load(relaxed) > shape.encoded_places)
      return "where the bytes of its slots are";
  }
  // References are the low words of slots that were given already.
  const uint64_t head = h_->head.load(acquire);
  if (h_->tail.load(acquire) >= head) return nullptr;
  for (uint64_t j = 0; j < form_.references(); ++j) {
    uint32_t low;
    copy_fixed<4>(reinterpret_cast<uint8_t*>(&low), row(head - 1) + 4 * j);
    if (static_cast<uint32_t>(next - 1) - low >= most)
      return "its newest row refers to slots that were not given";
  }
  return nullptr;
}

}  // namespace contig
