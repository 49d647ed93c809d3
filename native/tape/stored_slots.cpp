#include "native/tape/stored_slots.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include "native/kernels/crc32c.h"
#include "native/sys/bus_guard.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr size_t kAhead = 4;  // rows in flight

uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

uint32_t ring_sum(const BlobRing& ring, uint64_t position, uint64_t bytes, uint32_t crc) {
  const uint64_t at = position % ring.size, first = std::min(bytes, ring.size - at);
  crc = crc32c(crc, ring.data + at, first);
  return first < bytes ? crc32c(crc, ring.data, bytes - first) : crc;
}

// Grey frames, the last axis: one byte of each in turn. So many frames that loops have no end to
// look for: they go by vectors.
template <size_t Frames>
void mix_frames(const uint8_t* const* frames, uint64_t n, uint8_t* __restrict to) {
  for (uint64_t i = 0; i < n; ++i)
    for (size_t f = 0; f < Frames; ++f) to[i * Frames + f] = frames[f][i];
}

void put_observation(const SharedLeaf& leaf, const uint8_t* const* slots, uint8_t* to) {
  slots += leaf.first;
  if (leaf.inner == 1 && leaf.frames >= 2 && leaf.frames <= 4) {
    const uint8_t* frames[4];
    for (uint64_t f = 0; f < leaf.frames; ++f) frames[f] = slots[f] + leaf.at;
    const auto mix = leaf.frames == 2   ? mix_frames<2>
                     : leaf.frames == 3 ? mix_frames<3>
                                        : mix_frames<4>;
    mix(frames, leaf.frame_bytes, to);
    return;
  }
  for (uint64_t f = 0; f < leaf.frames; ++f) SharedForm::put_frame(leaf, slots[f] + leaf.at, f, to);
}

void put_record(const SharedForm& form, const uint8_t* stored, const uint8_t* const* slots,
                uint8_t* record) {
  for (const KeptLeaf& leaf : form.kept())
    copy_bytes(record + leaf.offset, stored + leaf.stored, leaf.bytes);
  for (const SharedLeaf& leaf : form.leaves()) {
    put_observation(leaf, slots, record + leaf.offset);
    if (form.paired()) put_observation(leaf, slots + form.stack(), record + leaf.next_offset);
  }
}

// Of a row, where its slots are in the ring. One at most lies across its end: that is copied.
bool slots_of(const Tape& tape, uint64_t seq, std::vector<uint8_t>* across, const uint8_t** slots) {
  StoredSlots found;
  const BlobRing& ring = tape.blobs();
  // It was checked, but its file may be another one by now.
  if (!found.find(tape.form(), tape.row(seq)) || found.slot_bytes > ring.size) return false;
  for (size_t j = 0; j < found.count; ++j) {
    const uint64_t position = found.numbers[j] * found.slot_bytes, at = position % ring.size;
    slots[j] = ring.data + at;
    if (ring.size - at >= found.slot_bytes) continue;
    across->resize(found.slot_bytes);
    ring.read(position, found.slot_bytes, across->data());
    slots[j] = across->data();
  }
  return true;
}
}  // namespace

uint64_t record_end(const SharedForm& form) {
  uint64_t end = 0;
  for (const KeptLeaf& leaf : form.kept()) end = std::max(end, leaf.offset + leaf.bytes);
  for (const SharedLeaf& leaf : form.leaves()) {
    end = std::max(end, leaf.offset + leaf.bytes);
    if (form.paired()) end = std::max(end, leaf.next_offset + leaf.bytes);
  }
  return end;
}

void Tape::attach_stored_slots(SharedForm form, uint64_t reach) {
  if (!form || form.encoded() || form.references() > StoredSlots::kMost || reach == 0 ||
      reach > UINT32_MAX / 2 || record_end(form) > h_->record_size ||
      h_->blob_ring < form.slot_bytes() || h_->row_stride < stored_bytes(form) + 8)
    throw std::invalid_argument("attach_stored_slots: the tape has no room for such rows");
  form_ = std::move(form);
  reach_ = reach;
}

uint64_t Tape::stored_size() const { return form_ ? stored_bytes(form_) : h_->record_size; }

const SlotPlan& Tape::plan_stored(const Append& a, const SlotReader& older) {
  const uint64_t position = h_->blob_head.load(std::memory_order_relaxed);
  if (position % form_.slot_bytes() != 0) throw std::logic_error("slots: bytes of something else");
  const Room r = find_room(a);
  plan_.start(&form_, nullptr, r.head, position / form_.slot_bytes(), 0, reach_);
  plan_.read_through(&older);
  plan_runs(a, r);
  return plan_;
}

const uint8_t* RingSlots::slot(uint64_t number) const {
  const auto found = read_.find(number);
  if (found != read_.end()) return found->second.get();
  std::unique_ptr<uint8_t[]>& copy = read_[number];
  copy = std::unique_ptr<uint8_t[]>(new uint8_t[bytes_]);
  uint8_t* to = copy.get();
  if (!unless_cut([&] { ring_.read(number * bytes_, bytes_, to); })) copy.reset();
  return copy.get();
}

bool StoredSlots::find(const SharedForm& form, const uint8_t* record) {
  count = form.references();
  slot_bytes = form.slot_bytes();
  own = load_place(record + stored_place(form));
  if (count > kMost || own.position % slot_bytes != 0 || own.bytes % slot_bytes != 0 ||
      own.bytes / slot_bytes > count || own.position + own.bytes < own.position)
    return false;
  own_first = own.position / slot_bytes;
  const uint64_t end = own_first + own.bytes / slot_bytes;
  for (size_t j = 0; j < count; ++j) {
    // So many before the first that later rows have; 2^32 would be the same as none.
    const uint32_t back = static_cast<uint32_t>(end) - word_at(record + 4 * j);
    if (back == 0 || back > end) return false;
    numbers[j] = end - back;
  }
  return true;
}

bool StoredSlots::inside(uint64_t base, uint64_t bytes) const {
  const auto there = [&](uint64_t position, uint64_t size) {
    return position >= base && position - base <= bytes && size <= bytes - (position - base);
  };
  for (size_t j = 0; j < count; ++j)
    if (!there(numbers[j] * slot_bytes, slot_bytes)) return false;
  return own.bytes == 0 || there(own.position, own.bytes);
}

bool slots_whole(const Tape& tape, uint64_t seq) {
  const uint8_t* row = tape.row(seq);
  const uint64_t size = stored_bytes(tape.form());
  uint32_t crc = tape.sums().of(seq, row, size);
  StoredSlots found;
  if (crc != word_at(row + size) || !found.find(tape.form(), row)) return false;
  const BlobRing& ring = tape.blobs();
  if (found.own.bytes > ring.size || found.slot_bytes > ring.size) return false;
  crc = ring_sum(ring, found.own.position, found.own.bytes, crc);
  found.others(
      [&](uint64_t slot) { crc = ring_sum(ring, slot * found.slot_bytes, found.slot_bytes, crc); });
  return crc == word_at(row + size + 4);
}

void read_slots_ahead(const Tape& tape, uint64_t seq) {
#if defined(__linux__) || defined(__APPLE__)
  constexpr uintptr_t page = 4096;
  const BlobRing& ring = tape.blobs();
  StoredSlots found;
  bool known = false;
  if (!unless_cut([&] { known = found.find(tape.form(), tape.row(seq)); }) || !known) return;
  const auto ask = [&](uint64_t position, uint64_t bytes) {
    const uint64_t at = position % ring.size, first = at / page * page;
    madvise(ring.data + first, std::min(bytes, ring.size - at) + at - first, MADV_WILLNEED);
  };
  if (found.own.bytes > 0 && found.own.bytes <= ring.size) ask(found.own.position, found.own.bytes);
  found.others([&](uint64_t slot) { ask(slot * found.slot_bytes, found.slot_bytes); });
#else
  (void)tape, (void)seq;
#endif
}

void ask_for_slots(const Tape& tape, uint64_t seq) {
  StoredSlots found;
  if (!found.find(tape.form(), tape.row(seq))) return;
  for (size_t j = 0; j < found.count; ++j)
    if (j == 0 || found.numbers[j] != found.numbers[j - 1])
      tape.blobs().prefetch(found.numbers[j] * found.slot_bytes, found.slot_bytes);
}

uint64_t gather_stored_slots(const Tape& tape, const int64_t* seqs, size_t n,
                             const SlotTarget* targets, size_t n_targets) {
  const SharedForm& form = tape.form();
  thread_local std::vector<uint8_t> across;
  const uint8_t* slots[StoredSlots::kMost];
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) ask_for_slots(tape, static_cast<uint64_t>(seqs[i + kAhead]));
    const bool known = slots_of(tape, static_cast<uint64_t>(seqs[i]), &across, slots);
    for (size_t t = 0; t < n_targets; ++t) {
      const SharedLeaf& leaf = form.leaves()[targets[t].leaf];
      uint8_t* to = targets[t].column + i * leaf.bytes;
      if (known)
        put_observation(leaf, slots + (targets[t].next ? form.stack() : 0), to);
      else
        std::memset(to, 0, leaf.bytes);
    }
  }
  return tail_after(tape);
}

uint64_t gather_stored_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out) {
  thread_local std::vector<uint8_t> across;
  const uint8_t* slots[StoredSlots::kMost];
  const uint64_t size = tape.record_size();
  if (n > 0) std::memset(out, 0, n * size);
  volatile size_t at = 0;  // for when the file of a row was cut: it stays zeros
  const auto copy = [&] {
    for (size_t i = at; i < n; ++i) {
      at = i;
      const auto seq = static_cast<uint64_t>(seqs[i]);
      if (slots_of(tape, seq, &across, slots))
        put_record(tape.form(), tape.row(seq), slots, out + i * size);
    }
  };
  while (!unless_cut(copy)) at = at + 1;
  return tail_after(tape);
}

}  // namespace contig
