// Keeping a mirror of the index, and reading trajectories from it.
#include "native/tape/view.h"

#include <algorithm>

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
}  // namespace

View::View(const Tape& tape)
    : tape_(tape),
      ring_(tape.header().capacity),
      places_(tape.header().capacity),
      hints_(tape.header().capacity) {}

// ---- keeping up ----------------------------------------------------------------------------

void View::refresh() {
  const uint64_t restores = tape_.header().restores.load(acquire);
  Snapshot s = tape_.snapshot();
  const bool fresh = restores != restores_ || s.index_head < seen_head_;
  restores_ = restores;
  if (fresh) seen_head_ = 0;
  if (stale()) s.head = s.index_head = 0;  // a checkpoint is being loaded: nothing to see yet
  const bool grew = s.head != at_.head;
  at_ = s;

  const uint64_t from = std::max(seen_head_, s.index_tail);
  scratch_.clear();
  for (uint64_t n = from; n < s.index_head; ++n) {
    EntryView e;
    read(n, &e);
    if (e.first >= s.head) break;  // not committed when head was loaded
    scratch_.push_back(seen(e));
  }
  std::atomic_thread_fence(acquire);
  at_.index_tail = tape_.header().index_tail.load(relaxed);
  if (fresh || at_.index_tail > seen_head_ || (seen_head_ == 0 && seen_tail_ == 0)) {
    rebuild(scratch_, from);
  } else {
    if (grew && seen_head_ > seen_tail_) grow_newest();
    take(scratch_, from);
  }
  cut_oldest();
  if (tape_.fields_changes() != fields_seen_) note_fields();
  at_.index_tail = std::max(at_.index_tail, seen_tail_);
  at_.index_head = seen_head_;
}

bool View::stale() const {
  std::atomic_thread_fence(acquire);
  const uint64_t restores = tape_.header().restores.load(relaxed);
  return restores != restores_ || restores % 2 != 0;
}

View::NewRun View::seen(const EntryView& e) const {
  const bool committed = e.first + e.steps <= at_.head;
  return NewRun{e, e.before + std::min(e.steps, at_.head - e.first),
                committed ? e.flags & kEnded : 0};
}

// Of all runs that were there, only the newest can have more rows now.
void View::grow_newest() {
  const uint64_t n = seen_head_ - 1;
  const uint32_t slot = slot_of(n);
  const uint64_t end = trajs_[slot].end, flags = trajs_[slot].flags;
  EntryView e;
  if (!read(n, &e)) {
    trajs_[slot].first = kNone;  // evicted, and nobody knows how long it was
  } else {
    place(n, slot, seen(e));
    hints_.note(n, e.first, e.steps);
    if (trajs_[slot].end == end && trajs_[slot].flags == flags) return;  // it has not
  }
  touch(n);
}

void View::place(uint64_t number, uint32_t slot, const NewRun& run) {
  Trajectory& t = trajs_[slot];
  t.last = number;
  t.end = run.end;
  t.flags = (t.flags & kBegins) | run.ended;
  if (run.entry.before == 0) t.flags |= run.entry.flags & kBegins;
  places_[number % ring_] = Place{slot, static_cast<uint32_t>(run.entry.steps)};
}

void View::take(const std::vector<NewRun>& runs, uint64_t from) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const EntryView& e = runs[i].entry;
    const uint64_t n = from + i;
    while (seen_tail_ + ring_ <= n) drop_run(seen_tail_++);
    uint32_t slot;
    const bool linked = e.prev != kNone && e.prev >= seen_tail_ && e.prev < n &&
                        trajs_[slot_of(e.prev)].ordinal == e.ordinal;
    if (linked) {
      slot = slot_of(e.prev);
    } else if (trajs_.empty() || e.ordinal > trajs_.back().ordinal) {
      slot = add_trajectory(e.ordinal);
      trajs_[slot].first = e.before;
    } else {
      // Its earlier runs came and went between two loads of this refresh: start over.
      seen_head_ = seen_tail_ = 0;
      refresh();
      return;
    }
    place(n, slot, runs[i]);
    hints_.note(n, e.first, e.steps);
    trajs_[slot].runs += 1;
    note_version(n, e.version);
    if (watches_versions_) versions_.add(e.version, linked ? e.prev : kNone);
    seen_head_ = n + 1;
    touch(n);
  }
  while (seen_tail_ < at_.index_tail && seen_tail_ < seen_head_) drop_run(seen_tail_++);
}

void View::rebuild(const std::vector<NewRun>& found, uint64_t from) {
  const uint64_t end = from + found.size();
  std::vector<std::pair<uint64_t, uint64_t>> runs;  // (ordinal, number)
  newest_.clear();
  hints_.clear();
  for (uint64_t n = std::max(from, at_.index_tail); n < end; ++n) {
    const EntryView& e = found[n - from].entry;
    hints_.note(n, e.first, e.steps);
    runs.emplace_back(e.ordinal, n);
    note_version(n, found[n - from].entry.version);
  }
  expect(runs.size());
  std::sort(runs.begin(), runs.end());
  trajs_.clear();
  alive_.clear();
  for (const auto& run : runs) {
    const NewRun& seen = found[run.second - from];
    if (trajs_.empty() || trajs_.back().ordinal != run.first) {
      trajs_.push_back(Trajectory{run.first});
      trajs_.back().first = seen.entry.before;
      alive_.push(1);
    }
    place(run.second, static_cast<uint32_t>(trajs_.size() - 1), seen);
    trajs_.back().runs += 1;
  }
  seen_head_ = std::max(end, at_.index_tail);
  seen_tail_ = std::min(at_.index_tail, seen_head_);
  work_ += runs.size();
  for (auto& l : ledgers_) l->forget();
  reset_filters();
  watches_versions_ = false;
}

// Rows below the tail are gone: those of runs that still are in the index, too.
void View::cut_oldest() {
  const uint64_t cut = cut_steps_;
  cut_steps_ = 0;
  for (EntryView e; seen_tail_ < seen_head_ && read(seen_tail_, &e); drop_run(seen_tail_++)) {
    if (e.first + e.steps <= at_.tail) continue;
    cut_slot_ = slot_of(seen_tail_);
    cut_steps_ = at_.tail > e.first ? at_.tail - e.first : 0;
    // Where it was another trajectory's, that one has lost a run since, and this one is cut anew.
    if (listing_ != 0 && cut_steps_ != 0 && (cut_steps_ != cut || seen_tail_ != cut_run_))
      note_change(cut_slot_, listing_);
    cut_run_ = seen_tail_;
    return;
  }
}

void View::note_version(uint64_t number, int64_t version) {
  // A run of no higher version before this one will never again be the newest.
  while (!newest_.empty() && newest_.back().second <= version) newest_.pop_back();
  newest_.emplace_back(number, version);
}

int64_t View::max_version() const {
  for (const auto& v : newest_)
    if (v.first >= at_.index_tail) return v.second;
  return -1;
}

void View::watch_versions() {
  if (watches_versions_) return;
  watches_versions_ = true;
  versions_.clear(seen_tail_);
  for (uint64_t n = seen_tail_; n < seen_head_; ++n) {
    EntryView e;  // torn if it was evicted meanwhile: then nobody will ask for it
    read(n, &e);
    versions_.add(e.version, e.prev == kNone || e.prev >= n ? kNone : e.prev);
  }
}

uint32_t View::add_trajectory(uint64_t ordinal) {
  if (trajs_.size() > 2 * alive_.total() + 64) compact();
  trajs_.push_back(Trajectory{ordinal});
  alive_.push(1);
  return static_cast<uint32_t>(trajs_.size() - 1);
}

void View::drop_run(uint64_t number) {
  if (!newest_.empty() && newest_.front().first <= number) newest_.pop_front();
  if (watches_versions_) versions_.drop();
  const Place& place = places_[number % ring_];
  const uint32_t slot = place.slot;
  Trajectory& t = trajs_[slot];
  touch(number);
  if (t.first != kNone) t.first += place.steps;
  if (--t.runs > 0) return;
  alive_.add(slot, ~0ull);
  if (t.passes != 0) forget_passes(&t);
  for (auto& l : ledgers_) l->died(t.ordinal);
}

void View::touch(uint64_t number) {
  if (listing_ != 0) note_change(slot_of(number), listing_);
  for (auto& l : ledgers_) l->touch(number, slot_of(number));
}

void View::compact() {
  expect(trajs_.size() + (seen_head_ - seen_tail_));
  std::vector<uint32_t> moved(trajs_.size()), kept;
  for (size_t i = 0; i < trajs_.size(); ++i) {
    moved[i] = static_cast<uint32_t>(kept.size());
    if (trajs_[i].runs == 0) continue;
    trajs_[kept.size()] = trajs_[i];
    kept.push_back(static_cast<uint32_t>(i));
  }
  for (uint64_t n = seen_tail_; n < seen_head_; ++n) places_[n % ring_].slot = moved[slot_of(n)];
  work_ += trajs_.size() + (seen_head_ - seen_tail_);
  trajs_.resize(kept.size());
  alive_.clear();
  for (size_t i = 0; i < kept.size(); ++i) alive_.push(1);
  for (auto& l : ledgers_) l->move(kept);
}

uint32_t View::select(uint64_t rank) const {
  uint64_t rest;
  return static_cast<uint32_t>(alive_.find(rank, &rest));
}

uint32_t View::slot_from(uint64_t ordinal) const {
  const auto at = std::lower_bound(trajs_.begin(), trajs_.end(), ordinal,
                                   [](const Trajectory& t, uint64_t o) { return t.ordinal < o; });
  return static_cast<uint32_t>(at - trajs_.begin());
}

uint64_t View::ordinal_of_newest(uint64_t k) const {
  const uint64_t live = alive_.total();
  if (live == 0) return 0;
  return trajs_[select(k >= live ? 0 : live - k)].ordinal;
}

Ledger& View::ledger(const Window& w, const SliceSpec& spec, bool rows) {
  constexpr size_t most = 4;  // questions at once: a sampler asks one for each batch size in use
  size_t at = 0;
  while (at < ledgers_.size() && !ledgers_[at]->answers(spec, rows, w.filters)) ++at;
  if (at == ledgers_.size()) {
    if (at == most) ledgers_.pop_back();
    ledgers_.push_back(std::make_unique<Ledger>(*this, spec, rows, w.filters));
    at = ledgers_.size() - 1;
  }
  std::rotate(ledgers_.begin(), ledgers_.begin() + static_cast<ptrdiff_t>(at),
              ledgers_.begin() + static_cast<ptrdiff_t>(at) + 1);
  ledgers_.front()->sync(w);
  return *ledgers_.front();
}

// ---- reading trajectories ------------------------------------------------------------------

bool View::usable(uint64_t number, const Window& w, EntryView* e) const {
  return number != kNone && number >= at_.index_tail && read(number, e) &&
         e->first + e->steps > std::max(at_.tail, w.min_seq) && e->version >= w.min_version;
}

bool View::earliest(uint64_t last, uint64_t low, EntryView* e) const {
  Window from;
  from.min_seq = low;
  if (!usable(last, from, e)) return false;
  for (EntryView p; usable(e->jump, from, &p) || usable(e->prev, from, &p);) *e = p;
  return true;
}

bool View::extent_of(uint32_t slot, const Window& w, Extent* out) const {
  const Trajectory& t = trajs_[slot];
  if (t.runs == 0 || t.ordinal < w.min_ordinal || !passes(t, w)) return false;
  out->last = t.last;
  out->ordinal = t.ordinal;
  out->end = t.end;
  out->ended = t.flags & kEnded;
  out->start = t.first + (slot == cut_slot_ ? cut_steps_ : 0);
  if (w.min_seq > at_.tail || t.first == kNone) {
    const uint64_t low = std::max(at_.tail, w.min_seq);
    EntryView e;
    if (!earliest(t.last, low, &e)) return false;
    out->start = e.before + (low > e.first ? low - e.first : 0);
  }
  if (!w.any_version()) {
    // Versions need not grow along a trajectory: it counts from the last run of a lower one on.
    const uint64_t below = versions_.last_below(t.last, w.min_version);
    if (below == t.last) return false;
    EntryView p;
    if (below != kNone && read(below, &p) && p.ordinal == t.ordinal)
      out->start = std::max(out->start, p.before + p.steps);
  }
  out->begins = (t.flags & kBegins) != 0 && out->start == 0;
  return out->start < out->end;
}

bool View::eligible(const Extent& x, const SliceSpec& spec) const {
  return (!spec.strict || x.end - x.start >= spec.length) &&
         (!spec.complete_only || (x.begins && x.ended != 0));
}

View::Cut View::cut_of(const Extent& x, const SliceSpec& spec) {
  // At least spec.length - span rows are kept, or all there are; a slice is never cut on both
  // sides.
  Cut cut;
  cut.length = std::min(spec.length, x.end - x.start);
  const auto allowed = [&](uint64_t span) {
    const uint64_t kept = spec.length - std::min(span, spec.length - 1);
    return cut.length > kept ? cut.length - kept : 0;
  };
  cut.left = allowed(spec.span_left);
  cut.right = allowed(spec.span_right);
  return cut;
}

uint64_t View::count_starts(const Extent& x, const SliceSpec& spec) {
  const Cut cut = cut_of(x, spec);
  return x.end - x.start - cut.length + 1 + cut.left + cut.right;
}

}  // namespace contig
