// Reading a tape's bounds and index, without the lock.
#include "tape.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
}  // namespace

Snapshot Tape::snapshot() const {
  Snapshot s;
  s.head = h_->head.load(acquire);
  s.tail = h_->tail.load(acquire);
  s.index_tail = h_->index_tail.load(acquire);
  s.index_head = h_->index_head.load(acquire);
  return s;
}

bool Tape::read_entry(uint64_t number, EntryView* out) const {
  const Entry& e = entry(number);
  out->first = e.first.load(relaxed);
  const uint64_t sf = e.steps_flags.load(acquire);
  out->steps = sf >> kFlagBits;
  out->flags = sf & kFlagMask;
  out->prev = e.prev.load(relaxed);
  out->jump = e.jump.load(relaxed);
  out->before = e.before.load(relaxed);
  out->ordinal = e.ordinal.load(relaxed);
  out->version = static_cast<int64_t>(e.version.load(relaxed));
  std::atomic_thread_fence(acquire);
  return number >= h_->index_tail.load(relaxed);
}

Tape::Read Tape::read_entry_words(uint64_t number, uint64_t h, uint64_t out[16]) const {
  const Entry& e = entry(number);
  const auto* fields = reinterpret_cast<const Word*>(&e);
  const uint64_t loaded = h;
  for (int tries = 0; tries < 1000; ++tries) {
    const uint64_t sf = e.steps_flags.load(acquire);
    for (int i = 0; i < 16; ++i) out[i] = fields[i].load(acquire);
    out[1] = sf;
    const uint64_t again = e.steps_flags.load(acquire);
    std::atomic_thread_fence(acquire);
    if (number < h_->index_tail.load(relaxed)) return Read::gone;
    if (out[0] >= h) return Read::gone;  // not committed when h was loaded
    if (sf == again && out[0] + (sf >> kFlagBits) <= h) return h == loaded ? Read::ok : Read::grew;
    h = h_->head.load(acquire);  // it is growing: start again
  }
  return Read::unsettled;
}

}  // namespace contig
