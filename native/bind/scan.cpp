// Reverse scans over time, on arrays [outer, time, inner] of float32 or float64; and the advantages
// of rollouts [time, lanes].
#include "native/kernels/scan.h"

#include <nanobind/stl/optional.h>

#include <optional>

#include "handles.h"
#include "native/kernels/gae.h"
#include "native/kernels/standardize.h"

namespace contig {

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<In<T>>;
template <class T>
using Rows = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using OutRows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Lanes = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowFlags = nb::ndarray<const bool, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class A, class B>
void check_shape(const A& reward, const B& other, const char* name) {
  for (size_t d = 0; d < 3; ++d)
    if (reward.shape(d) != other.shape(d))
      throw std::invalid_argument(std::string("scan: ") + name + " has another shape than reward");
}

template <class T>
Steps<T> steps_of(const In<T>& reward, const Maybe<T>& value, const Maybe<T>& next_value,
                  const Flags& stop, const Flags& terminated, double gamma) {
  if (value) check_shape(reward, *value, "value");
  if (next_value) check_shape(reward, *next_value, "next_value");
  check_shape(reward, stop, "stop");
  check_shape(reward, terminated, "terminated");
  Steps<T> s;
  s.outer = reward.shape(0);
  s.time = reward.shape(1);
  s.inner = reward.shape(2);
  s.reward = reward.data();
  s.value = value ? value->data() : nullptr;
  s.next_value = next_value ? next_value->data() : nullptr;
  s.stop = reinterpret_cast<const uint8_t*>(stop.data());
  s.terminated = reinterpret_cast<const uint8_t*>(terminated.data());
  s.gamma = static_cast<T>(gamma);
  return s;
}

// Runs f, without the GIL if it moves enough.
template <class T, class F>
void run(const Steps<T>& s, size_t rounds, F f) {
  const uint64_t bytes = s.outer * s.time * s.inner * sizeof(T) * 4 * rounds;
  if (bytes < kKeepGil) return f();
  NoGil no_gil;
  f();
}

template <class T>
void bind_scans(nb::module_& m) {
  m.def(
      "scan_gae",
      [](In<T> reward, In<T> value, In<T> next_value, Flags stop, Flags terminated, double gamma,
         double lambda, Out<T> advantage, Out<T> target) {
        check_shape(reward, advantage, "advantage");
        check_shape(reward, target, "target");
        const Steps<T> s = steps_of<T>(reward, value, next_value, stop, terminated, gamma);
        T *a = advantage.data(), *g = target.data();
        run(s, 1, [&] { scan_gae(s, static_cast<T>(lambda), a, g); });
      },
      nb::arg("reward").noconvert(), nb::arg("value").noconvert(),
      nb::arg("next_value").noconvert(), nb::arg("stop").noconvert(),
      nb::arg("terminated").noconvert(), nb::arg("gamma"), nb::arg("lmbda"),
      nb::arg("advantage").noconvert(), nb::arg("target").noconvert());
  m.def(
      "scan_lambda",
      [](In<T> reward, Maybe<T> next_value, Flags stop, Flags terminated, double gamma,
         double lambda, Out<T> target) {
        check_shape(reward, target, "target");
        const Steps<T> s = steps_of<T>(reward, std::nullopt, next_value, stop, terminated, gamma);
        T* g = target.data();
        run(s, 1, [&] { scan_lambda(s, static_cast<T>(lambda), g); });
      },
      nb::arg("reward").noconvert(), nb::arg("next_value").noconvert().none(),
      nb::arg("stop").noconvert(), nb::arg("terminated").noconvert(), nb::arg("gamma"),
      nb::arg("lmbda"), nb::arg("target").noconvert());
  m.def(
      "scan_vtrace",
      [](In<T> reward, In<T> value, In<T> next_value, Flags stop, Flags terminated, double gamma,
         In<T> rho, In<T> c, Out<T> advantage, Out<T> target) {
        check_shape(reward, rho, "rho");
        check_shape(reward, c, "c");
        check_shape(reward, advantage, "advantage");
        check_shape(reward, target, "target");
        const Steps<T> s = steps_of<T>(reward, value, next_value, stop, terminated, gamma);
        T *a = advantage.data(), *g = target.data();
        run(s, 2, [&] { scan_vtrace(s, rho.data(), c.data(), a, g); });
      },
      nb::arg("reward").noconvert(), nb::arg("value").noconvert(),
      nb::arg("next_value").noconvert(), nb::arg("stop").noconvert(),
      nb::arg("terminated").noconvert(), nb::arg("gamma"), nb::arg("rho").noconvert(),
      nb::arg("c").noconvert(), nb::arg("advantage").noconvert(), nb::arg("target").noconvert());
  m.def(
      "scan_nstep",
      [](In<T> reward, In<T> next_value, Flags stop, Flags terminated, double gamma, size_t n,
         Out<T> target) {
        if (n == 0) throw std::invalid_argument("scan: n must be at least 1");
        check_shape(reward, target, "target");
        const Steps<T> s = steps_of<T>(reward, std::nullopt, next_value, stop, terminated, gamma);
        T* g = target.data();
        run(s, std::min(n, s.time + 1), [&] { scan_nstep(s, n, g); });
      },
      nb::arg("reward").noconvert(), nb::arg("next_value").noconvert(), nb::arg("stop").noconvert(),
      nb::arg("terminated").noconvert(), nb::arg("gamma"), nb::arg("n"),
      nb::arg("target").noconvert());
  m.def(
      "rollout_gae",
      [](Rows<T> reward, Rows<T> value, Lanes<T> last_value, RowFlags done,
         std::optional<RowFlags> time_out, std::optional<Rows<T>> final_value, double gamma,
         double lambda, OutRows<T> advantages, OutRows<T> returns) {
        const auto check = [&](const auto& other, const char* name) {
          if (other.shape(0) != reward.shape(0) || other.shape(1) != reward.shape(1))
            throw std::invalid_argument(std::string("rollout: ") + name +
                                        " has another shape than reward");
        };
        check(value, "value");
        check(done, "done");
        check(advantages, "advantages");
        check(returns, "returns");
        if (time_out) check(*time_out, "time_out");
        if (final_value) check(*final_value, "final_value");
        if (last_value.shape(0) != reward.shape(1))
          throw std::invalid_argument("rollout: last_value needs one number per lane");
        Rollout<T> r;
        r.time = reward.shape(0);
        r.lanes = reward.shape(1);
        r.reward = reward.data();
        r.value = value.data();
        r.last_value = last_value.data();
        r.done = reinterpret_cast<const uint8_t*>(done.data());
        r.time_out = time_out ? reinterpret_cast<const uint8_t*>(time_out->data()) : nullptr;
        r.final_value = final_value ? final_value->data() : nullptr;
        r.gamma = static_cast<T>(gamma);
        r.lambda = static_cast<T>(lambda);
        if (r.time * r.lanes * sizeof(T) * 4 < kKeepGil)
          return rollout_gae(r, advantages.data(), returns.data());
        T *a = advantages.data(), *g = returns.data();
        NoGil no_gil;
        rollout_gae(r, a, g);
      },
      nb::arg("reward").noconvert(), nb::arg("value").noconvert(),
      nb::arg("last_value").noconvert(), nb::arg("done").noconvert(),
      nb::arg("time_out").noconvert().none(), nb::arg("final_value").noconvert().none(),
      nb::arg("gamma"), nb::arg("lmbda"), nb::arg("advantages").noconvert(),
      nb::arg("returns").noconvert());
  m.def(
      "standardize",
      [](OutRows<T> data, double epsilon) {
        T* const x = data.data();
        const size_t rows = data.shape(0), width = data.shape(1);
        if (rows * width * sizeof(T) * 4 < kKeepGil) return standardize(x, rows, width, epsilon);
        NoGil no_gil;
        standardize(x, rows, width, epsilon);
      },
      nb::arg("data").noconvert(), nb::arg("epsilon"));
}

}  // namespace

void bind_scan(nb::module_& m) {
  bind_scans<float>(m);
  bind_scans<double>(m);
}

}  // namespace contig
