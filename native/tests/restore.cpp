// "Killed at any store" of a restore, and readers beside it: whatever instant it stops at, the tape
// holds what it held, nothing, or the checkpoint, and never a mixture.
#include <chrono>

#include "killpoints.h"

namespace {

using namespace killpoints;

// A tape with some history.
struct Filled {
  Memory memory;
  std::unique_ptr<Tape> tape;

  Filled(uint64_t capacity, uint64_t writer_number, int appends, uint64_t seed)
      : memory(capacity), tape(memory.attach()) {
    Writer writer(*tape, writer_number);
    rows::Script script(writer_number, false, 3, seed);
    std::vector<Row> records;
    for (int i = 0; i < appends; ++i) {
      const uint64_t lanes = script.next(&records);
      const Rows given = rows::as_rows(records);
      writer.start(given);
      writer.add_lanes(0, given.n, lanes, rows::marks(records, false), Continue::if_open);
      Hold hold(*tape, 5);
      writer.commit();
    }
  }
};

// Slices drawn before, gathered now: those that are accepted must be slices.
void check_late_reader(const Tape& tape, const View& view, const Slices& slices) {
  std::vector<Row> out(slices.seqs.size());
  const uint64_t tail = gather_records(tape, slices.seqs.data(), slices.seqs.size(),
                                       reinterpret_cast<uint8_t*>(out.data()));
  if (view.stale()) return;
  size_t at = 0;
  for (const int64_t length : slices.lengths) {
    const size_t end = at + static_cast<size_t>(length);
    bool lost = false;
    for (size_t i = at; i < end; ++i) lost = lost || static_cast<uint64_t>(slices.seqs[i]) < tail;
    if (!lost) rows::check_slice(&out[at], end - at);
    at = end;
  }
}

bool has_writer(const Content& c, uint64_t writer) {
  for (const Row& r : c.rows)
    if (r.word[rows::writer] == writer) return true;
  return false;
}

uint64_t attack(uint64_t seed) {
  rows::Random random(seed);
  const uint64_t capacity = 4 + random.below(5);
  Filled target(capacity, 1, 2 + static_cast<int>(random.below(12)), seed);
  Filled source(capacity, 2, 1 + static_cast<int>(random.below(12)), seed + 1);
  const Content checkpoint = read(source.memory, *source.tape);
  std::vector<uint64_t> entries;
  uint64_t index_tail = checkpoint.index_tail;
  for (const RunWords& run : checkpoint.runs)
    if (entries.empty() && run.w[W::first] + run_rows(run.w[W::steps_flags]) <= checkpoint.tail)
      ++index_tail;
    else
      entries.insert(entries.end(), run.w, run.w + W::count);

  const Image start = target.memory.image();
  uint64_t rng[4] = {seed, 2, 3, 4};
  View view(*target.tape);
  view.refresh();
  Slices drawn;
  SliceSpec spec;
  spec.length = 3;
  if (!view.draw_slices(Rng(rng), Window{}, spec, 8, &drawn)) fail("nothing to draw");

  uint64_t instructions = 0;
  const std::vector<Image> states = trace(
      target.memory,
      [&] {
        Hold hold(*target.tape, 5);
        Rows rows;
        rows.n = checkpoint.head - checkpoint.tail;
        rows.records = reinterpret_cast<const uint8_t*>(checkpoint.rows.data());
        target.tape->restore(rows, checkpoint.tail, checkpoint.head, entries.data(), index_tail,
                             checkpoint.index_head, checkpoint.trajectories);
      },
      &instructions);
  const Content after = read(target.memory, *target.tape);
  check_consistent(after, capacity);
  if (after.rows.size() != checkpoint.rows.size()) fail("the restored rows are not all there");

  for (const Image& state : states) {
    target.memory.load_unlocked(start);
    View old(*target.tape);
    old.refresh();
    target.memory.load_unlocked(state);
    check_late_reader(*target.tape, old, drawn);
    for (View* reader : {&view, &old}) {
      // Nothing to draw is fine: readers take the lock then.
      reader->refresh();
      Slices slices;
      if (reader->draw_slices(Rng(rng), Window{}, spec, 8, &slices))
        check_late_reader(*target.tape, *reader, slices);
      std::vector<int64_t> seqs(8);
      if (reader->draw_rows(Rng(rng), Window{}, seqs.data(), seqs.size())) {
        Slices single;
        single.seqs = seqs;
        single.lengths.assign(seqs.size(), 1);
        check_late_reader(*target.tape, *reader, single);
      }
    }
    Hold hold(*target.tape, 5);
    const Content now = read(target.memory, *target.tape);
    check_consistent(now, capacity);
    if (has_writer(now, 1) && has_writer(now, 2)) fail("a mixture of two tapes");
  }
  return states.size();
}

}  // namespace

int main() {
  uint64_t states = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) states += attack(seed);
  std::printf("40 restores, %llu states checked\n", (unsigned long long)states);
  return 0;
}
