// Trajectories that a predicate is to be asked for, and what came of it.
#include <algorithm>

#include "native/tape/view.h"

namespace contig {

namespace {
constexpr size_t kMostFilters = 64;  // a bit each
// Reads of the index from a new start, because writers went on meanwhile, before a trajectory is
// left for later.
constexpr int kOvertaken = 64;
using Changed = ChangedTrajectories;
}  // namespace

uint64_t View::add_filter(bool follows, const std::vector<uint64_t>& ages) {
  size_t at = 0;
  while (at < filters_.size() && filters_[at].used) ++at;
  if (at == kMostFilters) throw std::length_error("a buffer has room for 64 predicates");
  if (at == filters_.size()) filters_.emplace_back();
  Filter& f = filters_[at];
  f = Filter{};
  f.used = f.all = true;
  f.follows = follows;
  for (const uint64_t rows : ages) f.ages.push_back(Filter::Age{rows, seen_tail_});
  return at;
}

void View::drop_filter(uint64_t filter) {
  filters_.at(filter) = Filter{};
  const uint64_t bit = uint64_t{1} << filter;
  listing_ &= ~bit;
  for (Trajectory& t : trajs_) {
    t.passes &= ~bit;
    t.changed &= ~bit;
  }
  const auto asks = [&](const std::unique_ptr<Ledger>& l) { return (l->filters() & bit) != 0; };
  ledgers_.erase(std::remove_if(ledgers_.begin(), ledgers_.end(), asks), ledgers_.end());
}

void View::look_again(uint64_t filter) {
  Filter& f = filters_.at(filter);
  f.all = true;
  f.changed.clear();
  listing_ &= ~(uint64_t{1} << filter);
}

void View::reset_filters() {
  for (size_t i = 0; i < filters_.size(); ++i) {
    if (!filters_[i].used) continue;
    look_again(i);
    filters_[i].passing = 0;
    for (Filter::Age& age : filters_[i].ages) age.next = seen_tail_;
  }
}

void View::note_change(uint32_t slot, uint64_t filters) {
  Trajectory& t = trajs_[slot];
  uint64_t left = filters & listing_ & ~t.changed;
  for (size_t i = 0; left != 0; ++i, left >>= 1) {
    if ((left & 1) == 0) continue;
    t.changed |= uint64_t{1} << i;
    filters_[i].changed.push_back(t.ordinal);
    // Whoever does not ask for so long is told to look at everything.
    if (filters_[i].changed.size() > 2 * trajs_.size() + 64) look_again(i);
  }
}

void View::note_fields() {
  std::vector<uint64_t> runs;
  const uint64_t since = fields_seen_;
  fields_seen_ = tape_.fields_changes();
  if (tape_.fields_size() == 0 || !tape_.changed_fields(since, &fields_seen_, &runs)) {
    for (size_t i = 0; i < filters_.size(); ++i)
      if (filters_[i].follows) look_again(i);
    return;
  }
  expect(runs.size());
  work_ += runs.size();
  // Runs that are not known yet are new when they come.
  for (const uint64_t n : runs)
    if (n >= seen_tail_ && n < seen_head_) note_change(slot_of(n), listing_);
}

void View::forget_passes(Trajectory* t) {
  for (size_t i = 0; t->passes != 0; ++i, t->passes >>= 1)
    if ((t->passes & 1) != 0) --filters_[i].passing;
}

void View::pass_ages(uint64_t filter) {
  for (Filter::Age& age : filters_[filter].ages) {
    if (at_.head < age.rows) continue;
    uint64_t n = std::max(age.next, seen_tail_);
    for (; n < seen_head_; ++n) {
      EntryView e;
      if (read(n, &e) && std::min(e.first + e.steps, at_.head) > at_.head - age.rows) break;
      if (const uint32_t slot = slot_of(n); trajs_[slot].last == n)
        note_change(slot, uint64_t{1} << filter);
    }
    age.next = n;
  }
}

bool View::describe(uint32_t slot, Changed* out) const {
  Extent x;
  uint64_t words[EntryWords::count];
  expect(1);
  ++work_;
  if (!extent_of(slot, Window{}, &x)) return false;
  if (tape_.read_entry_words(x.last, at_.head, words) != Tape::Read::ok) return false;
  const uint64_t end = words[EntryWords::first] + run_rows(words[EntryWords::steps_flags]);
  const auto put = [&](Changed::Column column, uint64_t value) {
    out->columns[column].push_back(static_cast<int64_t>(value));
  };
  put(Changed::ordinal, x.ordinal);
  put(Changed::steps, x.end - x.start);
  put(Changed::flags, x.ended | (x.begins ? kBegins : uint64_t{0}));
  put(Changed::version, words[EntryWords::version]);
  put(Changed::ret, words[EntryWords::ret]);
  put(Changed::age, at_.head - end);
  put(Changed::last, x.last);
  put(Changed::time_ns, words[EntryWords::time_ns]);
  return true;
}

bool View::changed_trajectories(uint64_t filter, Changed* out) {
  const uint64_t bit = uint64_t{1} << filter;
  for (int tries = 0;; ++tries) {
    pass_ages(filter);
    Filter& f = filters_.at(filter);
    if (!f.all && f.changed.empty()) return false;
    *out = Changed{};
    out->all = f.all;
    f.handed.clear();
    f.left.clear();
    const auto look = [&](uint32_t slot) {
      if (describe(slot, out))
        f.handed.push_back(trajs_[slot].ordinal);
      else
        f.left.push_back(trajs_[slot].ordinal);
    };
    if (f.all) {
      for (size_t slot = 0; slot < trajs_.size(); ++slot)
        if (trajs_[slot].runs > 0) look(static_cast<uint32_t>(slot));
    } else {
      for (const uint64_t ordinal : f.changed) {
        const uint32_t slot = slot_from(ordinal);
        if (slot < trajs_.size() && trajs_[slot].ordinal == ordinal && trajs_[slot].runs > 0)
          look(slot);
        else
          out->gone.push_back(static_cast<int64_t>(ordinal));
      }
    }
    if (f.left.empty() || tries == kOvertaken) break;
    refresh();  // they have grown or gone since: from a new start
  }
  for (const uint64_t ordinal : filters_[filter].left) trajs_[slot_from(ordinal)].changed |= bit;
  return true;
}

bool View::describe_trajectories(const int64_t* ordinals, size_t n, Changed* out) const {
  for (size_t i = 0; i < n; ++i) {
    const auto ordinal = static_cast<uint64_t>(ordinals[i]);
    const uint32_t slot = slot_from(ordinal);
    if (slot >= trajs_.size() || trajs_[slot].ordinal != ordinal || trajs_[slot].runs == 0)
      return false;
    if (!describe(slot, out)) return false;
  }
  return true;
}

void View::judge(uint64_t filter, const bool* passes, size_t n) {
  Filter& f = filters_.at(filter);
  if (n != f.handed.size())
    throw std::invalid_argument("as many verdicts as trajectories were handed out");
  const uint64_t bit = uint64_t{1} << filter;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t slot = slot_from(f.handed[i]);
    if (slot == trajs_.size() || trajs_[slot].ordinal != f.handed[i]) continue;
    trajs_[slot].changed &= ~bit;
    set_pass(slot, filter, passes[i]);
  }
  f.changed.swap(f.left);
  f.handed.clear();
  f.all = false;
  listing_ |= f.follows ? bit : 0;
}

void View::set_passes(uint64_t filter, const int64_t* ordinals, const bool* passes, size_t n) {
  filters_.at(filter);
  for (size_t i = 0; i < n; ++i) {
    const auto ordinal = static_cast<uint64_t>(ordinals[i]);
    const uint32_t slot = slot_from(ordinal);
    if (slot < trajs_.size() && trajs_[slot].ordinal == ordinal && trajs_[slot].runs > 0)
      set_pass(slot, filter, passes[i]);
  }
}

void View::set_pass(uint32_t slot, uint64_t filter, bool passes) {
  const uint64_t bit = uint64_t{1} << filter;
  Trajectory& t = trajs_[slot];
  expect(1);
  ++work_;
  if (((t.passes & bit) != 0) == passes || t.runs == 0) return;
  t.passes ^= bit;
  filters_[filter].passing += passes ? 1 : ~uint64_t{0};
  for (auto& l : ledgers_)
    if ((l->filters() & bit) != 0) l->touch_trajectory(slot);
}

void View::draw_trajectories(Rng rng, const Window& w, const SliceSpec& spec, size_t n, int once,
                             std::vector<int64_t>* out) {
  const Ledger* found = &ledger(w, spec, false);
  while (out->size() < n && found->total() > 0) {
    const auto slot = static_cast<uint32_t>(found->pick(rng).item);
    out->push_back(static_cast<int64_t>(trajs_[slot].ordinal));
    if (once < 0) continue;
    set_pass(slot, static_cast<uint64_t>(once), false);
    found = &ledger(w, spec, false);
  }
}

}  // namespace contig
