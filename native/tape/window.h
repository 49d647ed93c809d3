// What a sampler asks of the index: which part of the tape, and which slices.
#pragma once

#include <cstdint>

namespace contig {

// What a sampler may draw from: all of the tape, or a part of it.
struct Window {
  uint64_t min_seq = 0, min_ordinal = 0;
  int64_t min_version = INT64_MIN;
  uint64_t filters = 0;  // of the view, those that must hold for a trajectory: a bit each
  bool any_version() const { return min_version == INT64_MIN; }
  // Whether it has every row from some row on.
  bool contiguous() const { return min_ordinal == 0 && any_version() && filters == 0; }
};

struct SliceSpec {
  uint64_t length = 1;
  bool strict = false, complete_only = false, over_steps = false;
  uint64_t span_left = 0, span_right = 0, burn_in = 0;

  // Single rows, each judged by its own run.
  bool one_row() const { return length == 1 && !complete_only && burn_in == 0; }
  // Single rows of eligible trajectories, each alike.
  bool single_steps() const { return length == 1 && over_steps && burn_in == 0; }
  // Whether every trajectory that has a row can give a slice, and each counts the same.
  bool any_trajectory() const { return !strict && !complete_only && !over_steps; }
};

}  // namespace contig
