#include "native/tape/fields.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "native/sys/wait.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

constexpr uint64_t kFirstEvicted = 64;  // places that get memory with the first change

// Calls f(offset, bytes) for the leaves of a mask.
template <class F>
void each_leaf(const FieldLeaves& leaves, uint64_t mask, F f) {
  for (size_t i = 0; i < leaves.size() && mask >> i != 0; ++i)
    if ((mask >> i & 1) != 0) f(leaves[i].first, leaves[i].second);
}
}  // namespace

void Fields::attach(uint8_t* memory, uint64_t size, uint64_t chunk_shift, uint64_t places) {
  size_ = size;
  words_ = rounded(size) / 8;
  slot_words_ = slot_bytes(size) / 8;
  chunk_shift_ = chunk_shift;
  log_mask_ = log_length(chunk_shift, places) - 1;
  log_ = reinterpret_cast<Word*>(memory);
  evicted_ = log_ + log_length();
  slots_ = log_ + slots_offset(size, chunk_shift, places) / sizeof(Word);
  if (leaves_.empty()) leaves_ = {{0, size}};
}

void Fields::set_leaves(FieldLeaves leaves) {
  if (leaves.empty() || leaves.size() > kMostFieldLeaves)
    throw std::invalid_argument("fields: expected 1 to 64 leaves");
  for (const auto& leaf : leaves)
    if (leaf.first > size_ || leaf.second > size_ - leaf.first)
      throw std::invalid_argument("fields: a leaf ends past the record");
  leaves_ = std::move(leaves);
}

void Fields::copy(const Word* slot, uint64_t generation, uint8_t* out) const {
  const Word* words = slot + 1 + (generation & 1) * words_;
  for (uint64_t i = 0; i < words_; ++i) {
    const uint64_t word = words[i].load(relaxed);
    std::memcpy(out + 8 * i, &word, 8);
  }
}

void Fields::store(Word* slot, uint64_t generation, const uint8_t* record) const {
  Word* words = slot + 1 + (generation & 1) * words_;
  for (uint64_t i = 0; i < words_; ++i) {
    uint64_t word;
    std::memcpy(&word, record + 8 * i, 8);
    words[i].store(word, relaxed);
  }
}

void Fields::read(const Word* slot, uint8_t* out) const {
  for (uint64_t g = slot->load(acquire);;) {
    copy(slot, g, out);
    std::atomic_thread_fence(acquire);
    const uint64_t again = slot->load(relaxed);
    if (again == g) return;
    g = again;
    std::atomic_thread_fence(acquire);
  }
}

void Fields::fill(Word* slot, const uint8_t* record) const {
  store(slot, 0, record);
  slot->store(0, release);
}

void Fields::change(Word* slot, const uint8_t* record) const {
  const uint64_t g = generation(slot);
  // Who sees a word of it sees the generation before it, too: then that copy does not count.
  std::atomic_thread_fence(release);
  store(slot, g + 1, record);
  slot->store(g + 1, release);
}

void Fields::save_evicted(uint64_t ordinal, uint64_t number, const Word* slot) const {
  Word* place = evicted(evicted_place(ordinal));
  if (place[0].load(relaxed) != 0 && place[1].load(relaxed) > ordinal) return;
  // Killed in between, it is this run's, which is not evicted then and will be saved again.
  place[0].store(number + 1, relaxed);
  place[1].store(ordinal, relaxed);
  std::atomic_thread_fence(release);
  const Word* words = slot + 1 + (generation(slot) & 1) * words_;
  for (uint64_t i = 0; i < words_; ++i) place[2 + i].store(words[i].load(relaxed), relaxed);
}

bool Fields::read_evicted(uint64_t ordinal, uint64_t number, uint8_t* out) const {
  const Word* place = evicted(evicted_place(ordinal));
  if (place[0].load(relaxed) != number + 1) return false;
  for (uint64_t i = 0; i < words_; ++i) {
    const uint64_t word = place[2 + i].load(relaxed);
    std::memcpy(out + 8 * i, &word, 8);
  }
  return true;
}

void Fields::forget_evicted(uint64_t places) const {
  for (uint64_t i = 0; i < places; ++i) evicted(i)[0].store(0, relaxed);
}

void Fields::overlay(uint8_t* record, const uint8_t* given, uint64_t mask) const {
  each_leaf(leaves_, mask,
            [&](uint64_t at, uint64_t n) { std::memcpy(record + at, given + at, n); });
}

bool Fields::differs(const uint8_t* record, const uint8_t* given, uint64_t mask) const {
  bool out = false;
  each_leaf(leaves_, mask, [&](uint64_t at, uint64_t n) {
    out = out || std::memcmp(record + at, given + at, n) != 0;
  });
  return out;
}

void Fields::note(Word& count, uint64_t number) const {
  const uint64_t n = count.load(relaxed);
  log_[n & log_mask_].store(number, release);  // after the count that it makes false
  count.store(n + 1, release);
}

bool Fields::noted(const Word& count, uint64_t since, uint64_t* now,
                   std::vector<uint64_t>* out) const {
  *now = count.load(acquire);
  if (since == *now) return true;
  if (since > *now || *now - since >= log_length()) return false;
  const size_t before = out->size();
  for (uint64_t i = since; i < *now; ++i) out->push_back(log_[i & log_mask_].load(relaxed));
  std::atomic_thread_fence(acquire);
  // The next one may be half noted: its place has the oldest of those that are counted.
  if (count.load(relaxed) - since < log_length()) return true;
  out->resize(before);
  return false;
}

// ---- of a tape -----------------------------------------------------------------------------

void Tape::attach_fields(uint8_t* memory) {
  fields_.attach(memory, h_->fields_size, chunk_shift_, map_length_);
}

Word* Tape::fields_slot(uint64_t number) const {
  return fields_.slot(place_of(number >> chunk_shift_), number & chunk_mask_);
}

bool Tape::read_fields(uint64_t number, uint8_t* out) const {
  if (number >= h_->index_head.load(acquire)) return false;
  if (number < h_->index_tail.load(acquire)) return false;
  fields_.read(fields_slot(number), out);
  std::atomic_thread_fence(acquire);
  return number >= h_->index_tail.load(relaxed);
}

bool Tape::changes_fields(uint64_t number, const Run& run) const {
  std::vector<uint8_t> now(fields_.room());
  fields_.current(fields_slot(number), now.data());
  return fields_.differs(now.data(), run.fields, run.field_mask);
}

void Tape::keep_fields(Track* track) const {
  fields_.current(fields_slot(track->last_entry), track->record(fields_.room()));
}

void Tape::save_fields(uint64_t index_tail) {
  if (!fields_.attached() || h_->fields_changes.load(relaxed) == 0) return;
  const uint64_t places = std::min(h_->reserved_evicted.load(relaxed), fields_.log_length());
  for (uint64_t number = h_->index_tail.load(relaxed); number < index_tail; ++number) {
    const Word* slot = fields_slot(number);
    if (!fields_.changed(slot)) continue;
    const uint64_t ordinal = ordinal_of(entry(number).ordinal_rank.load(relaxed));
    // Not of a stand-in for a damaged one, with which nobody goes on.
    if (ordinal >= kMostOrdinals || fields_.evicted_place(ordinal) >= places) continue;
    fields_.save_evicted(ordinal, number, slot);
  }
  // Before the tails are stored: a run that is gone has its fields saved.
  std::atomic_thread_fence(release);
}

uint8_t* Tape::take_fields(const Run& run, uint64_t index_tail) {
  Track& t = *run.track;
  uint8_t* record = t.record(fields_.room());  // if it goes on, what it was; else zeros
  if (t.last_entry != kNone && t.last_entry >= index_tail)
    fields_.current(fields_slot(t.last_entry), record);
  else if (t.last_entry != kNone &&
           fields_.evicted_place(t.ordinal) < h_->reserved_evicted.load(relaxed))
    fields_.read_evicted(t.ordinal, t.last_entry, record);
  fields_.overlay(record, run.fields, run.field_mask);
  return record;
}

void Tape::reserve_evicted(uint64_t ordinal) {
  const uint64_t have = h_->reserved_evicted.load(relaxed), length = fields_.log_length();
  const uint64_t needed = std::min(ordinal, length - 1) + 1;
  if (needed <= have) return;
  uint64_t want = std::max(have, kFirstEvicted);
  while (want < needed) want *= 2;
  const uint64_t bytes = Fields::evicted_bytes(h_->fields_size);
  allocate(h_->fields_offset + length * sizeof(Word) + have * bytes, (want - have) * bytes,
           "fields of trajectories");
  h_->reserved_evicted.store(want, release);
}

void Tape::write_fields(uint64_t number, const uint8_t* given, uint64_t mask) {
  check_open();
  std::vector<uint8_t> record(fields_.room());
  fields_.current(fields_slot(number), record.data());
  if (!fields_.differs(record.data(), given, mask)) return;
  reserve_log(1);
  reserve_evicted(ordinal_of(entry(number).ordinal_rank.load(relaxed)));
  fields_.overlay(record.data(), given, mask);
  h_->fields_pending.store(number + 1, release);
  fields_.change(fields_slot(number), record.data());
  fields_.note(h_->fields_changes, number);
  h_->fields_pending.store(0, release);
}

void Tape::fill_fields(const uint8_t* records, uint64_t n, uint64_t base) {
  std::vector<uint8_t> record(fields_.room());
  for (uint64_t i = 0; i < n; ++i) {
    if (records != nullptr)
      std::memcpy(record.data(), records + i * fields_.size(), fields_.size());
    fields_.fill(fields_slot(base + i), record.data());
  }
}

void Tape::follow_fields(const uint8_t* record, uint64_t number, bool known) {
  if (!known)
    fill_fields(record, 1, number);
  else
    write_fields(number, record, ~uint64_t{0});
}

void Tape::repair_fields() {
  // A handle that has not seen the schema yet leaves it to the next.
  if (!fields_.attached()) return;
  fields_.note(h_->fields_changes, h_->fields_pending.load(relaxed) - 1);
  h_->fields_pending.store(0, release);
}

void Tape::fields_changed() { wake(h_->wake_word, h_->waiters); }

}  // namespace contig
