#include "native/queue/queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "native/kernels/copy.h"
#include "native/kernels/crc32c.h"
#include "native/sys/process.h"
#include "native/sys/wait.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release_order = std::memory_order_release;
constexpr size_t kPage = 4096, kGroup = 16;
constexpr uint64_t kFormat = 4;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

struct Places {
  uint64_t slots, producers, columns, schema, blocks, total;
};

// Throws unless every size is plausible, so that nothing below overflows.
Places places(const Queue::Spec& s) {
  constexpr uint64_t most = uint64_t{1} << 46;
  if (s.record_size == 0 || s.batch_size == 0 || s.num_slots == 0)
    throw std::invalid_argument("queue: sizes of at least 1");
  for (const uint64_t n : {s.record_size, s.batch_size, s.num_slots, s.block_bytes, s.schema_bytes,
                           static_cast<uint64_t>(s.columns.size())})
    if (n > most) throw std::invalid_argument("queue: too large");
  if (s.num_slots > most / std::max<uint64_t>(s.block_bytes, sizeof(QueueSlot)))
    throw std::invalid_argument("queue: too large");
  for (const QueueColumn& c : s.columns) {
    if (c.offset > s.record_size || c.bytes > s.record_size - c.offset)
      throw std::invalid_argument("queue: a leaf ends past the record");
    if (c.start > s.block_bytes ||
        (c.bytes > 0 && s.batch_size > (s.block_bytes - c.start) / c.bytes))
      throw std::invalid_argument("queue: a column ends past its block");
  }
  Places p;
  p.slots = round_up(sizeof(QueueHeader), 64);
  p.producers = round_up(p.slots + s.num_slots * sizeof(QueueSlot), 64);
  p.columns = round_up(p.producers + kProducers * sizeof(Producer), 64);
  p.schema = p.columns + s.columns.size() * sizeof(QueueColumn);
  p.blocks = round_up(p.schema + s.schema_bytes, kPage);
  p.total = p.blocks + s.num_slots * s.block_bytes;
  return p;
}

// What a header says, if it is that of a whole queue.
Queue::Spec read_spec(const QueueHeader& h, const uint8_t* memory, uint64_t bytes) {
  Queue::Spec s{h.record_size, h.batch_size, h.num_slots, h.block_bytes, h.schema_bytes, {}};
  constexpr uint64_t size = sizeof(QueueColumn);
  if (h.columns_offset <= bytes && h.n_columns <= (bytes - h.columns_offset) / size) {
    s.columns.resize(h.n_columns);
    // An empty vector has no place to copy to.
    if (h.n_columns > 0)
      std::memcpy(s.columns.data(), memory + h.columns_offset, h.n_columns * size);
  }
  const Places p = places(s);
  if (s.columns.size() != h.n_columns || h.total_bytes != p.total || p.total > bytes ||
      h.slots_offset != p.slots || h.producers_offset != p.producers ||
      h.columns_offset != p.columns || h.schema_offset != p.schema || h.blocks_offset != p.blocks)
    throw std::invalid_argument("a contig queue whose header does not fit its size");
  return s;
}

QueueHeader* header_of(uint8_t* memory, uint64_t bytes) {
  auto* h = reinterpret_cast<QueueHeader*>(memory);
  if (reinterpret_cast<uintptr_t>(memory) % alignof(QueueHeader) != 0)
    throw std::invalid_argument("queue: its memory must start at a multiple of 64");
  if (bytes < sizeof(QueueHeader) || h->magic != Queue::kMagic)
    throw std::invalid_argument("not a contig queue (magic)");
  if (h->format != kFormat)
    throw std::invalid_argument("queue format " + std::to_string(h->format) +
                                ", this contig has format " + std::to_string(kFormat) +
                                ": use one version of contig in all processes that share it");
  return h;
}
}  // namespace

uint64_t Queue::bytes_for(const Spec& s) { return places(s).total; }

void Queue::format(uint8_t* memory, const Spec& s, const char* schema) {
  const Places p = places(s);
  auto* h = new (memory) QueueHeader{};
  h->format = kFormat;
  h->record_size = s.record_size;
  h->batch_size = s.batch_size;
  h->num_slots = s.num_slots;
  h->n_columns = s.columns.size();
  h->total_bytes = p.total;
  h->block_bytes = s.block_bytes;
  h->slots_offset = p.slots;
  h->producers_offset = p.producers;
  h->columns_offset = p.columns;
  h->schema_offset = p.schema;
  h->schema_bytes = s.schema_bytes;
  h->blocks_offset = p.blocks;
  lock_init(h->lock);
  h->undo_head.store(kFreeSlot, relaxed);
  auto* slots = reinterpret_cast<QueueSlot*>(memory + p.slots);
  for (uint64_t i = 0; i < s.num_slots; ++i) slots[i].block.store(kFreeSlot, relaxed);
  std::copy(s.columns.begin(), s.columns.end(), reinterpret_cast<QueueColumn*>(memory + p.columns));
  std::memcpy(memory + p.schema, schema, s.schema_bytes);
  std::atomic_thread_fence(release_order);
  h->magic = kMagic;
}

Queue::Queue(uint8_t* memory, uint64_t bytes)
    : h_(header_of(memory, bytes)), spec_(read_spec(*h_, memory, bytes)) {
  if (!lock_is_sound(h_->lock)) throw std::invalid_argument("queue: its lock was overwritten");
  const Places p = places(spec_);
  slots_ = reinterpret_cast<QueueSlot*>(memory + p.slots);
  producers_ = Producers(reinterpret_cast<Producer*>(memory + p.producers), &h_->producer_clock);
  blocks_ = memory + p.blocks;
  schema_ = reinterpret_cast<const char*>(memory + p.schema);
  for (const QueueColumn& c : spec_.columns)
    if (c.bytes >= kPastCaches) large_.push_back(c);
  std::sort(large_.begin(), large_.end(),
            [](const QueueColumn& a, const QueueColumn& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < large_.size(); ++i)
    if (large_[i - 1].offset + large_[i - 1].bytes > large_[i].offset)
      throw std::invalid_argument("queue: leaves overlap");
}

void Queue::repair() {
  // An append that did not come to its commit point.
  if (h_->undo_head.load(acquire) == h_->head.load(relaxed)) {
    const uint64_t producer = h_->undo_producer.load(relaxed);
    if (producer < kProducers)
      producers_[producer].seq.store(h_->undo_seq.load(relaxed), release_order);
    h_->undo_head.store(kFreeSlot, release_order);
  }
  // A half full block that was taken: the next item starts the next one.
  const uint64_t end = h_->taken.load(relaxed) * spec_.batch_size, head = h_->head.load(relaxed);
  if (head < end) {
    h_->skipped.fetch_add(end - head, relaxed);
    h_->head.store(end, release_order);
  }
}

uint64_t Queue::items() const { return h_->head.load(relaxed) - h_->skipped.load(relaxed); }

bool Queue::held(uint64_t slot, uint64_t taken) const {
  const uint64_t block = slots_[slot].block.load(acquire);
  return block != kFreeSlot && block < taken;
}

uint64_t Queue::slot_of(uint64_t block) const {
  for (uint64_t i = 0; i < spec_.num_slots; ++i)
    if (slots_[i].block.load(acquire) == block) return i;
  return kFreeSlot;
}

// The slot of the block being filled, a free one if it has none yet; kFreeSlot: all are in use.
uint64_t Queue::slot_for(uint64_t block) {
  uint64_t slot = slot_of(block);
  if (slot != kFreeSlot) return slot;
  slot = slot_of(kFreeSlot);
  const uint64_t taken = h_->taken.load(relaxed);
  for (uint64_t i = 0; i < spec_.num_slots && slot == kFreeSlot; ++i)
    // Held by a consumer that is gone: nobody looks at it any more.
    if (held(i, taken) && process_gone(slots_[i].holder.load(relaxed))) slot = i;
  if (slot != kFreeSlot) slots_[slot].block.store(block, release_order);
  return slot;
}

bool Queue::has_room(uint64_t n) const {
  const uint64_t head = h_->head.load(relaxed), size = spec_.batch_size;
  const uint64_t first = head / size, last = (head + n - 1) / size;
  if (n == 0 || last - first >= spec_.num_slots) return n == 0;
  uint64_t free = 0, missing = 0;
  for (uint64_t i = 0; i < spec_.num_slots; ++i)
    free += slots_[i].block.load(acquire) == kFreeSlot ? 1 : 0;
  for (uint64_t block = first; block <= last; ++block)
    missing += slot_of(block) == kFreeSlot ? 1 : 0;
  return missing <= free;
}

// With a checksum to go on with: that of the records, in their order.
void Queue::scatter(uint8_t* block, uint64_t at, const uint8_t* records, uint64_t n,
                    uint32_t* crc) const {
  const uint8_t* rows[kGroup];
  for (uint64_t done = 0; done < n; done += kGroup) {
    const size_t count = std::min<uint64_t>(kGroup, n - done);
    for (size_t i = 0; i < count; ++i) rows[i] = records + (done + i) * spec_.record_size;
    for (const QueueColumn& c : spec_.columns)
      if (crc == nullptr || c.bytes < kPastCaches)
        store_leaf(block + c.start + (at + done) * c.bytes, rows, c.offset, c.bytes, count);
  }
  if (crc == nullptr) return;
  for (uint64_t i = 0; i < n; ++i) {
    const uint8_t* record = records + i * spec_.record_size;
    uint64_t summed = 0;
    for (const QueueColumn& c : large_) {
      *crc = crc32c(*crc, record + summed, c.offset - summed);
      *crc = crc32c_store(*crc, block + c.start + (at + i) * c.bytes, record + c.offset, c.bytes);
      summed = c.offset + c.bytes;
    }
    *crc = crc32c(*crc, record + summed, spec_.record_size - summed);
  }
}

// Copies records to their places behind `head`, as far as there are; where that ends.
uint64_t Queue::store(uint64_t head, const uint8_t* records, uint64_t n, uint64_t now,
                      uint32_t* crc) {
  const uint64_t size = spec_.batch_size;
  uint64_t at = head;
  while (n > 0) {
    const uint64_t slot = slot_for(at / size);
    if (slot == kFreeSlot) break;
    const uint64_t count = std::min(n, size - at % size);
    if (at % size == 0) slots_[slot].first_ns.store(now, relaxed);
    scatter(block(slot), at % size, records, count, crc);
    records += count * spec_.record_size;
    at += count;
    n -= count;
  }
  return at;
}

// What was stored counts, as items `first`... of the producer.
void Queue::commit(uint64_t producer, uint64_t first, uint64_t head, uint64_t to) {
  if (producer != kNoProducer) {
    const uint64_t number = producers_.take(producer, first);
    Producer& p = producers_[number];
    h_->undo_producer.store(number, relaxed);
    h_->undo_seq.store(p.seq.load(relaxed), relaxed);
    h_->undo_head.store(head, release_order);
    std::atomic_thread_fence(release_order);
    producers_.use(number);
    p.seq.store(first + (to - head), release_order);
  }
  h_->head.store(to, release_order);
  const uint64_t size = spec_.batch_size;
  if (to / size != head / size) wake(h_->data_word, h_->data_waiters);
}

Queue::Accepted Queue::accept(uint64_t producer, uint64_t first, const uint8_t* records, uint64_t n,
                              uint64_t next) {
  Accepted out{first + n, 0, false, false};
  if (producer != kNoProducer) {
    const uint64_t seen = this->seen(producer, std::max(first, next));
    if (first > seen) {
      out.seen = seen;
      out.gap = true;
      return out;
    }
    const uint64_t again = std::min(seen - first, n);
    h_->duplicates.fetch_add(again, relaxed);
    records += again * spec_.record_size;
    first += again;
    n -= again;
    if (n == 0) {
      out.seen = seen;
      return out;
    }
  }
  const uint64_t head = h_->head.load(relaxed), began = now_ns();
  const uint64_t to = store(head, records, n, began, nullptr);
  out.added = to - head;
  out.full = out.added < n;
  out.seen = first + out.added;
  if (out.full) h_->blocked.fetch_add(1, relaxed);
  if (out.added == 0) return out;
  commit(producer, first, head, to);
  h_->memcpy_ns.add(now_ns() - began);
  return out;
}

bool Queue::accept_summed(uint64_t producer, uint64_t first, const uint8_t* records, uint64_t n,
                          uint32_t crc) {
  const uint64_t head = h_->head.load(relaxed), began = now_ns();
  uint32_t found = 0;
  const uint64_t to = store(head, records, n, began, &found);
  if (to != head + n || found != crc) return false;
  commit(producer, first, head, to);
  h_->memcpy_ns.add(now_ns() - began);
  return true;
}

uint64_t Queue::seen(uint64_t producer, uint64_t next) {
  return producers_.find(producer) == kProducers
             ? next
             : producers_[producers_.take(producer, next)].seq.load(relaxed);
}

void Queue::skip(uint64_t producer, uint64_t next) {
  const uint64_t number = producers_.find(producer);
  if (number == kProducers) return;  // it is not known, and goes on where it says
  Producer& p = producers_[number];
  if (p.seq.load(relaxed) < next) p.seq.store(next, release_order);
}

bool Queue::take(bool partial, uint64_t holder, Taken* out) {
  const uint64_t head = h_->head.load(relaxed), size = spec_.batch_size;
  const uint64_t block = h_->taken.load(relaxed);
  const uint64_t there = head - std::min(head, block * size);
  if (there < size && (!partial || there == 0)) return false;
  out->slot = slot_of(block);
  if (out->slot == kFreeSlot)
    throw std::runtime_error("the queue's memory was overwritten: a batch is not in it");
  out->rows = std::min(there, size);
  QueueSlot& slot = slots_[out->slot];
  h_->queue_dwell.add(now_ns() - slot.first_ns.load(relaxed));
  slot.holder.store(holder, relaxed);
  h_->taken.store(block + 1, release_order);
  repair();
  uint64_t others = 0;
  for (uint64_t i = 0; i < spec_.num_slots; ++i) others += held(i, block) ? 1 : 0;
  out->last_free = others + 1 == spec_.num_slots;
  return true;
}

void Queue::release(uint64_t slot) {
  slots_[slot].block.store(kFreeSlot, release_order);
  wake(h_->space_word, h_->space_waiters);
}

}  // namespace contig
