// Generalized advantages: d = r + gamma V' - V, A = d + gamma lambda A_next; the target is A + V.
//
// Two forms of one kernel: next values as an array, or as a rollout has them, where a row's next
// value is the next row's. Making that array first, a rollout takes half as long again
// (docs/design/learn.md).
#pragma once

#include "native/kernels/scan.h"

namespace contig {

template <class T>
void scan_gae(const Steps<T>& s, T lambda, T* advantage, T* target);

template <class T>
struct Rollout {
  size_t time, lanes;
  const T* reward;  // [time, lanes]
  const T* value;
  const T* last_value;      // [lanes], of the states behind the last row
  const uint8_t* done;      // nothing flows over such a row
  const uint8_t* time_out;  // also a done, of a state that had a value yet; null: none
  const T* final_value;     // that value; null: the row's own
  T gamma, lambda;
};

template <class T>
void rollout_gae(const Rollout<T>& r, T* advantages, T* returns);

}  // namespace contig
