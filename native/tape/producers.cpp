#include "native/tape/producers.h"

#include <stdexcept>
#include <string>

#include "native/sys/errors.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto release = std::memory_order_release;
}  // namespace

uint64_t Producers::find(uint64_t id) {
  const auto slot_of = [&] {
    const auto known = slots_.find(id);
    if (known == slots_.end()) return kProducers;
    return table_[known->second].id.load(relaxed) == id ? known->second : kProducers;
  };
  const uint64_t slot = slot_of();
  if (slot != kProducers) return slot;
  look_through();
  return slot_of();
}

// Ids are compared, which is quick; only slots that changed hands are entered again.
void Producers::look_through() {
  for (uint64_t i = 0; i < kProducers; ++i) {
    const uint64_t id = table_[i].id.load(relaxed);
    if (id == 0) break;
    if (i == ids_.size()) ids_.push_back(0);
    if (ids_[i] == id) continue;
    const auto before = slots_.find(ids_[i]);
    if (before != slots_.end() && before->second == i) slots_.erase(before);
    ids_[i] = id;
    slots_[id] = i;
  }
}

uint64_t Producers::slot_for_new() const {
  uint64_t oldest = kProducers;
  for (uint64_t i = 0; i < kProducers; ++i) {
    const uint64_t there = table_[i].id.load(relaxed);
    if (there == 0 || there == kNobody) return i;
    if (table_[i].pinned.load(relaxed) != 0) continue;
    if (oldest == kProducers || table_[i].used.load(relaxed) < table_[oldest].used.load(relaxed))
      oldest = i;
  }
  if (oldest == kProducers)
    throw Overload("all " + std::to_string(kProducers) + " producers are connected");
  return oldest;
}

uint64_t Producers::take(uint64_t id, uint64_t seq) {
  const uint64_t slot = find(id);
  if (slot != kProducers) {
    if (table_[slot].pinned.load(relaxed) == 0) table_[slot].pinned.store(1, release);
    return slot;
  }
  const uint64_t mine = slot_for_new();
  Producer& p = table_[mine];
  use(mine);
  // Never 0 in between: a free slot ends the search for those behind it. While it changes hands it
  // belongs to nobody.
  p.id.store(kNobody, release);
  p.seq.store(seq, release);
  p.pinned.store(1, release);
  p.id.store(id, release);
  return mine;
}

void Producers::use(uint64_t slot) {
  clock_->store(clock_->load(relaxed) + 1, release);
  table_[slot].used.store(clock_->load(relaxed), release);
}

void Producers::leave(uint64_t id) {
  const uint64_t slot = find(id);
  if (slot == kProducers || table_[slot].pinned.load(relaxed) == 0) return;
  use(slot);
  table_[slot].pinned.store(0, release);
}

void Producers::leave_all() {
  for (uint64_t i = 0; i < kProducers && table_[i].id.load(relaxed) != 0; ++i) {
    if (table_[i].pinned.load(relaxed) == 0) continue;
    use(i);
    table_[i].pinned.store(0, release);
  }
}

}  // namespace contig
