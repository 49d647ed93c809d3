// Keeping weights of trajectories or runs up to date.
#include "native/tape/ledger.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "native/tape/view.h"

namespace contig {

namespace {
std::atomic<uint64_t> tokens{1};  // never the same twice, whatever ledger they come from

// A row that came and went since it was last told, or went and came, has not changed.
void leave_out_both(std::vector<int64_t>* on, std::vector<int64_t>* off) {
  if (on->empty() || off->empty()) return;
  std::sort(on->begin(), on->end());
  std::sort(off->begin(), off->end());
  std::vector<int64_t> came, went;
  std::set_difference(on->begin(), on->end(), off->begin(), off->end(), std::back_inserter(came));
  std::set_difference(off->begin(), off->end(), on->begin(), on->end(), std::back_inserter(went));
  on->swap(came);
  off->swap(went);
}
}  // namespace

Ledger::Ledger(View& view, const SliceSpec& spec, bool rows, uint64_t filters)
    : view_(view), spec_(spec), rows_(rows), filters_(filters) {}

bool Ledger::answers(const SliceSpec& s, bool rows, uint64_t filters) const {
  if (filters != filters_) return false;
  return rows ? rows_
              : !rows_ && s.length == spec_.length && s.strict == spec_.strict &&
                    s.complete_only == spec_.complete_only && s.over_steps == spec_.over_steps &&
                    s.span_left == spec_.span_left && s.span_right == spec_.span_right;
}

// ---- what has changed ----------------------------------------------------------------------

void Ledger::touch(uint64_t number, uint32_t slot) {
  if (!built_) return;
  if (!rows_)
    touch_item(slot);
  else if (number >= base_)
    touch_item(number - base_);
}

void Ledger::touch_item(size_t item) {
  while (items_.size() <= item) {
    items_.emplace_back();
    is_touched_.push_back(0);
    sums_.push(0);
  }
  if (is_touched_[item] != 0) return;
  is_touched_[item] = 1;
  touched_.push_back(item);
  view_.expect(touched_.size());
}

void Ledger::touch_trajectory(uint32_t slot) {
  if (!built_) return;
  if (!rows_) return touch_item(slot);
  EntryView e;
  for (uint64_t n = view_.trajs_[slot].last; view_.usable(n, Window{}, &e); n = e.prev)
    touch(n, slot);
}

void Ledger::died(uint64_t ordinal) {
  if (built_ && track_ordinals_) log_.off.push_back(static_cast<int64_t>(ordinal));
}

void Ledger::move(const std::vector<uint32_t>& kept) {
  if (rows_ || !built_) return;
  std::vector<Item> items(kept.size());
  std::vector<uint8_t> is_touched(kept.size());
  sums_.clear();
  touched_.clear();
  eligible_ = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] < items_.size()) {
      items[i] = items_[kept[i]];
      is_touched[i] = is_touched_[kept[i]];
    }
    sums_.push(weight(items[i].count));
    eligible_ += items[i].count > 0 ? 1 : 0;
    if (is_touched[i] != 0) touched_.push_back(i);
  }
  items_.swap(items);
  is_touched_.swap(is_touched);
}

// ---- catching up ---------------------------------------------------------------------------

void Ledger::sync(const Window& w) {
  const uint64_t low = std::max(view_.at_.tail, w.min_seq);
  if (!w.any_version()) view_.watch_versions();
  if (!built_ || low < low_) return rebuild(w);
  pass_low(low);
  if (w.min_version != window_.min_version)
    view_.versions_.between(std::min(w.min_version, window_.min_version),
                            std::max(w.min_version, window_.min_version),
                            [&](uint64_t n) { touch(n, view_.slot_of(n)); });
  if (w.min_ordinal != window_.min_ordinal) {
    const auto end = view_.slot_from(std::max(w.min_ordinal, window_.min_ordinal));
    for (auto slot = view_.slot_from(std::min(w.min_ordinal, window_.min_ordinal)); slot < end;
         ++slot)
      if (view_.trajs_[slot].runs > 0) touch_trajectory(slot);
  }
  window_ = w;
  low_ = low;
  settle();
  trim();
}

void Ledger::pass_low(uint64_t low) {
  if (low == low_) return;
  // The runs that end between the old bound and the new one, and the one that holds the new one.
  uint64_t n = std::max(low_run_, view_.seen_tail_);
  for (; n < view_.seen_head_; ++n) {
    touch(n, view_.slot_of(n));
    EntryView e;
    if (view_.read(n, &e) && e.first + e.steps > low) break;
  }
  low_run_ = n < view_.seen_head_ ? n : std::max<uint64_t>(view_.seen_head_, 1) - 1;  // may grow
}

void Ledger::rebuild(const Window& w) {
  built_ = true;
  window_ = w;
  low_ = std::max(view_.at_.tail, w.min_seq);
  EntryView e;
  if (!view_.find_row(low_, &e, &low_run_)) low_run_ = view_.seen_tail_;
  base_ = rows_ ? view_.seen_tail_ : 0;
  items_.clear();
  is_touched_.clear();
  touched_.clear();
  sums_.clear();
  eligible_ = 0;
  track_rows_ = track_ordinals_ = false;  // whoever reads changes begins anew
  const size_t n = rows_ ? view_.seen_head_ - view_.seen_tail_ : view_.trajs_.size();
  for (size_t i = 0; i < n; ++i) touch_item(i);
  settle();
}

void Ledger::settle() {
  for (const size_t item : touched_) {
    is_touched_[item] = 0;
    set(item, look(item));
  }
  touched_.clear();
}

void Ledger::trim() {
  // Runs that are evicted leave the front, when they are most of the items.
  const uint64_t gone = view_.seen_tail_ - base_;
  if (!rows_ || gone < 1024 || gone < items_.size() / 2) return;
  view_.expect(items_.size());
  view_.work_ += items_.size();
  const auto n = static_cast<ptrdiff_t>(std::min<uint64_t>(gone, items_.size()));
  items_.erase(items_.begin(), items_.begin() + n);
  is_touched_.erase(is_touched_.begin(), is_touched_.begin() + n);
  base_ = view_.seen_tail_;
  sums_.clear();
  for (const Item& item : items_) sums_.push(item.count);
}

Ledger::Item Ledger::look(size_t item) const {
  view_.expect(1);
  ++view_.work_;
  Item out;
  if (rows_) {
    const uint64_t n = base_ + item;
    EntryView e;
    if (n < view_.seen_tail_ || n >= view_.seen_head_ || !view_.usable(n, window_, &e) ||
        e.ordinal < window_.min_ordinal || !view_.passes(view_.trajs_[view_.slot_of(n)], window_))
      return out;
    out.from = std::max(e.first, low_);
    const uint64_t end = std::min(e.first + e.steps, view_.at_.head);
    out.count = end > out.from ? end - out.from : 0;
    return out;
  }
  Extent x;
  if (!view_.extent_of(static_cast<uint32_t>(item), window_, &x) || !view_.eligible(x, spec_))
    return out;
  out.from = x.start;
  out.count = view_.count_starts(x, spec_);
  return out;
}

void Ledger::set(size_t item, const Item& now) {
  Item& old = items_[item];
  if (track_rows_) note_rows(item, old, now);
  if (track_ordinals_ && !rows_ && old.count == 0 && now.count > 0)
    log_.on.push_back(static_cast<int64_t>(view_.trajs_[item].ordinal));
  const uint64_t before = weight(old.count), after = weight(now.count);
  if (after != before) sums_.add(item, after - before);
  eligible_ += (now.count > 0 ? 1 : 0) - (old.count > 0 ? 1 : 0);
  old = now;
}

void Ledger::note_rows(size_t item, const Item& old, const Item& now) {
  const uint64_t old_end = old.from + old.count, end = now.from + now.count;
  const auto rows = [&](uint64_t a, uint64_t b, std::vector<int64_t>* out) {
    if (a >= b) return;
    if (rows_)
      for (uint64_t seq = a; seq < b; ++seq) out->push_back(static_cast<int64_t>(seq));
    else
      view_.rows_between(view_.trajs_[item].last, a, b, out);
  };
  const size_t logged = log_.on.size() + log_.off.size();
  if (old.count == 0 || now.count == 0 || old_end <= now.from || end <= old.from) {
    rows(old.from, old_end, &log_.off);
    rows(now.from, end, &log_.on);
  } else {  // they overlap: what lies before and after
    rows(old.from, now.from, &log_.off);
    rows(end, old_end, &log_.off);
    rows(now.from, old.from, &log_.on);
    rows(old_end, end, &log_.on);
  }
  view_.work_ += log_.on.size() + log_.off.size() - logged;
}

// ---- asking --------------------------------------------------------------------------------

Ledger::Pick Ledger::pick(Rng rng) const {
  uint64_t rest;
  const size_t item = sums_.find(rng.below(sums_.total()), &rest);
  return Pick{base_ + item, weighs_count() ? rest : rng.below(items_[item].count)};
}

void Ledger::hand_over(uint64_t token, Changes* out, bool* tracked) {
  const bool all = !*tracked || token != log_.token;
  track_rows_ = track_ordinals_ = false;  // one log has one reader
  *tracked = true;
  std::swap(*out, log_);
  out->all = all;
  if (all) {
    out->on.clear();
    out->off.clear();
  }
  log_.on.clear();
  log_.off.clear();
  log_.token = out->token = tokens.fetch_add(1, std::memory_order_relaxed);
}

void Ledger::changed_rows(uint64_t token, Changes* out) {
  hand_over(token, out, &track_rows_);
  view_.expect(out->all ? items_.size() : out->on.size() + out->off.size());
  if (!out->all) return leave_out_both(&out->on, &out->off);
  each([&](uint64_t item) {
    const Item& i = items_[item - base_];
    if (rows_)
      for (uint64_t seq = i.from; seq < i.from + i.count; ++seq)
        out->on.push_back(static_cast<int64_t>(seq));
    else
      view_.rows_between(view_.trajs_[item].last, i.from, i.from + i.count, &out->on);
  });
}

void Ledger::changed_ordinals(uint64_t token, Changes* out) {
  hand_over(token, out, &track_ordinals_);
  if (!out->all) return;
  view_.expect(items_.size());
  each([&](uint64_t slot) { out->on.push_back(static_cast<int64_t>(view_.trajs_[slot].ordinal)); });
}

}  // namespace contig
