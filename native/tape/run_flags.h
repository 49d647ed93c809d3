// Flags of a run: the index and the wire have the same.
#pragma once

#include <cstdint>

namespace contig {

enum RunFlag : uint64_t {
  kBegins = 1,
  kTerminated = 2,
  kTruncated = 4,
  kEnded = kTerminated | kTruncated,
  // In the index only: an append that would have made it longer died.
  kCut = 8,
  // On the wire only: its rows' own marks say where trajectories begin and end, in lanes that
  // start anew, go on if they are open, or go on because the sender says so.
  kMarked = 16,
  kGoesOn = 32,
  kTold = 64,
  // On the wire only: fields of its trajectories are in the frame.
  kHasFields = 128,
  // On the wire only: its id is the sender's name for the trajectory, and its rows carry the one
  // that the index has.
  kRowIds = 256,
  // On the wire only, with kRowIds: its first row is the trajectory's first one, if no beginning.
  kStarts = 512,
  // On the wire only: what the sender says is open are trajectories of the item, and not lanes.
  kSeveral = 1024,
};

}  // namespace contig
