// Which run and trajectory a row lies in, and which rows come after it there or are in it at all.
#include <algorithm>

#include "native/tape/view.h"

namespace contig {

namespace {
constexpr size_t kTogether = 16;
constexpr int kNeighbours = 4;  // steps of a search that stay near where it began
}  // namespace

// The runs that some rows lie in, as `find_row` does it, for several rows at a time: while one of
// them waits for memory, the others go on. `ends`, if it is given: where the runs end, or 0 where
// that is not known.
void View::find_runs(const int64_t* seqs, size_t n, uint64_t length, uint64_t* numbers,
                     uint64_t* ends) const {
  struct Search {
    uint64_t seq, low, high, low_first, high_first, mid;
    uint64_t up;         // all bits, if it went on above `mid`
    uint64_t end;        // of the run, once it is found
    const Entry* entry;  // `mid`
  } searches[kTogether];
  constexpr auto relaxed = std::memory_order_relaxed;
  Tape::Cursor cursor(tape_);
  const uint64_t oldest = at_.index_tail, oldest_first = tape_.first_of(oldest);
  for (size_t i = 0; i < n; ++i)
    searches[i] = {static_cast<uint64_t>(seqs[i]),
                   oldest,
                   seen_head_,
                   oldest_first,
                   at_.head,
                   0,
                   0,
                   0,
                   nullptr};
  bool going = true;
  for (int step = 0; going; ++step) {
    going = false;
    for (size_t i = 0; i < n; ++i) {
      Search& s = searches[i];
      if (s.high - s.low <= 1) continue;
      // What is known of every so many rows, then its neighbours: mostly that is all.
      if (step == 0)
        s.mid = std::min(std::max(hints_.guess(s.seq, seen_head_), s.low + 1), s.high - 1);
      else if (step < kNeighbours)
        s.mid = ((s.low + 1) & s.up) | ((s.high - 1) & ~s.up);
      else
        s.mid = middle(s.low, s.high, s.low_first, s.high_first, s.seq, step);
      s.entry = cursor.ask(s.mid);
    }
    for (size_t i = 0; i < n; ++i) {
      Search& s = searches[i];
      if (s.high - s.low <= 1) continue;
      const uint64_t first = s.entry->first.load(relaxed);
      const uint64_t steps = run_rows(s.entry->steps_flags.load(relaxed));
      if (s.seq - first < steps) {  // it is this one: no need to see where the next one begins
        s.low = s.mid, s.high = s.mid + 1, s.low_first = first, s.end = first + steps;
        continue;
      }
      // Selected, not branched: the processor cannot guess which way it goes.
      const uint64_t up = uint64_t{0} - static_cast<uint64_t>(first <= s.seq), down = ~up;
      s.up = up;
      s.low = (s.mid & up) | (s.low & down);
      s.low_first = (first & up) | (s.low_first & down);
      s.high = (s.mid & down) | (s.high & up);
      s.high_first = (first & down) | (s.high_first & up);
      going |= s.high - s.low > 1;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    numbers[i] = searches[i].low;
    if (ends != nullptr) ends[i] = searches[i].end;
    if (searches[i].seq + length <= searches[i].end) continue;
    // The runs after it, where they are likely to be: see `run_after`.
    const Entry* e = cursor.ask(numbers[i]);
    const uint64_t apart = e->links.load(relaxed) >> 32;
    const uint64_t left =
        searches[i].low_first + run_rows(e->steps_flags.load(relaxed)) - searches[i].seq;
    for (uint64_t k = 1; apart != 0 && k + left <= length && k <= 4; ++k)
      if (numbers[i] + k * apart < seen_head_) cursor.ask(numbers[i] + k * apart);
  }
}

// The run that goes on where a run stops. Links lead backwards only; so it is guessed first that
// runs of a trajectory are evenly spaced, as those of envs that step together are, and the link
// back says whether that is so. Else it is looked for from the trajectory's last run.
bool View::run_after(uint64_t number, const EntryView& e, EntryView* next,
                     uint64_t* next_number) const {
  const uint64_t last = trajs_[slot_of(number)].last;
  if (last == number || last >= seen_head_) return false;
  if (e.prev != kNone) {
    const uint64_t guess = number + (number - e.prev);
    if (guess <= last && read(guess, next) && next->prev == number) {
      *next_number = guess;
      return true;
    }
  }
  // From the end back to the run of which this one is the previous.
  uint64_t at = last;
  if (!read(at, next)) return false;
  while (next->prev != number) {
    EntryView p;
    if (next->jump != kNone && next->jump > number && read(next->jump, &p))
      at = next->jump;
    else if (next->prev != kNone && next->prev > number && read(next->prev, &p))
      at = next->prev;
    else
      return false;
    *next = p;
  }
  *next_number = at;
  return true;
}

void View::follow(const int64_t* seqs, size_t n, uint64_t length, Slices* out) const {
  out->seqs.reserve(n * std::min<uint64_t>(length, 16));
  out->lengths.reserve(n);
  uint64_t numbers[kTogether], ends[kTogether] = {};
  for (size_t at = 0; at < n; at += kTogether) {
    const size_t count = std::min(kTogether, n - at);
    const bool any = length > 1 && at_.index_tail < seen_head_;
    if (any) find_runs(seqs + at, count, length, numbers, ends);
    // Where a run is gone meanwhile, another may have its place: the end that was read may then be
    // neither's, of rows that the gather finds in order.
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t kept = tape_.header().index_tail.load(std::memory_order_relaxed);
    for (size_t i = 0; i < count; ++i) {
      const auto seq = static_cast<uint64_t>(seqs[at + i]);
      if (any && numbers[i] >= kept && seq + length <= std::min(ends[i], at_.head)) {
        for (uint64_t k = 0; k < length; ++k) out->seqs.push_back(static_cast<int64_t>(seq + k));
        out->lengths.push_back(static_cast<int64_t>(length));
        continue;
      }
      const size_t before = out->seqs.size();
      out->seqs.push_back(seqs[at + i]);
      if (any) follow_row(numbers[i], length, out);
      out->lengths.push_back(static_cast<int64_t>(out->seqs.size() - before));
    }
  }
}

// Adds up to `length - 1` rows after the last one of `out`, which lies in a run, if in any.
void View::follow_row(uint64_t number, uint64_t length, Slices* out) const {
  EntryView e;
  auto from = static_cast<uint64_t>(out->seqs.back());
  if (!read(number, &e) || from < e.first || from >= e.first + e.steps) return;
  ++from;
  for (uint64_t have = 1;;) {
    const uint64_t end = std::min(e.first + e.steps, at_.head);
    for (; from < end && have < length; ++from, ++have)
      out->seqs.push_back(static_cast<int64_t>(from));
    EntryView next;
    if (have == length || !run_after(number, e, &next, &number) ||
        next.before != e.before + e.steps || next.first >= at_.head)
      return;
    e = next;
    from = e.first;
  }
}

uint64_t View::last_run(uint64_t ordinal) const {
  const uint32_t slot = slot_from(ordinal);
  const bool there =
      slot < trajs_.size() && trajs_[slot].ordinal == ordinal && trajs_[slot].runs > 0;
  return there ? trajs_[slot].last : kNone;
}

void View::trajectories_of(const int64_t* seqs, size_t n, int64_t* ordinals) const {
  uint64_t numbers[kTogether];
  for (size_t at = 0; at < n; at += kTogether) {
    const size_t count = std::min(kTogether, n - at);
    const bool any = at_.index_tail < seen_head_;
    if (any) find_runs(seqs + at, count, 1, numbers);
    for (size_t i = 0; i < count; ++i) {
      const auto seq = static_cast<uint64_t>(seqs[at + i]);
      EntryView e;
      const bool there = any && read(numbers[i], &e) && seq >= e.first && seq >= at_.tail &&
                         seq < std::min(e.first + e.steps, at_.head);
      ordinals[at + i] = there ? static_cast<int64_t>(e.ordinal) : -1;
    }
  }
}

// Rows of eligible trajectories, each alike: drawn among all, and those of others put aside.
// Returns how many were found; fewer than n if most rows are of others.
size_t View::draw_singles(Rng rng, const Window& w, const SliceSpec& spec, size_t n,
                          Slices* out) const {
  const uint64_t low = std::max(at_.tail, w.min_seq);
  if (low >= at_.head || at_.index_tail >= seen_head_) return 0;
  size_t found = 0;
  int64_t seqs[kTogether];
  uint64_t numbers[kTogether];
  for (size_t tries = 4 * n + kTogether; found < n && tries >= kTogether; tries -= kTogether) {
    const size_t count = std::min(kTogether, n - found);
    for (size_t i = 0; i < count; ++i)
      seqs[i] = static_cast<int64_t>(low + rng.below(at_.head - low));
    find_runs(seqs, count, 1, numbers);
    for (size_t i = 0; i < count; ++i) {
      const auto seq = static_cast<uint64_t>(seqs[i]);
      EntryView e;
      Extent x;
      if (!read(numbers[i], &e) || seq < e.first || seq >= e.first + e.steps ||
          !extent_of(slot_of(numbers[i]), w, &x) || !eligible(x, spec))
        continue;
      const uint64_t step = e.before + (seq - e.first);
      if (step < x.start || step >= x.end) continue;
      out->seqs.push_back(seqs[i]);
      out->lengths.push_back(1);
      out->burn.push_back(0);
      out->ends.push_back(step + 1 == x.end ? static_cast<int64_t>(x.ended) : 0);
      ++found;
    }
  }
  return found;
}

void View::draw_kin(Rng rng, const int64_t* seqs, size_t n, const Window& w, Kin which,
                    int64_t* out) {
  if (!w.any_version()) watch_versions();
  std::copy(seqs, seqs + n, out);
  if (at_.index_tail >= seen_head_) return;
  uint64_t numbers[kTogether];
  for (size_t at = 0; at < n; at += kTogether) {
    const size_t count = std::min(kTogether, n - at);
    find_runs(seqs + at, count, 1, numbers);
    for (size_t i = at; i < at + count; ++i)
      kin_of(rng, static_cast<uint64_t>(seqs[i]), numbers[i - at], w, which, out + i);
  }
}

// A row of the trajectory of the row `seq`, which lies in a run, if in any.
bool View::kin_of(Rng rng, uint64_t seq, uint64_t number, const Window& w, Kin which,
                  int64_t* out) const {
  EntryView e;
  Extent x;
  if (!read(number, &e) || seq < e.first || seq >= e.first + e.steps ||
      !extent_of(slot_of(number), w, &x))
    return false;
  const uint64_t step = e.before + (seq - e.first);
  uint64_t low = which == Kin::any ? x.start : std::max(x.start, step);
  if (which == Kin::last || low >= x.end) low = x.end - 1;
  const uint64_t wanted = low + rng.below(x.end - low);
  const auto holds = [&](const EntryView& run) {
    return wanted >= run.before && wanted < run.before + run.steps;
  };
  if (!holds(e)) {
    // Runs of envs that step together are evenly spaced, and of one row each.
    EntryView guess;
    const uint64_t apart = e.prev != kNone && e.steps == 1 ? number - e.prev : 0;
    const uint64_t at = number + apart * (wanted - step);  // modulo 2^64: either way
    const bool near = apart != 0 && at >= at_.index_tail && at <= x.last && read(at, &guess) &&
                      guess.ordinal == x.ordinal && holds(guess);
    if (near)
      e = guess;
    else if (!run_holding(x.last, wanted, &e))
      return false;
  }
  *out = static_cast<int64_t>(e.first + (wanted - e.before));
  return true;
}

}  // namespace contig
