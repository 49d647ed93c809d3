// Which trajectory each appended row belongs to, by its lane or id and its boundary marks. The same
// for who writes to a tape and for who tells another one what to write. For one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "native/tape/tape.h"

namespace contig {

// A per-row scalar of the data, wherever it lies: in records or in a column.
struct Mark {
  enum Kind { none, b1, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64 };
  Kind kind = none;
  const uint8_t* data = nullptr;
  size_t stride = 0;
  size_t count = 1;  // elements per row (rewards only)

  explicit operator bool() const { return kind != none; }
  bool truth(uint64_t row) const;
  int64_t integer(uint64_t row) const;
  double sum(uint64_t row) const;
  // The first of rows [row, end) that is true, or is another number; `end` if none is.
  uint64_t next_true(uint64_t row, uint64_t end) const;
  uint64_t next_other(int64_t value, uint64_t row, uint64_t end) const;
  // A sum that goes on with those of rows [row, end), one after another.
  double add_to(double total, uint64_t row, uint64_t end) const;
};

struct Marks {
  Mark id, done, terminated, truncated, init, version, reward;
  bool id_alone = false;  // an explicit traj_key decides alone
  // After a row at which its trajectory did not end: of rows [row, end), up to which ones nothing
  // begins or ends; or fewer of them.
  uint64_t quiet_until(uint64_t row, uint64_t end) const;
};

// Does the first row of a lane continue the lane's trajectory when no mark says otherwise?
// `told`: the caller says so, so if this writer holds no such trajectory, it is no beginning.
enum class Continue { no, if_open, told };

// What the sender of an item says it has open, as bits; those 64 apart share one: lanes whose first
// row goes on with an earlier item's trajectory; or, with `by_trajectory`, which trajectories of
// the item do, in the order in which they come. A writer that does not know such a trajectory did
// not get its beginning.
struct SenderOpen {
  uint64_t bits = 0;
  bool by_trajectory = false, is_known = false;
  bool has(uint64_t number) const { return (bits >> (number % 64) & 1) != 0; }
};

// Fields that an append gives: one record and mask for all of its trajectories, or one for each
// lane (or row of a step), or for each row, of which a run's last one counts. They stay where they
// are until the append is committed.
struct Given {
  enum class For { all, lanes, rows };
  const uint8_t* records = nullptr;
  const uint64_t* masks = nullptr;
  size_t size = 0;  // of a record
  For whom = For::all;

  explicit operator bool() const { return masks != nullptr; }
  // `last`: the run's last row.
  void to(Run* run, uint64_t lane, uint64_t last) const {
    const uint64_t i = whom == For::all ? 0 : whom == For::lanes ? lane : last;
    run->fields = records + i * size;
    run->field_mask = masks[i];
  }
};

class Trajectories {
 public:
  Trajectories() = default;
  Trajectories(const Trajectories&) = delete;
  Trajectories& operator=(const Trajectories&) = delete;

 protected:
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

  // Of what it remembers of trajectories; as large as whoever appends makes it.
  size_t bytes() const;
  // Forgets what was prepared. `index_tail`: the oldest entry of the index that is still there.
  void prepare(uint64_t index_tail);
  // Rows [from, from + n) as lanes, one after another; boundaries by their marks.
  void add_lanes(uint64_t from, uint64_t n, uint64_t lanes, const Marks& marks, Continue rule,
                 const Given& given = {}, const SenderOpen& sender = {});
  // Rows [from, from + n), each the next one of its env: of the one that `envs` says, or row i of
  // env i. Without ids, envs and lanes have nothing to do with each other.
  void add_rows(uint64_t from, uint64_t n, const int64_t* envs, const Marks& marks, Continue rule,
                const Given& given = {}, const SenderOpen& sender = {});
  // Of every open trajectory: what comes of it is no beginning.
  void let_go();
  bool known(const Slot& slot) const { return slot.stamp == stamp_ || slot.track.known; }
  bool open(const Slot& slot) const { return known(slot) && !ended(slot); }
  bool ended(const Slot& slot) const;

  std::vector<Run> runs_;   // of the rows that were prepared
  std::deque<Slot> lanes_;  // runs point to them while more are added
  std::deque<Slot> envs_;   // the same of steps
  std::unordered_map<Key, Slot, KeyHash> by_id_;
  uint64_t stamp_ = 0;
  bool missed_ = false;  // some of what was sent before is not known here

 private:
  // Where a lane's rows are, and what its sender says of what was before them.
  struct LaneRows {
    uint64_t lane, from, steps;
    SenderOpen sender;
    bool leads_open;  // the sender says so of the first row
  };
  void split_lane(const Marks& marks, std::deque<Slot>& slots, const LaneRows& rows, Continue rule);
  // To the runs of a lane from this one on, whose first row is `row`.
  void give(size_t first_run, const Given& given, uint64_t lane, uint64_t row);
  void prune(uint64_t index_tail);

  std::unordered_set<const Slot*> in_item_;  // of an item that says more than of lanes
  size_t prune_at_ = 1024;
};

}  // namespace contig
