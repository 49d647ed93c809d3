#include "native/kernels/scan.h"

#include <algorithm>

namespace contig {

namespace {

// Lanes that are scanned at once: their chains of additions do not wait for one another.
constexpr size_t kLanes = 512;
constexpr size_t kRows = 8;

// The value of the next state, or 0 where there is none. The load is unconditional, so that loops
// become vector instructions.
template <class T>
inline T bootstrap(const Steps<T>& s, size_t i) {
  const T value = s.next_value[i];
  return s.terminated[i] ? T(0) : value;
}

// Calls f(i, carry, last) for every element, later steps of a lane first: `carry` is what f
// returned for the lane's next step, and 0 at its last one.
template <class T, class F>
void each_reversed(const Steps<T>& s, F f) {
  if (s.inner == 1) {
    for (size_t o = 0; o < s.outer; o += kRows) {
      const size_t n = std::min(kRows, s.outer - o);
      T carry[kRows] = {};
      for (size_t t = s.time; t-- > 0;) {
        const bool last = t + 1 == s.time;
        for (size_t j = 0; j < n; ++j) carry[j] = f((o + j) * s.time + t, carry[j], last);
      }
    }
    return;
  }
  for (size_t o = 0; o < s.outer; ++o) {
    for (size_t from = 0; from < s.inner; from += kLanes) {
      const size_t n = std::min(kLanes, s.inner - from);
      T carry[kLanes] = {};
      for (size_t t = s.time; t-- > 0;) {
        const size_t at = (o * s.time + t) * s.inner + from;
        const bool last = t + 1 == s.time;
        for (size_t j = 0; j < n; ++j) carry[j] = f(at + j, carry[j], last);
      }
    }
  }
}

}  // namespace

template <class T>
void scan_lambda(const Steps<T>& s, T lambda, T* target) {
  const T rest = T(1) - lambda;
  if (s.next_value == nullptr) {
    each_reversed(s, [s, lambda, target](size_t i, T next, bool) {
      const T further = s.gamma * lambda * next;
      return target[i] = s.reward[i] + (s.stop[i] ? T(0) : further);
    });
    return;
  }
  each_reversed(s, [s, lambda, rest, target](size_t i, T next, bool last) {
    const T value = bootstrap(s, i), mixed = rest * value + lambda * next;
    return target[i] = s.reward[i] + s.gamma * (last || s.stop[i] ? value : mixed);
  });
}

template <class T>
void scan_vtrace(const Steps<T>& s, const T* rho, const T* c, T* advantage, T* target) {
  // The carry is the next step's target less its value; what the advantage needs is the target.
  each_reversed(s, [s, rho, c, target](size_t i, T next, bool) {
    const T value = s.value[i], further = s.gamma * c[i] * next;
    const T delta = rho[i] * (s.reward[i] + s.gamma * bootstrap(s, i) - value);
    const T out = delta + (s.stop[i] ? T(0) : further);
    target[i] = out + value;
    return out;
  });
  for (size_t o = 0; o < s.outer; ++o) {
    for (size_t t = 0; t < s.time; ++t) {
      const size_t at = (o * s.time + t) * s.inner;
      const bool last = t + 1 == s.time;
      for (size_t i = at; i < at + s.inner; ++i) {
        const T next = last || s.stop[i] ? bootstrap(s, i) : target[i + s.inner];
        advantage[i] = rho[i] * (s.reward[i] + s.gamma * next - s.value[i]);
      }
    }
  }
}

template <class T>
void scan_nstep(const Steps<T>& s, size_t n, T* target) {
  const T gamma = s.gamma;
  const size_t size = s.outer * s.time * s.inner;
  for (size_t i = 0; i < size; ++i) target[i] = s.reward[i] + gamma * bootstrap(s, i);
  // Each round looks one step further. Earlier steps first, so that the next step's target is still
  // that of the round before.
  const size_t rounds = std::min(n, std::max<size_t>(s.time, 1));
  for (size_t k = 1; k < rounds; ++k) {
    for (size_t o = 0; o < s.outer; ++o) {
      for (size_t t = 0; t + 1 < s.time; ++t) {
        const size_t at = (o * s.time + t) * s.inner;
        for (size_t i = at; i < at + s.inner; ++i)
          if (!s.stop[i]) target[i] = s.reward[i] + gamma * target[i + s.inner];
      }
    }
  }
}

#define CONTIG_SCANS(T)                                                      \
  template void scan_lambda<T>(const Steps<T>&, T, T*);                      \
  template void scan_vtrace<T>(const Steps<T>&, const T*, const T*, T*, T*); \
  template void scan_nstep<T>(const Steps<T>&, size_t, T*);
CONTIG_SCANS(float)
CONTIG_SCANS(double)
#undef CONTIG_SCANS

}  // namespace contig
