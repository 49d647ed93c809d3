#include "queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "copy.h"
#include "wait.h"

#if defined(__linux__) || defined(__APPLE__)
#include <cerrno>
#include <csignal>
#endif

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release_order = std::memory_order_release;
constexpr size_t kPage = 4096, kGroup = 16;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

bool dead(uint64_t pid) {
#if defined(__linux__) || defined(__APPLE__)
  return pid != 0 && kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
#else
  (void)pid;
  return false;
#endif
}

struct Places {
  uint64_t slots, producers, columns, schema, blocks, total;
};

Places places(const Queue::Spec& s) {
  Places p;
  p.slots = round_up(sizeof(QueueHeader), 64);
  p.producers = round_up(p.slots + s.num_slots * sizeof(QueueSlot), 64);
  p.columns = round_up(p.producers + kProducers * sizeof(Producer), 64);
  p.schema = p.columns + s.columns.size() * sizeof(QueueColumn);
  p.blocks = round_up(p.schema + s.schema_bytes, kPage);
  p.total = p.blocks + s.num_slots * s.block_bytes;
  return p;
}
}  // namespace

uint64_t Queue::bytes_for(const Spec& s) { return places(s).total; }

void Queue::format(uint8_t* memory, const Spec& s, const char* schema) {
  const Places p = places(s);
  auto* h = new (memory) QueueHeader{};
  h->format = 1;
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
    : memory_(memory), h_(reinterpret_cast<QueueHeader*>(memory)) {
  if (bytes < sizeof(QueueHeader) || h_->magic != kMagic)
    throw std::invalid_argument("not a contig queue (magic)");
  if (h_->format != 1 || h_->total_bytes > bytes)
    throw std::invalid_argument("a contig queue of another format or size");
}

void Queue::repair() {
  if (h_->undo_head.load(acquire) != h_->head.load(relaxed)) return;
  const uint64_t producer = h_->undo_producer.load(relaxed);
  if (producer < kProducers)
    producers()[producer].seq.store(h_->undo_seq.load(relaxed), release_order);
  h_->undo_head.store(kFreeSlot, release_order);
}

uint64_t Queue::slot_of(uint64_t block, bool make) {
  QueueSlot* slots = this->slots();
  uint64_t free = kFreeSlot;
  for (uint64_t i = 0; i < h_->num_slots; ++i) {
    const uint64_t there = slots[i].block.load(acquire);
    if (there == block) return i;
    if (there == kFreeSlot && free == kFreeSlot) free = i;
  }
  if (!make) return kFreeSlot;
  for (uint64_t i = 0; i < h_->num_slots && free == kFreeSlot; ++i)
    // Held by a consumer that is gone: nobody looks at it any more.
    if (slots[i].pins.load(acquire) != 0 && dead(slots[i].holder.load(relaxed))) {
      slots[i].pins.store(0, relaxed);
      free = i;
    }
  if (free != kFreeSlot) slots[free].block.store(block, release_order);
  return free;
}

void Queue::scatter(uint8_t* block, uint64_t at, const uint8_t* records, uint64_t n) const {
  const QueueColumn* columns = this->columns();
  const uint8_t* rows[kGroup];
  for (uint64_t done = 0; done < n; done += kGroup) {
    const size_t count = std::min<uint64_t>(kGroup, n - done);
    for (size_t i = 0; i < count; ++i) rows[i] = records + (done + i) * h_->record_size;
    for (uint64_t c = 0; c < h_->n_columns; ++c) {
      const QueueColumn& col = columns[c];
      copy_leaf(block + col.start + (at + done) * col.bytes, rows, col.offset, col.bytes, count);
    }
  }
}

Queue::Accepted Queue::accept(uint64_t producer, uint64_t first, const uint8_t* records,
                              uint64_t n) {
  Accepted out{first + n, 0, false, false};
  uint64_t number = kProducers;
  if (producer != kNoProducer) {
    number = take_producer(producers(), producer, first);
    const uint64_t seen = producers()[number].seq.load(relaxed);
    if (first > seen) {
      out.seen = seen;
      out.gap = true;
      return out;
    }
    const uint64_t again = std::min(seen - first, n);
    h_->duplicates.fetch_add(again, relaxed);
    records += again * h_->record_size;
    first += again;
    n -= again;
    if (n == 0) {
      out.seen = seen;
      return out;
    }
  }
  const uint64_t head = h_->head.load(relaxed), size = h_->batch_size, began = now_ns();
  uint64_t at = head;
  while (n > 0) {
    const uint64_t slot = slot_of(at / size, true);
    if (slot == kFreeSlot) break;
    const uint64_t count = std::min(n, size - at % size);
    if (at % size == 0) slots()[slot].first_ns.store(began, relaxed);
    scatter(block(slot), at % size, records, count);
    records += count * h_->record_size;
    at += count;
    n -= count;
  }
  out.full = n > 0;
  out.added = at - head;
  out.seen = first + out.added;
  if (out.full) h_->blocked.fetch_add(1, relaxed);
  if (out.added == 0) return out;
  if (number < kProducers) {
    Producer& p = producers()[number];
    h_->undo_producer.store(number, relaxed);
    h_->undo_seq.store(p.seq.load(relaxed), relaxed);
    h_->undo_head.store(head, release_order);
    std::atomic_thread_fence(release_order);
    p.used.store(at, release_order);
    p.seq.store(out.seen, release_order);
  }
  h_->head.store(at, release_order);
  h_->memcpy_ns.add(now_ns() - began);
  if (at / size != head / size) wake(h_->data_word, h_->data_waiters);
  return out;
}

uint64_t Queue::seen(uint64_t producer, uint64_t next) {
  const uint64_t number = take_producer(producers(), producer, next);
  Producer& p = producers()[number];
  p.used.store(h_->head.load(relaxed), relaxed);
  return p.seq.load(relaxed);
}

void Queue::skip(uint64_t producer, uint64_t next) {
  Producer& p = producers()[take_producer(producers(), producer, next)];
  if (p.seq.load(relaxed) < next) p.seq.store(next, release_order);
}

bool Queue::take(bool partial, uint64_t pid, Taken* out) {
  const uint64_t head = h_->head.load(relaxed), size = h_->batch_size;
  const uint64_t block = h_->taken.load(relaxed);
  const uint64_t there = head - std::min(head, block * size);
  if (there < size && (!partial || there == 0)) return false;
  out->slot = slot_of(block, false);
  out->rows = std::min(there, size);
  QueueSlot& slot = slots()[out->slot];
  h_->queue_dwell.add(now_ns() - slot.first_ns.load(relaxed));
  slot.holder.store(pid, relaxed);
  slot.pins.store(1, release_order);
  h_->taken.store(block + 1, release_order);
  uint64_t held = 0;
  for (uint64_t i = 0; i < h_->num_slots; ++i) held += slots()[i].pins.load(relaxed) != 0 ? 1 : 0;
  out->last_free = held == h_->num_slots;
  return true;
}

void Queue::release(uint64_t slot) {
  slots()[slot].pins.store(0, relaxed);
  slots()[slot].block.store(kFreeSlot, release_order);
  wake(h_->space_word, h_->space_waiters);
}

}  // namespace contig
