// One reader's mirror of the index: which trajectories are alive, in the order in which they
// began, and which run each of them ends with. It takes in new entries before each draw, so index
// work is proportional to what was written since, never to what is stored.
//
// Belongs to one thread at a time. Nothing in it is shared.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "native/kernels/rng.h"
#include "native/sys/sparse.h"
#include "native/tape/fenwick.h"
#include "native/tape/filter.h"
#include "native/tape/ledger.h"
#include "native/tape/run_hints.h"
#include "native/tape/tape.h"
#include "native/tape/versions.h"
#include "native/tape/window.h"

namespace contig {

// Steps [start, end) of a trajectory that are usable now; `last` is its last run.
struct Extent {
  uint64_t last, start, end;
  bool begins;
  uint64_t ended;  // flags, or 0
  uint64_t ordinal;
};

// Which row of a trajectory is wanted for one of its rows: any from that one on, the last there is,
// or any there is.
enum class Kin { future, last, any };

// Slices, one after another: seqs of all rows; of each, its rows, how many of them are burn-in, and
// how its trajectory ended (flags) if it ended with the slice's last row, else 0.
struct Slices {
  std::vector<int64_t> seqs, lengths, burn, ends;
  // Makes room for `n` more, of about so many rows each.
  void reserve(size_t n, size_t rows) {
    seqs.reserve(seqs.size() + n * rows);
    for (auto* each : {&lengths, &burn, &ends}) each->reserve(each->size() + n);
  }
};

class View {
 public:
  explicit View(const Tape& tape);

  // Takes in what was written since. Everything else works on the state of the last refresh.
  void refresh();
  const Snapshot& at() const { return at_; }
  // Whether a checkpoint was loaded since the last refresh, or is being loaded: seqs drawn before
  // may be other rows now. To be asked after a gather.
  bool stale() const;
  // Which checkpoint it had seen by the last refresh: another number, other rows.
  uint64_t restores() const { return restores_; }
  uint64_t trajectories() const { return alive_.total(); }
  // The newest policy version of the runs there are.
  int64_t max_version() const;
  // The ordinal of the k-th newest living trajectory (k >= 1), or of the oldest.
  uint64_t ordinal_of_newest(uint64_t k) const;
  // Entries read, weights computed and rows listed since it was made: what keeping up has cost.
  uint64_t work() const { return work_; }
  // Calls `tire(of)` once, as soon as `work()` is going to be more than that. A call that takes in
  // what others have written may be short or long, which it finds out only while it works.
  void set_patience(uint64_t most, void (*tire)(void*), void* of) {
    patience_ = most, tire_ = tire, tired_ = of;
  }

  // Whether the window has a row, judged by the row's own run; and all rows it has, as spans.
  bool row_in(uint64_t seq, const Window& w) const;
  void spans_in(const Window& w, std::vector<int64_t>* firsts, std::vector<int64_t>* counts);

  // Between how much the two draws below choose: rows, trajectories, or starts of slices.
  uint64_t weigh_rows(const Window& w);
  uint64_t weigh_slices(const Window& w, const SliceSpec& spec);
  // Each returns false if nothing is eligible.
  bool draw_rows(Rng rng, const Window& w, int64_t* out, size_t n);
  bool draw_slices(Rng rng, const Window& w, const SliceSpec& spec, size_t n, Slices* out);
  // One slice of a given trajectory, by rank of its ordinal; false if it is gone or ineligible.
  bool slice_of(Rng rng, const Window& w, const SliceSpec& spec, uint64_t ordinal, Slices* out);
  bool has_trajectory(uint64_t ordinal, const Window& w, const SliceSpec& spec);
  // Slices that start at given rows; valid[i] = 0 where row i is no valid start.
  void slices_from(const int64_t* seqs, size_t n, const Window& w, const SliceSpec& spec,
                   uint8_t* valid, Slices* out);
  // Up to `length` rows that follow each given row in its trajectory, the row included: only their
  // seqs and lengths.
  void follow(const int64_t* seqs, size_t n, uint64_t length, Slices* out) const;
  // For each row, another one of its trajectory; the row itself if it is gone meanwhile.
  void draw_kin(Rng rng, const int64_t* seqs, size_t n, const Window& w, Kin which, int64_t* out);
  // A trajectory's newest run, whose fields are its; kNone if it is gone. And the trajectory that a
  // row belongs to, of several rows: -1 if it is gone.
  uint64_t last_run(uint64_t ordinal) const;
  void trajectories_of(const int64_t* seqs, size_t n, int64_t* ordinals) const;
  // All rows of a trajectory that are stored now; none if it is gone. Returns how many steps it had
  // before them, which were evicted.
  uint64_t rows_of(uint64_t ordinal, std::vector<int64_t>* out);
  // Eligible trajectories: how many, and their ordinals.
  uint64_t count(const Window& w, const SliceSpec& spec) { return ledger(w, spec, false).items(); }
  void ordinals(std::vector<int64_t>* out, const Window& w, const SliceSpec& spec);
  // What changed since `token` was given: valid starts (of one-row specs, eligible rows), or
  // eligible trajectories.
  void changed_rows(const Window& w, const SliceSpec& spec, uint64_t token, Changes* out);
  void changed_ordinals(const Window& w, const SliceSpec& spec, uint64_t token, Changes* out);

  // Predicates over trajectories, by number (see filter.h); a window names those that must hold.
  // `follows`: what changes is listed, and so is who reaches one of the ages (in rows, from 1 on).
  uint64_t add_filter(bool follows, const std::vector<uint64_t>& ages);
  void drop_filter(uint64_t filter);
  void look_again(uint64_t filter);  // everything has changed
  uint64_t passing(uint64_t filter) const { return filters_.at(filter).passing; }
  // What is to be judged; false if nothing is. It stays so until it is judged.
  bool changed_trajectories(uint64_t filter, ChangedTrajectories* out);
  void judge(uint64_t filter, const bool* passes, size_t n);  // of those handed out last
  // The same of some trajectories, in order; false if nothing can be said about one just now.
  bool describe_trajectories(const int64_t* ordinals, size_t n, ChangedTrajectories* out) const;
  void set_passes(uint64_t filter, const int64_t* ordinals, const bool* passes, size_t n);
  // Up to n eligible trajectories, each alike. `once`: a filter that ceases to hold for those that
  // are drawn, so that none is drawn twice; -1: with replacement.
  void draw_trajectories(Rng rng, const Window& w, const SliceSpec& spec, size_t n, int once,
                         std::vector<int64_t>* out);

 private:
  friend class Ledger;

  // What is stored of a trajectory, so that no entry has to be read to know it.
  struct Trajectory {
    uint64_t ordinal, last = 0, runs = 0;  // its last run, and how many there are
    uint64_t first = kNone;                // step at which its first run starts; kNone: look it up
    uint64_t end = 0;                      // steps up to the head
    uint64_t flags = 0;                    // kBegins of its very first run; how it ended, if it did
    uint64_t passes = 0, changed = 0;      // filters that hold; those that list it as changed
  };
  struct NewRun {
    EntryView entry;
    uint64_t end, ended;  // steps of the trajectory up to the head; flags, or 0
  };
  struct Place {
    uint32_t slot, steps;  // a run's trajectory, and its rows
  };

  NewRun seen(const EntryView& e) const;
  void take(const std::vector<NewRun>& runs, uint64_t from);
  void rebuild(const std::vector<NewRun>& runs, uint64_t from);
  void grow_newest();
  void cut_oldest();
  void place(uint64_t number, uint32_t slot, const NewRun& run);
  void note_version(uint64_t number, int64_t version);
  void watch_versions();
  uint32_t add_trajectory(uint64_t ordinal);
  void drop_run(uint64_t number);
  void touch(uint64_t number);
  void compact();
  bool passes(const Trajectory& t, const Window& w) const {
    return (t.passes & w.filters) == w.filters;
  }
  void note_change(uint32_t slot, uint64_t filters);
  void forget_passes(Trajectory* t);
  void reset_filters();
  void note_fields();
  void pass_ages(uint64_t filter);
  bool describe(uint32_t slot, ChangedTrajectories* out) const;
  void set_pass(uint32_t slot, uint64_t filter, bool passes);
  uint32_t select(uint64_t rank) const;
  uint32_t slot_of(uint64_t number) const { return places_[number % ring_].slot; }
  uint32_t slot_from(uint64_t ordinal) const;  // of the first trajectory that began then or later
  Ledger& ledger(const Window& w, const SliceSpec& spec, bool rows);

  void expect(uint64_t work) const {
    if (work_ + work <= patience_) return;
    patience_ = ~uint64_t{0};
    tire_(tired_);
  }
  bool read(uint64_t number, EntryView* e) const {
    expect(1);
    ++work_;
    return tape_.read_entry(number, e);
  }
  bool usable(uint64_t number, const Window& w, EntryView* e) const;
  // The first of a trajectory's runs that has rows from `low` on.
  bool earliest(uint64_t last, uint64_t low, EntryView* e) const;
  bool extent_of(uint32_t slot, const Window& w, Extent* out) const;
  bool eligible(const Extent& x, const SliceSpec& spec) const;
  // Where the rows of a window begin, if it has every row from there on.
  bool all_from(const Window& w, uint64_t* low) const;
  struct Cut {
    uint64_t length, left, right;  // of a whole slice; rows that may lie outside on either side
  };
  static Cut cut_of(const Extent& x, const SliceSpec& spec);
  static uint64_t count_starts(const Extent& x, const SliceSpec& spec);
  bool find_row(uint64_t seq, EntryView* e, uint64_t* number) const;
  static uint64_t middle(uint64_t low, uint64_t high, uint64_t low_first, uint64_t high_first,
                         uint64_t seq, int step);
  void find_runs(const int64_t* seqs, size_t n, uint64_t length, uint64_t* numbers,
                 uint64_t* ends = nullptr) const;
  size_t draw_singles(Rng rng, const Window& w, const SliceSpec& spec, size_t n, Slices* out) const;
  bool kin_of(Rng rng, uint64_t seq, uint64_t number, const Window& w, Kin which,
              int64_t* out) const;
  void follow_row(uint64_t number, uint64_t length, Slices* out) const;
  bool run_after(uint64_t number, const EntryView& e, EntryView* next, uint64_t* next_number) const;
  bool run_holding(uint64_t last, uint64_t step, EntryView* e) const;
  bool emit(const Extent& x, uint64_t start_choice, const SliceSpec& spec, Slices* out) const;
  bool emit_steps(const Extent& x, uint64_t a, uint64_t b, uint64_t burn, Slices* out) const;
  // Seqs of those steps of [a, b) that are still stored, in any order.
  void rows_between(uint64_t last, uint64_t a, uint64_t b, std::vector<int64_t>* out) const;

  const Tape& tape_;
  Snapshot at_{};
  uint64_t seen_head_ = 0, seen_tail_ = 0, restores_ = 0, ring_;
  SparseArray<Place> places_;  // by entry number % ring
  RunHints hints_;
  uint32_t cut_slot_ = 0;  // whose first run has lost rows, and how many
  uint64_t cut_steps_ = 0, cut_run_ = 0;
  std::vector<Trajectory> trajs_;  // ordered by ordinal
  Fenwick alive_;                  // 1 for each that has runs
  std::vector<NewRun> scratch_;
  std::deque<std::pair<uint64_t, int64_t>> newest_;  // (run, version), falling versions
  Versions versions_;
  bool watches_versions_ = false;
  std::vector<std::unique_ptr<Ledger>> ledgers_;  // the last used first
  std::vector<Filter> filters_;
  uint64_t listing_ = 0;      // filters that list what changes
  uint64_t fields_seen_ = 0;  // changes of fields that were taken in
  mutable uint64_t work_ = 0, patience_ = ~uint64_t{0};
  void (*tire_)(void*) = nullptr;
  void* tired_ = nullptr;
};

}  // namespace contig
