// Reverse scans over time: returns of trajectories that lie one after another; gae.h has the
// advantages.
//
// Arrays are [outer, time, inner], contiguous; each of the outer * inner lanes is scanned from its
// last step to its first. `stop` is true where the recursion ends (the last row of an episode or of
// a run); the last step of a lane stops in any case. `terminated` is true where there is no next
// state: its value is not read, whatever it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

template <class T>
struct Steps {
  size_t outer, time, inner;
  const T* reward;
  const T* value;       // null where a target needs none
  const T* next_value;  // null: zeros
  const uint8_t* stop;
  const uint8_t* terminated;
  T gamma;
};

// G = r + gamma ((1 - lambda) V' + lambda G_next), at a stop G = r + gamma V'.
template <class T>
void scan_lambda(const Steps<T>& s, T lambda, T* target);

// target = V + x, x = rho (r + gamma V' - V) + gamma c x_next; advantage = rho (r + gamma v' - V),
// with v' the next step's target, at a stop V'. rho and c are clipped already.
template <class T>
void scan_vtrace(const Steps<T>& s, const T* rho, const T* c, T* advantage, T* target);

// G = r_0 + ... + gamma^(k-1) r_(k-1) + gamma^k V'_(k-1), k = n or fewer up to a stop.
template <class T>
void scan_nstep(const Steps<T>& s, size_t n, T* target);

}  // namespace contig
