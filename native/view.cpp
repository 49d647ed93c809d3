// Keeping a mirror of the index, and reading trajectories from it.
#include "view.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr uint64_t kEnded = kTerminated | kTruncated;

uint32_t* zeroed(uint64_t n) {  // calloc: untouched stretches cost no memory
  auto* p = static_cast<uint32_t*>(std::calloc(n, sizeof(uint32_t)));
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

View::View(const Tape& tape)
    : tape_(tape),
      ring_(tape.header().capacity),
      slot_of_(zeroed(tape.header().capacity), std::free) {
  compact();
}

// ---- keeping up ----------------------------------------------------------------------------

void View::refresh() {
  const uint64_t restores = tape_.header().restores.load(acquire);
  Snapshot s = tape_.snapshot();
  const bool fresh = restores != restores_ || s.index_head < seen_head_;
  restores_ = restores;
  if (fresh) seen_head_ = 0;
  if (stale()) s.head = s.index_head = 0;  // a checkpoint is being loaded: nothing to see yet

  const uint64_t from = std::max(seen_head_, s.index_tail);
  scratch_.clear();
  for (uint64_t n = from; n < s.index_head; ++n) {
    EntryView e;
    tape_.read_entry(n, &e);
    if (e.first >= s.head) break;  // not committed when head was loaded
    scratch_.push_back(NewRun{e.ordinal, e.prev, e.version});
  }
  std::atomic_thread_fence(acquire);
  s.index_tail = tape_.header().index_tail.load(relaxed);
  at_ = s;
  if (fresh || s.index_tail > seen_head_ || (seen_head_ == 0 && seen_tail_ == 0))
    rebuild(scratch_, from);
  else
    take(scratch_, from);
  at_.index_head = seen_head_;
}

bool View::stale() const {
  std::atomic_thread_fence(acquire);
  const uint64_t restores = tape_.header().restores.load(relaxed);
  return restores != restores_ || restores % 2 != 0;
}

void View::take(const std::vector<NewRun>& runs, uint64_t from) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const uint64_t n = from + i, ordinal = runs[i].ordinal, prev = runs[i].prev;
    while (seen_tail_ + ring_ <= n) drop_run(seen_tail_++);
    uint32_t slot;
    if (prev != kNone && prev >= seen_tail_ && prev < n &&
        trajs_[slot_of_[prev % ring_]].ordinal == ordinal) {
      slot = slot_of_[prev % ring_];
    } else if (trajs_.empty() || ordinal > trajs_.back().ordinal) {
      slot = add_trajectory(ordinal);
    } else {
      // Its earlier runs came and went between two loads of this refresh: start over.
      seen_head_ = seen_tail_ = 0;
      refresh();
      return;
    }
    slot_of_[n % ring_] = slot;
    trajs_[slot].last = n;
    trajs_[slot].runs += 1;
    note_version(n, runs[i].version);
    seen_head_ = n + 1;
  }
  while (seen_tail_ < at_.index_tail && seen_tail_ < seen_head_) drop_run(seen_tail_++);
}

void View::rebuild(const std::vector<NewRun>& found, uint64_t from) {
  const uint64_t end = from + found.size();
  std::vector<std::pair<uint64_t, uint64_t>> runs;  // (ordinal, number)
  versions_.clear();
  for (uint64_t n = std::max(from, at_.index_tail); n < end; ++n) {
    runs.emplace_back(found[n - from].ordinal, n);
    note_version(n, found[n - from].version);
  }
  std::sort(runs.begin(), runs.end());
  trajs_.clear();
  live_ = 0;
  for (const auto& run : runs) {
    if (trajs_.empty() || trajs_.back().ordinal != run.first) {
      trajs_.push_back(Trajectory{run.first, 0, 0});
      ++live_;
    }
    trajs_.back().last = run.second;
    trajs_.back().runs += 1;
    slot_of_[run.second % ring_] = static_cast<uint32_t>(trajs_.size() - 1);
  }
  seen_head_ = std::max(end, at_.index_tail);
  seen_tail_ = std::min(at_.index_tail, seen_head_);
  pass_head_ = kNone;
  compact();
}

void View::note_version(uint64_t number, int64_t version) {
  // A run of no higher version before this one will never again be the newest.
  while (!versions_.empty() && versions_.back().second <= version) versions_.pop_back();
  versions_.emplace_back(number, version);
}

int64_t View::max_version() const {
  for (const auto& v : versions_)
    if (v.first >= at_.index_tail) return v.second;
  return -1;
}

uint32_t View::add_trajectory(uint64_t ordinal) {
  if (trajs_.size() + 1 >= fenwick_.size()) compact();
  trajs_.push_back(Trajectory{ordinal, 0, 0});
  const auto slot = static_cast<uint32_t>(trajs_.size() - 1);
  count(slot, 1);
  ++live_;
  return slot;
}

void View::drop_run(uint64_t number) {
  if (!versions_.empty() && versions_.front().first <= number) versions_.pop_front();
  Trajectory& t = trajs_[slot_of_[number % ring_]];
  if (--t.runs == 0) {
    count(slot_of_[number % ring_], -1);
    --live_;
  }
}

void View::compact() {
  std::vector<uint32_t> moved(trajs_.size());
  size_t kept = 0;
  for (size_t i = 0; i < trajs_.size(); ++i) {
    moved[i] = static_cast<uint32_t>(kept);
    if (trajs_[i].runs > 0) trajs_[kept++] = trajs_[i];
  }
  if (kept != trajs_.size())
    for (uint64_t n = seen_tail_; n < seen_head_; ++n)
      slot_of_[n % ring_] = moved[slot_of_[n % ring_]];
  trajs_.resize(kept);
  size_t size = 64;
  while (size < 2 * kept) size *= 2;
  fenwick_.assign(size + 1, 0);
  for (size_t i = 1; i <= size; ++i) {  // every kept trajectory is alive
    fenwick_[i] += i <= kept ? 1 : 0;
    const size_t parent = i + (i & (~i + 1));
    if (parent <= size) fenwick_[parent] += fenwick_[i];
  }
}

void View::count(uint32_t slot, int delta) {
  for (size_t i = slot + 1; i < fenwick_.size(); i += i & (~i + 1))
    fenwick_[i] = static_cast<uint32_t>(static_cast<int64_t>(fenwick_[i]) + delta);
}

uint32_t View::select(uint64_t rank) const {
  size_t at = 0;
  for (size_t step = fenwick_.size() - 1; step > 0; step /= 2)
    if (at + step < fenwick_.size() && fenwick_[at + step] <= rank) {
      at += step;
      rank -= fenwick_[at];
    }
  return static_cast<uint32_t>(at);
}

uint64_t View::ordinal_of_newest(uint64_t k) const {
  if (live_ == 0) return 0;
  return trajs_[select(k >= live_ ? 0 : live_ - k)].ordinal;
}

// ---- reading trajectories ------------------------------------------------------------------

bool View::usable(uint64_t number, const Window& w, EntryView* e) const {
  return number != kNone && number >= at_.index_tail && tape_.read_entry(number, e) &&
         e->first + e->steps > std::max(at_.tail, w.min_seq) && e->version >= w.min_version;
}

bool View::extent_of(uint64_t last, const Window& w, Extent* out) const {
  EntryView e;
  if (!usable(last, w, &e) || e.first >= at_.head || e.ordinal < w.min_ordinal) return false;
  out->last = last;
  out->ordinal = e.ordinal;
  out->end = e.before + std::min(e.steps, at_.head - e.first);
  out->ended = e.first + e.steps <= at_.head ? e.flags & kEnded : 0;
  const bool skip = w.min_version == INT64_MIN;  // versions need not grow along a trajectory
  for (EntryView p;;) {
    if (skip && usable(e.jump, w, &p))
      e = p;
    else if (usable(e.prev, w, &p))
      e = p;
    else
      break;
  }
  const uint64_t low = std::max(at_.tail, w.min_seq);
  out->start = e.before + (low > e.first ? low - e.first : 0);
  out->begins = (e.flags & kBegins) != 0 && out->start == 0;
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

bool View::find_row(uint64_t seq, EntryView* e, uint64_t* number) const {
  // The last entry with first <= seq. Guessed from the mean run length, which is right at once for
  // runs of one size; every third step halves, so that it is O(log n) for any. What is read here
  // may be torn: only the entry it ends with is checked.
  uint64_t low = at_.index_tail, high = seen_head_;
  if (low >= high) return false;
  uint64_t low_first = tape_.first_of(low), high_first = at_.head;
  for (int step = 0; high - low > 1; ++step) {
    uint64_t mid = low + (high - low) / 2;
    if (step % 3 != 2 && low_first <= seq && seq < high_first) {
      const double share =
          static_cast<double>(seq - low_first) / static_cast<double>(high_first - low_first);
      mid = low + static_cast<uint64_t>(share * static_cast<double>(high - low));
      mid = std::min(std::max(mid, low + 1), high - 1);
    }
    const uint64_t first = tape_.first_of(mid);
    if (first <= seq) {
      low = mid;
      low_first = first;
    } else {
      high = mid;
      high_first = first;
    }
  }
  *number = low;
  return tape_.read_entry(low, e) && e->first <= seq && seq < e->first + e->steps;
}

bool View::run_holding(uint64_t last, uint64_t step, EntryView* e) const {
  if (!tape_.read_entry(last, e)) return false;
  while (step < e->before) {
    EntryView p;
    if (e->jump != kNone && e->jump >= at_.index_tail && tape_.read_entry(e->jump, &p) &&
        step < p.before + p.steps)
      *e = p;
    else if (e->prev != kNone && e->prev >= at_.index_tail && tape_.read_entry(e->prev, &p))
      *e = p;
    else
      return false;
  }
  return true;
}

bool View::emit_steps(const Extent& x, uint64_t a, uint64_t b, uint64_t burn, Slices* out) const {
  const size_t base = out->seqs.size();
  EntryView e;
  if (!run_holding(x.last, b - 1, &e)) return false;
  out->seqs.resize(base + (b - a));
  for (uint64_t upto = b;;) {  // run by run, from the slice's end to its start
    const uint64_t low = std::max(a, e.before);
    for (uint64_t step = low; step < upto; ++step)
      out->seqs[base + (step - a)] = static_cast<int64_t>(e.first + (step - e.before));
    if (low == a) break;
    upto = low;
    EntryView p;
    if (e.prev == kNone || e.prev < at_.index_tail || !tape_.read_entry(e.prev, &p) ||
        p.before + p.steps != e.before) {
      out->seqs.resize(base);
      return false;
    }
    e = p;
  }
  out->lengths.push_back(static_cast<int64_t>(b - a));
  out->burn.push_back(static_cast<int64_t>(burn));
  out->ends.push_back(b == x.end ? static_cast<int64_t>(x.ended) : 0);
  return true;
}

bool View::emit(const Extent& x, uint64_t choice, const SliceSpec& spec, Slices* out) const {
  const Cut cut = cut_of(x, spec);
  const uint64_t shifted = x.start + choice;  // by cut.left, which keeps it unsigned
  uint64_t a = shifted > x.start + cut.left ? shifted - cut.left : x.start;
  const uint64_t b = std::min(shifted + cut.length - cut.left, x.end);
  const uint64_t burn = std::min(spec.burn_in, a - x.start);
  a -= burn;
  return emit_steps(x, a, b, burn, out);
}

}  // namespace contig
