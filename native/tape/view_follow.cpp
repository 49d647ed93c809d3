// Which rows come after a row in its trajectory.
#include <algorithm>

#include "native/tape/view.h"

namespace contig {

namespace {
constexpr size_t kTogether = 16;
}

// The runs that some rows lie in, as `find_row` does it, for several rows at a time: while one of
// them waits for memory, the others go on.
void View::find_runs(const int64_t* seqs, size_t n, uint64_t length, uint64_t* numbers) const {
  struct Search {
    uint64_t seq, low, high, low_first, high_first, mid;
    const Entry* entry;  // `mid`
  } searches[kTogether];
  constexpr auto relaxed = std::memory_order_relaxed;
  Tape::Cursor cursor(tape_);
  const uint64_t oldest = at_.index_tail, oldest_first = tape_.first_of(oldest);
  for (size_t i = 0; i < n; ++i)
    searches[i] = {
        static_cast<uint64_t>(seqs[i]), oldest, seen_head_, oldest_first, at_.head, 0, nullptr};
  bool going = true;
  for (int step = 0; going; ++step) {
    going = false;
    for (size_t i = 0; i < n; ++i) {
      Search& s = searches[i];
      if (s.high - s.low <= 1) continue;
      s.mid = middle(s.low, s.high, s.low_first, s.high_first, s.seq, step);
      s.entry = cursor.ask(s.mid);
    }
    for (size_t i = 0; i < n; ++i) {
      Search& s = searches[i];
      if (s.high - s.low <= 1) continue;
      const uint64_t first = s.entry->first.load(relaxed);
      // Selected, not branched: the processor cannot guess which way it goes.
      const uint64_t up = uint64_t{0} - static_cast<uint64_t>(first <= s.seq), down = ~up;
      s.low = (s.mid & up) | (s.low & down);
      s.low_first = (first & up) | (s.low_first & down);
      s.high = (s.mid & down) | (s.high & up);
      s.high_first = (first & down) | (s.high_first & up);
      going |= s.high - s.low > 1;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    numbers[i] = searches[i].low;
    // The runs after it, where they are likely to be: see `run_after`.
    const Entry* e = cursor.ask(numbers[i]);
    const uint64_t apart = e->links.load(relaxed) >> 32;
    const uint64_t left =
        searches[i].low_first + (e->steps_flags.load(relaxed) >> kFlagBits) - searches[i].seq;
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
  uint64_t numbers[kTogether];
  for (size_t at = 0; at < n; at += kTogether) {
    const size_t count = std::min(kTogether, n - at);
    const bool any = length > 1 && at_.index_tail < seen_head_;
    if (any) find_runs(seqs + at, count, length, numbers);
    for (size_t i = 0; i < count; ++i) {
      const size_t before = out->seqs.size();
      out->seqs.push_back(seqs[at + i]);  // if it is gone meanwhile, the gather will say so
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

}  // namespace contig
