// Drawing rows and slices from a mirror of the index.
#include <algorithm>

#include "view.h"

namespace contig {

namespace {
constexpr uint64_t kRejections = 64;  // at least, before an exact pass

bool same(const Window& a, const Window& b) {
  return a.min_seq == b.min_seq && a.min_ordinal == b.min_ordinal && a.min_version == b.min_version;
}

bool same(const SliceSpec& a, const SliceSpec& b) {
  return a.length == b.length && a.strict == b.strict && a.complete_only == b.complete_only &&
         a.over_steps == b.over_steps && a.span_left == b.span_left && a.span_right == b.span_right;
}
}  // namespace

bool View::exact(const Window& w, const SliceSpec& spec) {
  if (pass_head_ != at_.head || pass_tail_ != at_.tail || !same(pass_window_, w) ||
      !same(pass_spec_, spec)) {
    pass_.clear();
    uint64_t weight = 0;
    for (const Trajectory& t : trajs_) {
      Extent x;
      if (t.runs == 0 || t.ordinal < w.min_ordinal) continue;
      if (!extent_of(t.last, w, &x) || !eligible(x, spec)) continue;
      const uint64_t starts = count_starts(x, spec);
      weight += spec.over_steps ? starts : 1;
      pass_.push_back(Candidate{x, starts, weight});
    }
    pass_head_ = at_.head;
    pass_tail_ = at_.tail;
    pass_window_ = w;
    pass_spec_ = spec;
  }
  return !pass_.empty();
}

bool View::draw_rows(Rng rng, const Window& w, int64_t* out, size_t n) {
  const uint64_t low = std::max(at_.tail, w.min_seq);
  if (low >= at_.head) return false;
  if (w.whole() || (w.min_ordinal == 0 && w.min_version == INT64_MIN)) {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<int64_t>(low + rng.below(at_.head - low));
    return true;
  }
  const uint64_t patience = kRejections + (seen_head_ - at_.index_tail) / 2;
  std::vector<std::pair<uint64_t, uint64_t>> spans;  // (first row, rows up to its end), exact
  for (size_t i = 0; i < n; ++i) {
    bool done = false;
    for (uint64_t tries = 0; tries < patience && !done && spans.empty(); ++tries) {
      const uint64_t seq = low + rng.below(at_.head - low);
      if ((done = row_in(seq, w))) out[i] = static_cast<int64_t>(seq);
    }
    if (done) continue;
    if (spans.empty() && !spans_in(w, &spans)) return false;
    const uint64_t pick = rng.below(spans.back().second);
    const auto it = std::upper_bound(spans.begin(), spans.end(), pick,
                                     [](uint64_t p, const auto& s) { return p < s.second; });
    const uint64_t before = it == spans.begin() ? 0 : std::prev(it)->second;
    out[i] = static_cast<int64_t>(it->first + (pick - before));
  }
  return true;
}

bool View::row_in(uint64_t seq, const Window& w) const {
  EntryView e;
  uint64_t number;
  return seq >= std::max(at_.tail, w.min_seq) && seq < at_.head && find_row(seq, &e, &number) &&
         e.version >= w.min_version && e.ordinal >= w.min_ordinal;
}

bool View::spans_in(const Window& w, std::vector<std::pair<uint64_t, uint64_t>>* out) const {
  const uint64_t low = std::max(at_.tail, w.min_seq);
  uint64_t total = 0;
  for (uint64_t n = at_.index_tail; n < seen_head_; ++n) {
    EntryView e;
    if (!tape_.read_entry(n, &e) || e.version < w.min_version || e.ordinal < w.min_ordinal)
      continue;
    const uint64_t first = std::max(e.first, low), end = std::min(e.first + e.steps, at_.head);
    if (first >= end) continue;
    total += end - first;
    out->emplace_back(first, total);
  }
  return total > 0;
}

void View::rows_in(const Window& w, std::vector<int64_t>* out) const {
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  if (!spans_in(w, &spans)) return;
  uint64_t before = 0;
  for (const auto& span : spans) {
    for (uint64_t i = 0; i < span.second - before; ++i)
      out->push_back(static_cast<int64_t>(span.first + i));
    before = span.second;
  }
}

bool View::draw_slices(Rng rng, const Window& w, const SliceSpec& spec, size_t n, Slices* out) {
  if (live_ == 0) return false;
  const auto oldest =
      std::lower_bound(trajs_.begin(), trajs_.end(), w.min_ordinal,
                       [](const Trajectory& t, uint64_t ordinal) { return t.ordinal < ordinal; });
  uint64_t before = 0;  // living trajectories that began before the window
  for (size_t i = static_cast<size_t>(oldest - trajs_.begin()); i > 0; i -= i & (~i + 1))
    before += fenwick_[i];
  if (before >= live_) return false;
  uint64_t low = std::max(at_.tail, w.min_seq);
  if (spec.over_steps && w.min_ordinal > 0) {
    EntryView e;  // no row of the window is older than its first trajectory's first run
    Extent x;
    const uint64_t last = trajs_[select(before)].last;
    Window any_version = w;
    any_version.min_version = INT64_MIN;
    if (extent_of(last, any_version, &x) && run_holding(last, x.start, &e))
      low = std::max(low, e.first);
  }
  if (spec.over_steps && low >= at_.head) return false;
  const bool virtual_starts = spec.span_left > 0 || spec.span_right > 0;
  // An exact pass reads every trajectory: rejections may cost about as much before it is made.
  const uint64_t patience = kRejections + live_ / 2;

  for (size_t i = 0; i < n; ++i) {
    bool done = false;
    for (uint64_t tries = 0; tries < patience && !done; ++tries) {
      Extent x;
      uint64_t choice;
      if (!spec.over_steps) {
        if (!extent_of(trajs_[select(before + rng.below(live_ - before))].last, w, &x)) continue;
        if (!eligible(x, spec)) continue;
        choice = rng.below(count_starts(x, spec));
      } else {
        if (virtual_starts) break;  // rows do not stand for starts outside the trajectory
        EntryView e;
        uint64_t number;
        const uint64_t seq = low + rng.below(at_.head - low);
        if (!find_row(seq, &e, &number) || e.version < w.min_version) continue;
        if (!extent_of(trajs_[slot_of_[number % ring_]].last, w, &x)) continue;
        const uint64_t step = e.before + (seq - e.first);
        if (!eligible(x, spec) || step < x.start || step - x.start >= count_starts(x, spec))
          continue;
        choice = step - x.start;
      }
      done = emit(x, choice, spec, out);
    }
    if (done) continue;
    if (!exact(w, spec)) return false;
    const uint64_t pick = rng.below(pass_.back().upto);
    const auto it = std::upper_bound(pass_.begin(), pass_.end(), pick,
                                     [](uint64_t p, const Candidate& c) { return p < c.upto; });
    if (!emit(it->extent, rng.below(it->starts), spec, out)) return false;
  }
  return true;
}

bool View::slice_of(Rng rng, const Window& w, const SliceSpec& spec, uint64_t ordinal,
                    Slices* out) {
  const auto it = std::lower_bound(trajs_.begin(), trajs_.end(), ordinal,
                                   [](const Trajectory& t, uint64_t o) { return t.ordinal < o; });
  Extent x;
  if (it == trajs_.end() || it->ordinal != ordinal || it->runs == 0) return false;
  if (!extent_of(it->last, w, &x) || !eligible(x, spec)) return false;
  return emit(x, rng.below(count_starts(x, spec)), spec, out);
}

void View::slices_from(const int64_t* seqs, size_t n, const Window& w, const SliceSpec& spec,
                       uint8_t* valid, Slices* out) {
  for (size_t i = 0; i < n; ++i) {
    EntryView e;
    uint64_t number;
    Extent x;
    const auto seq = static_cast<uint64_t>(seqs[i]);
    valid[i] = 0;
    if (spec.length == 1 && !spec.complete_only && spec.burn_in == 0) {  // a row, not a slice
      if (!row_in(seq, w)) continue;
      valid[i] = 1;
      out->seqs.push_back(seqs[i]);
      out->lengths.push_back(1);
      out->burn.push_back(0);
      out->ends.push_back(0);
      continue;
    }
    if (!find_row(seq, &e, &number)) continue;
    if (!extent_of(trajs_[slot_of_[number % ring_]].last, w, &x) || !eligible(x, spec)) continue;
    const uint64_t step = e.before + (seq - e.first);
    if (step < x.start || step - x.start >= count_starts(x, spec)) continue;
    valid[i] = emit(x, step - x.start, spec, out) ? 1 : 0;
  }
}

size_t View::draw_by_weight(Rng rng, const Window& w, const SliceSpec& spec,
                            const WeightedRows& rows, size_t n, std::vector<int64_t>* starts,
                            Slices* out) {
  std::vector<double> u;
  std::vector<int64_t> seqs;
  std::vector<uint8_t> valid;
  size_t need = n;
  for (uint64_t round = 0; round < kRejections && need > 0; ++round) {
    u.resize(need);
    seqs.resize(need);
    valid.resize(need);
    for (double& x : u) x = rng.unit();
    tree_draw(rows.tree, u.data(), seqs.data(), need);
    newest_rows(seqs.data(), need, rows.head, rows.tree.shape.n_leaves);
    slices_from(seqs.data(), need, w, spec, valid.data(), out);
    for (size_t i = 0; i < valid.size(); ++i)
      if (valid[i] != 0) {
        starts->push_back(seqs[i]);
        --need;
      }
  }
  return need;
}

void View::follow(const int64_t* seqs, size_t n, uint64_t length, Slices* out) {
  for (size_t i = 0; i < n; ++i) {
    EntryView e;
    uint64_t number;
    Extent x;
    const auto seq = static_cast<uint64_t>(seqs[i]);
    if (find_row(seq, &e, &number) &&
        extent_of(trajs_[slot_of_[number % ring_]].last, Window{}, &x)) {
      const uint64_t step = e.before + (seq - e.first);
      if (step >= x.start && step < x.end &&
          emit_steps(x, step, std::min(step + length, x.end), 0, out))
        continue;
    }
    out->seqs.push_back(seqs[i]);  // gone meanwhile: the gather will say so
    out->lengths.push_back(1);
    out->burn.push_back(0);
    out->ends.push_back(0);
  }
}

void View::valid_starts(const Window& w, const SliceSpec& spec, uint8_t* mask) {
  std::fill(mask, mask + (at_.head - std::min(at_.tail, at_.head)), uint8_t{0});
  SliceSpec plain = spec;
  plain.over_steps = true;
  if (!exact(w, plain)) return;
  Slices rows;
  for (const Candidate& c : pass_) {
    rows.seqs.clear();
    if (!emit_steps(c.extent, c.extent.start, c.extent.start + c.starts, 0, &rows)) continue;
    for (const int64_t seq : rows.seqs) mask[static_cast<uint64_t>(seq) - at_.tail] = 1;
  }
}

void View::ordinals(std::vector<int64_t>* out, const Window& w, const SliceSpec& spec) {
  if (!exact(w, spec)) return;
  for (const Candidate& c : pass_) out->push_back(static_cast<int64_t>(c.extent.ordinal));
}

}  // namespace contig
