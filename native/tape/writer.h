// A writer turns appended rows into runs: it knows which trajectories it has open and reads the
// boundary marks of the data. It belongs to one thread of one process.
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/trajectories.h"

namespace contig {

// Rows of one trajectory, boundaries told by the caller.
struct Told {
  uint64_t flags;  // kBegins, kTerminated, kTruncated, kRowIds, kStarts
  int64_t traj_id;
  int64_t version;  // -1: of each row, what the row says
  Given given = {};
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
  using Trajectories::add_lanes, Trajectories::add_rows;
  // Of what it remembers, the fields and slots of each trajectory too.
  size_t bytes() const {
    const size_t tracks = lanes_.size() + envs_.size() + by_id_.size();
    const size_t slots =
        tape_.form() ? sizeof(SlotTrail) + tape_.form().stack() * sizeof(uint64_t) : 0;
    return Trajectories::bytes() + tracks * (tape_.fields().room() + slots);
  }
  // Rows of a trajectory that no other rows of this writer belong to.
  void add_whole(uint64_t from, uint64_t n, const Marks& marks, const Told& told);
  // Rows of the trajectory of this id, which goes on unless it begins.
  void add_part(uint64_t from, uint64_t n, const Marks& marks, const Told& told);
  // Runs that were prepared so far, and the fields of those from `first` on: with `size` each and
  // a mask in front, one for all, or, if they are lanes of `steps` rows, one for each lane.
  size_t runs() const { return runs_.size(); }
  void give_fields(size_t first, const uint8_t* given, uint64_t size, uint64_t steps);
  // Only this many of the rows, and so many bytes, were prepared, and are to be appended.
  void shorten(uint64_t rows, uint64_t blob_bytes) {
    rows_.n = rows;
    rows_.blob_bytes = blob_bytes;
  }
  // Which slots what was prepared refers to, of rows that are to be stored in files.
  const SlotPlan& plan_stored(const BlobRoom& room, const SlotReader& older);
  // With the lock: one append of what was prepared. Returns the first seq.
  uint64_t commit(const Sender& sender = {}, bool stored = false, const BlobRoom& room = {});

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
  // Goes on, as an env's, with the trajectory that a run on the tape is the last one of; false if
  // it has ended, or is gone. With the lock.
  bool adopt(uint64_t env, uint64_t entry);
  // Goes on where a producer's writer of another process was: of its lane, this run is the last
  // one. False if it is gone, or another one's. With the lock.
  bool take_up(uint64_t entry, bool by_id);
  // Items came before that this writer did not get.
  void miss_items() { missed_ = true; }
  uint64_t id() const { return id_; }
  uint64_t rows() const { return rows_.n; }
  uint64_t kept() const { return kept_; }  // of the last append, rows that have seqs

 private:
  void forget_restored();
  Append append_of(const Sender& sender, bool stored, const BlobRoom& room);
  // One run, or several if the rows carry different versions.
  void add_told(Slot& slot, uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                bool starts, uint64_t lane);
  // Goes on with a trajectory that was taken up, by the id that the index has; false if none was.
  bool go_on_with_taken(Slot& slot, int64_t traj_id);
  // The words of a run on the tape; false if it is gone, or an append to it died.
  bool read_run(uint64_t entry, uint64_t* words) const;
  Track track_of(const uint64_t* words) const;

  Tape& tape_;
  uint64_t id_;
  Rows rows_;
  uint64_t restores_;
  uint64_t kept_ = 0;
};

}  // namespace contig
