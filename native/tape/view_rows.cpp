// From seqs and steps to runs, and from slices to seqs.
#include <algorithm>

#include "native/tape/view.h"

namespace contig {

// Where to look next for the last entry with first <= seq. Guessed from the mean run length, which
// is right at once for runs of one size; every third step halves, so that it is O(log n) for any.
uint64_t View::middle(uint64_t low, uint64_t high, uint64_t low_first, uint64_t high_first,
                      uint64_t seq, int step) {
  if (step % 3 == 2 || low_first > seq || seq >= high_first) return low + (high - low) / 2;
  const double share =
      static_cast<double>(seq - low_first) / static_cast<double>(high_first - low_first);
  const uint64_t mid = low + static_cast<uint64_t>(share * static_cast<double>(high - low));
  return std::min(std::max(mid, low + 1), high - 1);
}

bool View::find_row(uint64_t seq, EntryView* e, uint64_t* number) const {
  // What is read here may be torn: only the entry it ends with is checked.
  uint64_t low = at_.index_tail, high = seen_head_;
  if (low >= high) return false;
  uint64_t low_first = tape_.first_of(low), high_first = at_.head;
  for (int step = 0; high - low > 1; ++step) {
    const uint64_t mid = middle(low, high, low_first, high_first, seq, step);
    const uint64_t first = tape_.first_of(mid);
    ++work_;
    if (first <= seq) {
      low = mid;
      low_first = first;
    } else {
      high = mid;
      high_first = first;
    }
  }
  *number = low;
  return read(low, e) && e->first <= seq && seq < e->first + e->steps;
}

bool View::run_holding(uint64_t last, uint64_t step, EntryView* e) const {
  if (!read(last, e)) return false;
  while (step < e->before) {
    EntryView p;
    if (e->jump != kNone && e->jump >= at_.index_tail && read(e->jump, &p) &&
        step < p.before + p.steps)
      *e = p;
    else if (e->prev != kNone && e->prev >= at_.index_tail && read(e->prev, &p))
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
    if (e.prev == kNone || e.prev < at_.index_tail || !read(e.prev, &p) ||
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

void View::rows_between(uint64_t last, uint64_t a, uint64_t b, std::vector<int64_t>* out) const {
  EntryView e;
  if (a >= b || !run_holding(last, b - 1, &e)) return;
  for (uint64_t upto = b;;) {
    for (uint64_t step = std::max(a, e.before); step < std::min(upto, e.before + e.steps); ++step)
      if (const uint64_t seq = e.first + (step - e.before); seq >= at_.tail)
        out->push_back(static_cast<int64_t>(seq));
    if (e.before <= a) return;
    upto = e.before;
    EntryView p;
    if (e.prev == kNone || e.prev < at_.index_tail || !read(e.prev, &p)) return;
    e = p;
  }
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
