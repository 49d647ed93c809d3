// Reading a tape's bounds and index, without the lock.
#include "native/tape/tape.h"

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
  out->steps = run_rows(sf);
  out->flags = sf & kFlagMask;
  const uint64_t links = e.links.load(relaxed);
  out->prev = links >> 32 != 0 ? number - (links >> 32) : kNone;
  out->jump = (links & UINT32_MAX) != 0 ? number - (links & UINT32_MAX) : kNone;
  out->before = e.before_stamp.load(relaxed) >> kStampBits;
  out->ordinal = ordinal_of(e.ordinal_rank.load(relaxed));
  out->version = static_cast<int64_t>(e.version.load(relaxed));
  std::atomic_thread_fence(acquire);
  return number >= h_->index_tail.load(relaxed);
}

}  // namespace contig
