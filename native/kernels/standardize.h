// Columns to mean 0 and deviation 1.
#pragma once

#include <cstddef>

namespace contig {

// (x - mean) / (deviation + epsilon) of each column of [rows, width], in place. The deviation is
// the unbiased one; sums are of doubles. Zeros if there are fewer than two rows.
template <class T>
void standardize(T* data, size_t rows, size_t width, double epsilon);

}  // namespace contig
