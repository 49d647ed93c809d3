#include "native/kernels/rollout_gae.h"

#include <algorithm>
#include <cstring>

namespace contig {

namespace {

// Lanes that are scanned at once: what they carry stays in the nearest cache.
constexpr size_t kLanes = 1024;

enum class Ends { done, time_out, final_value };

#if defined(_MSC_VER)
#define CONTIG_RESTRICT __restrict
#else
#define CONTIG_RESTRICT __restrict__
#endif

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = uint32_t;
};
template <>
struct Bits<double> {
  using type = uint64_t;
};

// x where `keep` is all ones, 0 where it is 0. Bits, as compilers do not choose between floats by
// flags of one byte with vector instructions.
template <class T, class U = typename Bits<T>::type>
inline T where(U keep, T x) {
  U bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits &= keep;
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// One row of some lanes. No pointer is another's, so that the loop becomes vector instructions.
template <Ends ends, class T>
void one_row(size_t lanes, const T* CONTIG_RESTRICT reward, const T* CONTIG_RESTRICT value,
             const uint8_t* CONTIG_RESTRICT done, const uint8_t* CONTIG_RESTRICT time_out,
             const T* CONTIG_RESTRICT final_value, T gamma, T decay, T* CONTIG_RESTRICT next,
             T* CONTIG_RESTRICT carry, T* CONTIG_RESTRICT advantages, T* CONTIG_RESTRICT returns) {
  using U = typename Bits<T>::type;
  for (size_t i = 0; i < lanes; ++i) {
    const T v = value[i];
    U goes_on = static_cast<U>(done[i]) - 1;  // flags are 0 or 1
    T bootstrap = 0;
    if constexpr (ends != Ends::done) {
      const U late = U(0) - static_cast<U>(time_out[i]);
      goes_on &= ~late;
      bootstrap = where(late, ends == Ends::time_out ? v : final_value[i]);
    }
    bootstrap += where(goes_on, next[i]);
    const T out = reward[i] + gamma * bootstrap - v + where(goes_on, decay * carry[i]);
    carry[i] = out;
    next[i] = v;
    advantages[i] = out;
    returns[i] = out + v;
  }
}

template <Ends ends, class T>
void scan(const Rollout<T>& r, T* advantages, T* returns) {
  for (size_t from = 0; from < r.lanes; from += kLanes) {
    const size_t lanes = std::min(kLanes, r.lanes - from);
    T next[kLanes], carry[kLanes] = {};
    std::copy(r.last_value + from, r.last_value + from + lanes, next);
    for (size_t t = r.time; t-- > 0;) {
      const size_t at = t * r.lanes + from;
      one_row<ends>(lanes, r.reward + at, r.value + at, r.done + at,
                    ends == Ends::done ? nullptr : r.time_out + at,
                    ends == Ends::final_value ? r.final_value + at : nullptr, r.gamma,
                    r.gamma * r.lambda, next, carry, advantages + at, returns + at);
    }
  }
}

}  // namespace

template <class T>
void rollout_gae(const Rollout<T>& r, T* advantages, T* returns) {
  if (r.time_out == nullptr) return scan<Ends::done>(r, advantages, returns);
  if (r.final_value == nullptr) return scan<Ends::time_out>(r, advantages, returns);
  scan<Ends::final_value>(r, advantages, returns);
}

template void rollout_gae<float>(const Rollout<float>&, float*, float*);
template void rollout_gae<double>(const Rollout<double>&, double*, double*);

}  // namespace contig
