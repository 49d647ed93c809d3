// Marked rows on the wire: how they go on, and which trajectories their sender has open. A server
// that was started anew learns from it which rows are no beginning.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "native/tape/trajectories.h"
#include "native/wire/frame.h"

namespace contig {

Continue rule_of(const WireRun& run);
// Only a step of several envs goes on by itself in several lanes.
bool is_step(const WireRun& run);

// What a client knows of its marked rows. For one thread at a time.
class OpenLanes : Trajectories {
 public:
  // Puts what the sender has open into a run of these rows. Nothing counts until it is committed.
  void tell(const Marks& marks, WireRun* run);
  // Whether what was told holds if the rows become a part of the item before them.
  bool may_grow() const { return may_grow_; }
  void commit();

 private:
  std::unordered_set<const Track*> seen_;
  const Track* last_ = nullptr;  // whose row was the last one
  uint64_t items_ = 0;
  bool may_grow_ = false;
};

}  // namespace contig
