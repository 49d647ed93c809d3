#include "native/kernels/gae.h"

#include <algorithm>
#include <cstring>

namespace contig {

namespace {

// Lanes that are scanned at once: what they carry stays in the nearest cache.
constexpr size_t kLanes = 1024;
// Where time is the innermost dim: their chains of additions do not wait for one another.
constexpr size_t kChains = 8;

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

// All ones unless the flag, which is 0 or 1, is set.
template <class T, class U = typename Bits<T>::type>
inline U unless(uint8_t flag) {
  return static_cast<U>(flag) - 1;
}

template <class T, class U = typename Bits<T>::type>
inline T step(T reward, T value, T bootstrap, U goes_on, T gamma, T decay, T next) {
  return reward + gamma * bootstrap - value + where(goes_on, decay * next);
}

// Where a row's next value is from.
enum class Next {
  given,        // `after`, unless the row is in `flag` (terminated)
  row,          // the next row
  own,          // and, where the row is in `flag` (timed out), its own value
  final_value,  // or `after`
};

// One row of some lanes. No pointer is another's, so that the loop becomes vector instructions.
template <Next from, class T>
void one_row(size_t lanes, const T* CONTIG_RESTRICT reward, const T* CONTIG_RESTRICT value,
             const uint8_t* CONTIG_RESTRICT stop, const uint8_t* CONTIG_RESTRICT flag,
             const T* CONTIG_RESTRICT after, T gamma, T decay, T* CONTIG_RESTRICT next,
             T* CONTIG_RESTRICT carry, T* CONTIG_RESTRICT advantages, T* CONTIG_RESTRICT targets) {
  for (size_t i = 0; i < lanes; ++i) {
    const T v = value[i];
    auto goes_on = unless<T>(stop[i]);
    T bootstrap = 0;
    if constexpr (from == Next::given) {
      bootstrap = where(unless<T>(flag[i]), after[i]);
    } else {
      if constexpr (from != Next::row) {
        const auto in_time = unless<T>(flag[i]);
        goes_on &= in_time;
        bootstrap = where(~in_time, from == Next::own ? v : after[i]);
      }
      bootstrap += where(goes_on, next[i]);
    }
    const T out = step(reward[i], v, bootstrap, goes_on, gamma, decay, carry[i]);
    carry[i] = out;
    if constexpr (from != Next::given) next[i] = v;
    advantages[i] = out;
    targets[i] = out + v;
  }
}

// Rows [time, lanes], the last one first.
template <Next from, class T>
void scan(size_t time, size_t lanes, const T* reward, const T* value, const uint8_t* stop,
          const uint8_t* flag, const T* after, const T* last_value, T gamma, T lambda,
          T* advantages, T* targets) {
  for (size_t low = 0; low < lanes; low += kLanes) {
    const size_t n = std::min(kLanes, lanes - low);
    T next[kLanes], carry[kLanes] = {};
    if (last_value != nullptr) std::copy(last_value + low, last_value + low + n, next);
    for (size_t t = time; t-- > 0;) {
      const size_t at = t * lanes + low;
      one_row<from>(n, reward + at, value + at, stop + at, from == Next::row ? nullptr : flag + at,
                    from == Next::given || from == Next::final_value ? after + at : nullptr, gamma,
                    gamma * lambda, next, carry, advantages + at, targets + at);
    }
  }
}

}  // namespace

template <class T>
void scan_gae(const Steps<T>& s, T lambda, T* advantage, T* target) {
  if (s.inner != 1) {
    for (size_t o = 0; o < s.outer; ++o) {
      const size_t at = o * s.time * s.inner;
      scan<Next::given, T>(s.time, s.inner, s.reward + at, s.value + at, s.stop + at,
                           s.terminated + at, s.next_value + at, nullptr, s.gamma, lambda,
                           advantage + at, target + at);
    }
    return;
  }
  for (size_t o = 0; o < s.outer; o += kChains) {
    const size_t n = std::min(kChains, s.outer - o);
    T carry[kChains] = {};
    for (size_t t = s.time; t-- > 0;) {
      for (size_t j = 0; j < n; ++j) {
        const size_t i = (o + j) * s.time + t;
        const T bootstrap = where(unless<T>(s.terminated[i]), s.next_value[i]);
        carry[j] = step(s.reward[i], s.value[i], bootstrap, unless<T>(s.stop[i]), s.gamma,
                        s.gamma * lambda, carry[j]);
        advantage[i] = carry[j];
        target[i] = carry[j] + s.value[i];
      }
    }
  }
}

template <class T>
void rollout_gae(const Rollout<T>& r, T* advantages, T* returns) {
  const auto run = r.time_out == nullptr      ? scan<Next::row, T>
                   : r.final_value == nullptr ? scan<Next::own, T>
                                              : scan<Next::final_value, T>;
  run(r.time, r.lanes, r.reward, r.value, r.done, r.time_out, r.final_value, r.last_value, r.gamma,
      r.lambda, advantages, returns);
}

template void scan_gae<float>(const Steps<float>&, float, float*, float*);
template void scan_gae<double>(const Steps<double>&, double, double*, double*);
template void rollout_gae<float>(const Rollout<float>&, float*, float*);
template void rollout_gae<double>(const Rollout<double>&, double*, double*);

}  // namespace contig
