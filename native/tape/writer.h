// A writer turns appended rows into runs: it knows which trajectories it has open and reads the
// boundary marks of the data. It belongs to one thread of one process.
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/trajectories.h"

namespace contig {

// Rows of one trajectory, boundaries told by the caller.
struct Told {
  uint64_t flags;  // kBegins, kTerminated, kTruncated
  int64_t traj_id, version;
};

// Who sent what is committed: see Append.
struct Sender {
  uint64_t producer = 0, seq = 0, before = 0;
};

class Writer : Trajectories {
 public:
  Writer(Tape& tape, uint64_t id)
      : tape_(tape), id_(id), restores_(tape.header().restores.load()) {}

  // An append is prepared from stretches of its rows: `start`, then one or more of the others, in
  // the rows' order, then `commit`.
  void start(const Rows& rows);
  using Trajectories::add_lanes, Trajectories::add_rows, Trajectories::bytes;
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
  // Trajectories it has open, by lane (of envs behind kEnvs) or by lane and id; and telling a new
  // writer that they were open elsewhere, so that it does not take their rest for a beginning.
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
  void add_run(Slot& slot, uint64_t from, uint64_t n, const Marks& marks, const Told& told,
               bool starts);
  bool resume(Slot* slot, int64_t traj_id, uint64_t last_entry) const;

  Tape& tape_;
  uint64_t id_;
  Rows rows_;
  uint64_t restores_;
};

}  // namespace contig
