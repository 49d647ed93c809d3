// The marks of slices in a gathered batch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

// One flag column: `bytes` per row, and what "true" looks like in them. data null: no such column.
struct FlagColumn {
  uint8_t* data = nullptr;
  size_t bytes = 0;
  const uint8_t* one = nullptr;
};

struct SliceFlags {
  FlagColumn init, done, terminated, truncated, slice_end;
  bool told;  // the done flags are not stored: `ends` says how trajectories ended
};

// Slices lie one after another, lengths[i] rows each, of which the first real[i] are real and the
// rest padding. ends[i]: index flags if the trajectory ended with the slice's last row, else 0.
// `init` at each first row; at each last real row that is not terminated,
// `truncated` and `done`; `slice_end` there if it was not done before. Padding gets no marks.
void mark_slices(const SliceFlags& flags, const int64_t* lengths, const int64_t* real,
                 const int64_t* ends, size_t n);

}  // namespace contig
