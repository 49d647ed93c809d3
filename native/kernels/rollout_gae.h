// Advantages and returns of a rollout: [time, lanes], each row's next value being the next row's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

template <class T>
struct Rollout {
  size_t time, lanes;
  const T* reward;
  const T* value;
  const T* last_value;      // [lanes], of the states behind the last row
  const uint8_t* done;      // nothing flows over such a row
  const uint8_t* time_out;  // also a done, of a state that had a value yet; null: none
  const T* final_value;     // that value; null: the row's own
  T gamma, lambda;
};

// d = r + gamma V' - V, A = d + gamma lambda A_next; returns = A + V.
template <class T>
void rollout_gae(const Rollout<T>& r, T* advantages, T* returns);

}  // namespace contig
