// Which trajectories of a mirror of the index a predicate holds for.
//
// The predicate is somebody else's, who evaluates it for many trajectories at once. The View lists
// those that have changed since: new ones, grown, ended or trimmed, those whose fields were set,
// and those that have reached an age. So looking at them costs what was written since, whatever is
// stored.
//
// Belongs to its View.
#pragma once

#include <cstdint>
#include <vector>

namespace contig {

struct Filter {
  struct Age {
    uint64_t rows;  // since a trajectory's newest row
    uint64_t next;  // the first run that is not as old as that
  };

  bool used = false;
  bool follows = false;           // changes are listed; else its owner knows what to tell
  bool all = false;               // everything has changed, whatever the list says
  std::vector<uint64_t> changed;  // ordinals, each once
  std::vector<uint64_t> handed;   // of those that are being judged
  std::vector<uint64_t> left;     // of those that nothing could be said about just now
  std::vector<Age> ages;
  uint64_t passing = 0;  // trajectories that it holds for
};

// Trajectories to be judged, column by column; and those that are no more.
struct ChangedTrajectories {
  enum Column { ordinal, steps, flags, version, ret, age, last, time_ns, count };
  bool all = false;  // these are all there are
  std::vector<int64_t> columns[count], gone;
};

}  // namespace contig
