// How many of n draws fall to each of some parts, in proportion to their masses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/kernels/rng.h"

namespace contig {

// Masses that are whole numbers are taken exactly; others as a uniform number of 53 bits can be.
inline std::vector<uint64_t> multinomial(Rng rng, const std::vector<double>& masses, size_t n) {
  std::vector<double> upto(masses.size());
  double total = 0;
  bool whole = true;
  for (size_t i = 0; i < masses.size(); ++i) {
    whole = whole && std::floor(masses[i]) == masses[i];
    upto[i] = total += std::max(masses[i], 0.0);
  }
  whole = whole && total >= 1 && total < 0x1.0p53;
  std::vector<uint64_t> out(masses.size(), 0);
  if (!(total > 0)) return out;
  for (size_t k = 0; k < n; ++k) {
    const double u =
        whole ? static_cast<double>(rng.below(static_cast<uint64_t>(total))) : rng.unit() * total;
    size_t i = static_cast<size_t>(std::upper_bound(upto.begin(), upto.end(), u) - upto.begin());
    // A product that was rounded up to the total is the last one's that has any.
    if (i == upto.size())
      i = static_cast<size_t>(std::lower_bound(upto.begin(), upto.end(), total) - upto.begin());
    ++out[i];
  }
  return out;
}

}  // namespace contig
