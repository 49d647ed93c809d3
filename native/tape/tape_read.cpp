// Reading a tape's bounds and index, without the lock.
#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;

// A link leads back, never round: who follows links comes to an end.
uint64_t linked(uint64_t number, uint64_t distance) {
  return distance != 0 && distance <= number ? number - distance : kNone;
}
}  // namespace

Snapshot Tape::load_bounds() const {
  Snapshot s;
  s.head = h_->head.load(acquire);
  s.tail = h_->tail.load(acquire);
  s.index_tail = h_->index_tail.load(acquire);
  s.index_head = h_->index_head.load(acquire);
  return s;
}

Snapshot Tape::snapshot() const {
  Snapshot s = load_bounds();
  // More than it can have: writers went on between two loads, or a stray write has been there. What
  // does not change while the tails stay as they are is no writer's.
  for (int tries = 0; tries < 1000; ++tries) {
    const bool rows = s.head > s.tail && s.head - s.tail > h_->capacity;
    const bool runs = s.index_head > s.index_tail && s.index_head - s.index_tail > h_->capacity;
    if ((!rows && !runs) || h_->restores.load(acquire) % 2 != 0) break;
    const Snapshot again = load_bounds();
    if (tries > 0 && again.tail == s.tail && again.index_tail == s.index_tail)
      throw Damaged("it has more rows than its capacity");
    s = again;
  }
  return s;
}

bool Tape::read_entry(uint64_t number, EntryView* out) const {
  const Entry& e = entry(number);
  out->first = e.first.load(relaxed);
  const uint64_t sf = e.steps_flags.load(acquire);
  out->steps = run_rows(sf);
  out->flags = sf & kFlagMask;
  const uint64_t links = e.links.load(relaxed);
  out->prev = linked(number, links >> 32);
  out->jump = linked(number, links & UINT32_MAX);
  out->before = e.before_stamp.load(relaxed) >> kStampBits;
  out->ordinal = ordinal_of(e.ordinal_rank.load(relaxed));
  out->version = static_cast<int64_t>(e.version.load(relaxed));
  std::atomic_thread_fence(acquire);
  return number >= h_->index_tail.load(relaxed);
}

}  // namespace contig
