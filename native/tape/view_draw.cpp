// Drawing rows and slices from a mirror of the index.
#include <algorithm>

#include "native/kernels/prefetch.h"
#include "native/tape/view.h"

namespace contig {

namespace {
// What is drawn is there, unless a writer evicts it at the same time: then another one is drawn, so
// many times, before the caller takes the lock.
constexpr int kOvertaken = 64;
constexpr size_t kTogether = 32;    // slices that are looked up at once
constexpr uint64_t kReserved = 64;  // rows of a slice that there is room for from the start
}  // namespace

bool View::all_from(const Window& w, uint64_t* low) const {
  if (!w.any_version() || w.filters != 0) return false;
  *low = std::max(at_.tail, w.min_seq);
  if (w.contiguous()) return true;
  const uint32_t slot = slot_from(w.min_ordinal);
  if (slot == trajs_.size() || trajs_[slot].runs != 1) return false;
  // Later trajectories have runs only behind the one that it began with. As many runs from there
  // on as trajectories: each has one, and no earlier trajectory has any there.
  const uint64_t number = trajs_[slot].last;
  EntryView e;
  if (at_.index_head - number != alive_.total() - alive_.before(slot) || !read(number, &e))
    return false;
  if (e.prev != kNone) return false;
  *low = std::max(*low, e.first);
  return true;
}

uint64_t View::weigh_rows(const Window& w) {
  uint64_t low;
  if (!all_from(w, &low)) return ledger(w, SliceSpec{}, true).total();
  return low < at_.head ? at_.head - low : 0;
}

uint64_t View::weigh_slices(const Window& w, const SliceSpec& spec) {
  if (!spec.any_trajectory() || w.min_seq > 0 || !w.any_version() || w.filters != 0)
    return ledger(w, spec, false).total();
  return alive_.total() - (w.min_ordinal > 0 ? alive_.before(slot_from(w.min_ordinal)) : 0);
}

bool View::draw_rows(Rng rng, const Window& w, int64_t* out, size_t n) {
  uint64_t low;
  if (all_from(w, &low)) {
    if (low >= at_.head) return false;
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<int64_t>(low + rng.below(at_.head - low));
    return true;
  }
  const Ledger& rows = ledger(w, SliceSpec{}, true);
  if (rows.total() == 0) return false;
  for (size_t i = 0; i < n; ++i) {
    const Ledger::Pick pick = rows.pick(rng);
    out[i] = static_cast<int64_t>(rows.first_row(pick.item) + pick.choice);
  }
  return true;
}

bool View::row_in(uint64_t seq, const Window& w) const {
  EntryView e;
  uint64_t number;
  return seq >= std::max(at_.tail, w.min_seq) && seq < at_.head && find_row(seq, &e, &number) &&
         e.version >= w.min_version && e.ordinal >= w.min_ordinal &&
         (w.filters == 0 || passes(trajs_[slot_of(number)], w));
}

void View::spans_in(const Window& w, std::vector<int64_t>* firsts, std::vector<int64_t>* counts) {
  const Ledger& rows = ledger(w, SliceSpec{}, true);
  expect(rows.items());
  rows.each([&](uint64_t number) {
    const auto first = static_cast<int64_t>(rows.first_row(number));
    const auto count = static_cast<int64_t>(rows.rows(number));
    ++work_;
    if (!firsts->empty() && firsts->back() + counts->back() == first) {
      counts->back() += count;
      return;
    }
    firsts->push_back(first);
    counts->push_back(count);
  });
}

bool View::draw_slices(Rng rng, const Window& w, const SliceSpec& spec, size_t n, Slices* out) {
  // Where most rows will do, no list of those that will is needed.
  if (spec.single_steps() && w.any_version() && w.filters == 0)
    n -= draw_singles(rng, w, spec, n, out);
  if (n == 0) return true;
  // Where every living trajectory will do, the mirror itself says how many there are.
  const bool any = spec.any_trajectory() && w.min_seq == 0 && w.any_version() && w.filters == 0;
  const Ledger* found = any ? nullptr : &ledger(w, spec, false);
  const uint64_t before = any && w.min_ordinal > 0 ? alive_.before(slot_from(w.min_ordinal)) : 0;
  const uint64_t total = any ? alive_.total() - before : found->total();
  if (total == 0) return false;
  out->reserve(n, std::min<uint64_t>(spec.length + spec.burn_in, kReserved));
  const auto draw = [&] {
    return any ? Ledger::Pick{select(before + rng.below(total)), 0} : found->pick(rng);
  };
  Ledger::Pick drawn[kTogether];
  Tape::Cursor cursor(tape_);
  for (size_t at = 0; at < n; at += kTogether) {
    const size_t count = std::min(kTogether, n - at);
    // What is known of them is on its way from memory while the others are drawn.
    for (size_t i = 0; i < count; ++i) {
      drawn[i] = draw();
      ask_for(&trajs_[drawn[i].item]);
    }
    for (size_t i = 0; i < count; ++i) {
      const Trajectory& t = trajs_[drawn[i].item];
      if (t.runs > 0 && t.last >= at_.index_tail) cursor.ask(t.last);
    }
    for (size_t i = 0; i < count; ++i) {
      bool done = false;
      for (int tries = 0; tries < kOvertaken && !done; ++tries) {
        if (tries > 0) drawn[i] = draw();
        Extent x;
        if (!extent_of(static_cast<uint32_t>(drawn[i].item), w, &x) || !eligible(x, spec)) continue;
        const uint64_t starts = count_starts(x, spec);
        const uint64_t choice = any ? rng.below(starts) : drawn[i].choice;
        done = choice < starts && emit(x, choice, spec, out);
      }
      if (!done) return false;
    }
  }
  return true;
}

bool View::slice_of(Rng rng, const Window& w, const SliceSpec& spec, uint64_t ordinal,
                    Slices* out) {
  const uint32_t slot = slot_from(ordinal);
  Extent x;
  if (slot == trajs_.size() || trajs_[slot].ordinal != ordinal) return false;
  if (!w.any_version()) watch_versions();
  if (!extent_of(slot, w, &x) || !eligible(x, spec)) return false;
  return emit(x, rng.below(count_starts(x, spec)), spec, out);
}

bool View::has_trajectory(uint64_t ordinal, const Window& w, const SliceSpec& spec) {
  const uint32_t slot = slot_from(ordinal);
  Extent x;
  if (!w.any_version()) watch_versions();
  return slot < trajs_.size() && trajs_[slot].ordinal == ordinal && extent_of(slot, w, &x) &&
         eligible(x, spec);
}

uint64_t View::rows_of(uint64_t ordinal, std::vector<int64_t>* out) {
  for (int tries = 0; tries < kOvertaken; ++tries) {
    refresh();
    const uint32_t slot = slot_from(ordinal);
    Extent x;
    Slices rows;
    if (slot == trajs_.size() || trajs_[slot].ordinal != ordinal || trajs_[slot].runs == 0) break;
    if (!extent_of(slot, Window{}, &x)) continue;  // or evicted just now
    if (!emit_steps(x, x.start, x.end, 0, &rows)) continue;
    out->swap(rows.seqs);
    return x.start;
  }
  return 0;
}

void View::slices_from(const int64_t* seqs, size_t n, const Window& w, const SliceSpec& spec,
                       uint8_t* valid, Slices* out) {
  if (!w.any_version()) watch_versions();
  for (size_t i = 0; i < n; ++i) {
    EntryView e;
    uint64_t number;
    Extent x;
    const auto seq = static_cast<uint64_t>(seqs[i]);
    valid[i] = 0;
    if (spec.one_row()) {
      if (!row_in(seq, w)) continue;
      valid[i] = 1;
      out->seqs.push_back(seqs[i]);
      out->lengths.push_back(1);
      out->burn.push_back(0);
      out->ends.push_back(0);
      continue;
    }
    if (!find_row(seq, &e, &number)) continue;
    if (!extent_of(slot_of(number), w, &x) || !eligible(x, spec)) continue;
    const uint64_t step = e.before + (seq - e.first);
    if (step < x.start || step - x.start >= count_starts(x, spec)) continue;
    valid[i] = emit(x, step - x.start, spec, out) ? 1 : 0;
  }
}

void View::ordinals(std::vector<int64_t>* out, const Window& w, const SliceSpec& spec) {
  const Ledger& found = ledger(w, spec, false);
  expect(found.items());
  found.each([&](uint64_t slot) {
    ++work_;
    out->push_back(static_cast<int64_t>(trajs_[slot].ordinal));
  });
}

void View::changed_rows(const Window& w, const SliceSpec& spec, uint64_t token, Changes* out) {
  ledger(w, spec, spec.one_row()).changed_rows(token, out);
}

void View::changed_ordinals(const Window& w, const SliceSpec& spec, uint64_t token, Changes* out) {
  ledger(w, spec, false).changed_ordinals(token, out);
}

}  // namespace contig
