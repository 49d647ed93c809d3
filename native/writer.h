// A writer turns appended rows into runs: it knows which trajectories it has open and reads the
// boundary marks of the data. It belongs to one thread of one process.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "tape.h"

namespace contig {

// A per-row scalar of the data, wherever it lies: in records or in a column.
struct Mark {
  enum Kind { none, b1, i8, u8, i16, u16, i32, u32, i64, u64, f32, f64 };
  Kind kind = none;
  const uint8_t* data = nullptr;
  size_t stride = 0;
  size_t count = 1;  // elements per row (rewards only)

  explicit operator bool() const { return kind != none; }
  bool truth(uint64_t row) const;
  int64_t integer(uint64_t row) const;
  double sum(uint64_t row) const;
};

struct Marks {
  Mark id, done, terminated, truncated, init, version, reward;
  bool id_alone = false;  // an explicit traj_key decides alone
};

// Does the first row of a lane continue the lane's trajectory when no mark says otherwise?
// `told`: the caller says so, so if this writer holds no such trajectory, it is no beginning.
enum class Continue { no, if_open, told };

// Rows of one trajectory, boundaries told by the caller.
struct Told {
  uint64_t flags;  // kBegins, kTerminated, kTruncated
  int64_t traj_id, version;
};

// Who sent what is committed: see Append.
struct Sender {
  uint64_t producer = 0, seq = 0, before = 0;
};

class Writer {
 public:
  Writer(Tape& tape, uint64_t id)
      : tape_(tape), id_(id), restores_(tape.header().restores.load()) {}

  // An append is prepared from stretches of its rows: `start`, then one or more of the others, in
  // the rows' order, then `commit`.
  void start(const Rows& rows);
  // Rows [from, from + n) as lanes, one after another; boundaries by their marks.
  void add_lanes(uint64_t from, uint64_t n, uint64_t lanes, const Marks& marks, Continue rule);
  // Rows [from, from + n), each the next one of the lane that `lanes` says.
  void add_rows(uint64_t from, uint64_t n, const int64_t* lanes, const Marks& marks, Continue rule);
  // Rows of a trajectory that no other rows of this writer belong to.
  void add_whole(uint64_t from, uint64_t n, const Marks& marks, const Told& told);
  // Rows of the trajectory of this id, which goes on unless it begins. One that this writer does
  // not know may be the one that `last_entry` of the tape is a run of. With the lock.
  void add_part(uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                uint64_t last_entry);
  // Only this many of the rows were prepared, and are to be appended.
  void shorten(uint64_t rows) { rows_.n = rows; }
  // With the lock: one append of what was prepared. Returns the first seq.
  uint64_t commit(const Sender& sender = {}, bool stored = false);

  // Lets go of every open trajectory: the writer went to another thread or process.
  void restart(uint64_t id);
  // Trajectories it has open, as (lane, id, whether by id); and telling a new writer that they were
  // open elsewhere, so that it does not take their rest for a beginning.
  struct Open {
    uint64_t lane;
    int64_t id;
    bool by_id;
  };
  std::vector<Open> open_trajectories() const;
  void orphan(const Open& open);
  uint64_t id() const { return id_; }
  uint64_t rows() const { return rows_.n; }

 private:
  struct Key {
    uint64_t lane;
    int64_t id;
    bool operator==(const Key& o) const { return lane == o.lane && id == o.id; }
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      return (k.lane * 0x9E3779B97F4A7C15ull) ^
             (static_cast<uint64_t>(k.id) * 0xD6E8FEB86659FD93ull);
    }
  };
  struct Slot {
    Track track;
    uint64_t stamp = 0;   // the prepare that last touched it
    bool ended = false;   // by that prepare's rows so far
    bool orphan = false;  // another thread or process had it open: what comes is no beginning
  };

  void split_lane(const Marks& marks, uint64_t lane, uint64_t from, uint64_t steps, Continue rule);
  void add_run(Slot& slot, uint64_t from, uint64_t n, const Marks& marks, const Told& told,
               bool starts);
  bool resume(Slot* slot, int64_t traj_id, uint64_t last_entry) const;
  bool open(const Slot& slot) const;
  bool ended(const Slot& slot) const;
  void prune();

  Tape& tape_;
  uint64_t id_;
  Rows rows_;
  std::vector<Run> runs_;
  std::deque<Slot> lanes_;  // runs point to them while more are added
  std::unordered_map<Key, Slot, KeyHash> by_id_;
  uint64_t stamp_ = 0;
  size_t prune_at_ = 1024;
  uint64_t restores_;
};

}  // namespace contig
