// A reader's view of the index, and drawing from it.
#include <nanobind/stl/vector.h>

#include "handles.h"

namespace contig {

Window window_of(nb::handle w) {
  Window out;
  if (w.is_none()) return out;
  const auto t = nb::borrow<nb::tuple>(w);
  out.min_seq = nb::cast<uint64_t>(t[0]);
  out.min_ordinal = nb::cast<uint64_t>(t[1]);
  if (!t[2].is_none()) out.min_version = nb::cast<int64_t>(t[2]);
  if (t.size() > 3) out.filters = nb::cast<uint64_t>(t[3]);
  return out;
}

namespace {

nb::tuple slices_tuple(const Slices& s) {
  return nb::make_tuple(to_array(s.seqs), to_array(s.lengths), to_array(s.burn), to_array(s.ends));
}

nb::object draw_slices(ViewHandle& v, State rng, nb::object window, const SliceSpec& spec,
                       size_t n) {
  Slices out;
  const Rng from = rng_of(rng);
  const Window w = window_of(window);
  if (!v.call([&](View& view) { return view.draw_slices(from, w, spec, n, &out); }))
    return nb::none();
  return slices_tuple(out);
}

nb::object draw_rows(ViewHandle& v, State rng, nb::object window, size_t n) {
  std::vector<int64_t> seqs(n);
  const Rng from = rng_of(rng);
  const Window w = window_of(window);
  if (!v.call([&](View& view) { return view.draw_rows(from, w, seqs.data(), n); }))
    return nb::none();
  return to_array(seqs);
}

// One slice of each of the first `n` trajectories of the list that can give one; also how many of
// the list were used up.
nb::tuple slices_of(ViewHandle& v, State rng, nb::object window, const SliceSpec& spec,
                    Seqs ordinals, size_t n) {
  Slices out;
  size_t used = 0;
  const Rng from = rng_of(rng);
  const Window w = window_of(window);
  v.call([&](View& view) {
    while (used < ordinals.shape(0) && out.lengths.size() < n)
      view.slice_of(from, w, spec, static_cast<uint64_t>(ordinals.data()[used++]), &out);
  });
  return nb::make_tuple(slices_tuple(out), used);
}

nb::tuple slices_from(ViewHandle& v, Seqs seqs, nb::object window, const SliceSpec& spec) {
  Slices out;
  std::vector<uint8_t> valid(seqs.shape(0));
  const Window w = window_of(window);
  v.call([&](View& view) {
    view.slices_from(seqs.data(), seqs.shape(0), w, spec, valid.data(), &out);
  });
  return nb::make_tuple(slices_tuple(out),
                        to_array(std::vector<int64_t>(valid.begin(), valid.end())));
}

nb::object flat(const ChangedTrajectories& found) {
  std::vector<int64_t> out;
  uint64_t bytes = 0;
  for (const auto& column : found.columns) bytes += column.size() * sizeof(int64_t);
  {
    const NoGil no_gil(bytes >= kKeepGil);
    for (const auto& column : found.columns) out.insert(out.end(), column.begin(), column.end());
  }
  return to_array(out);
}

// All or only these; a column after another; those that are gone. None if nothing has changed.
nb::object changed_trajectories(ViewHandle& v, uint64_t filter) {
  ChangedTrajectories found;
  if (!v.call([&](View& view) { return view.changed_trajectories(filter, &found); }))
    return nb::none();
  return nb::make_tuple(found.all, flat(found), to_array(found.gone));
}

// A column after another. None if nothing can be said about one of them just now.
nb::object describe_trajectories(const ViewHandle& v, Seqs ordinals) {
  ChangedTrajectories found;
  const bool all = v.call([&](View& view) {
    return view.describe_trajectories(ordinals.data(), ordinals.shape(0), &found);
  });
  if (!all) return nb::none();
  return flat(found);
}

using Verdicts = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_filters(nb::class_<ViewHandle>& view) {
  view.def(
          "add_filter",
          [](ViewHandle& v, bool follows, const std::vector<uint64_t>& ages) {
            return v.call([&](View& view) { return view.add_filter(follows, ages); });
          },
          nb::arg("follows"), nb::arg("ages"))
      .def("drop_filter",
           [](ViewHandle& v, uint64_t filter) {
             v.call([&](View& view) { view.drop_filter(filter); });
           })
      .def("look_again",
           [](ViewHandle& v, uint64_t filter) {
             v.call([&](View& view) { view.look_again(filter); });
           })
      .def("passing",
           [](const ViewHandle& v, uint64_t filter) {
             return v.call([&](View& view) { return view.passing(filter); });
           })
      .def("changed_trajectories", &changed_trajectories)
      .def("describe_trajectories", &describe_trajectories, nb::arg("ordinals").noconvert())
      .def(
          "judge",
          [](ViewHandle& v, uint64_t filter, Verdicts passes) {
            v.call([&](View& view) { view.judge(filter, passes.data(), passes.shape(0)); });
          },
          nb::arg("filter"), nb::arg("passes").noconvert())
      .def(
          "set_passes",
          [](ViewHandle& v, uint64_t filter, Seqs ordinals, Verdicts passes) {
            if (ordinals.shape(0) != passes.shape(0))
              throw std::invalid_argument("one verdict for each trajectory");
            v.call([&](View& view) {
              view.set_passes(filter, ordinals.data(), passes.data(), passes.shape(0));
            });
          },
          nb::arg("filter"), nb::arg("ordinals").noconvert(), nb::arg("passes").noconvert())
      .def(
          "draw_trajectories",
          [](ViewHandle& v, State rng, nb::object window, const SliceSpec& spec, size_t n,
             int once) {
            std::vector<int64_t> out;
            const Rng from = rng_of(rng);
            const Window w = window_of(window);
            v.call([&](View& view) { view.draw_trajectories(from, w, spec, n, once, &out); });
            return to_array(out);
          },
          nb::arg("rng").noconvert(), nb::arg("window").none(), nb::arg("spec"), nb::arg("n"),
          nb::arg("once") = -1);
}

nb::tuple changes_tuple(const Changes& c) {
  return nb::make_tuple(c.token, c.all, to_array(c.on), to_array(c.off));
}

}  // namespace

void bind_view(nb::module_& m) {
  nb::class_<SliceSpec>(m, "SliceSpec")
      .def(
          "__init__",
          [](SliceSpec* s, uint64_t length, bool strict, bool complete_only, bool over_steps,
             uint64_t span_left, uint64_t span_right, uint64_t burn_in) {
            new (s) SliceSpec{length,    strict,     complete_only, over_steps,
                              span_left, span_right, burn_in};
          },
          nb::arg("length"), nb::arg("strict") = false, nb::arg("complete_only") = false,
          nb::arg("over_steps") = false, nb::arg("span_left") = 0, nb::arg("span_right") = 0,
          nb::arg("burn_in") = 0);

  nb::enum_<Kin>(m, "Kin")
      .value("FUTURE", Kin::future)
      .value("LAST", Kin::last)
      .value("ANY", Kin::any);

  nb::class_<ViewHandle> view(m, "View");
  bind_filters(view);
  view.def(nb::init<TapeHandle&>(), nb::keep_alive<1, 2>())
      .def("refresh", [](ViewHandle& v) { v.call([&](View& view) { view.refresh(); }); })
      .def_prop_ro(
          "stale",
          [](const ViewHandle& v) { return v.call([&](View& view) { return view.stale(); }); })
      .def_prop_ro(
          "restores",
          [](const ViewHandle& v) { return v.call([&](View& view) { return view.restores(); }); })
      .def_prop_ro(
          "head",
          [](const ViewHandle& v) { return v.call([&](View& view) { return view.at().head; }); })
      .def_prop_ro(
          "tail",
          [](const ViewHandle& v) { return v.call([&](View& view) { return view.at().tail; }); })
      .def_prop_ro("trajectories",
                   [](const ViewHandle& v) {
                     return v.call([&](View& view) { return view.trajectories(); });
                   })
      .def_prop_ro("max_version",
                   [](const ViewHandle& v) {
                     return v.call([&](View& view) { return view.max_version(); });
                   })
      .def("ordinal_of_newest",
           [](const ViewHandle& v, uint64_t k) {
             return v.call([&](View& view) { return view.ordinal_of_newest(k); });
           })
      .def("draw_rows", &draw_rows, nb::arg("rng").noconvert(), nb::arg("window").none(),
           nb::arg("n"))
      .def("draw_slices", &draw_slices, nb::arg("rng").noconvert(), nb::arg("window").none(),
           nb::arg("spec"), nb::arg("n"))
      .def("slices_of", &slices_of, nb::arg("rng").noconvert(), nb::arg("window").none(),
           nb::arg("spec"), nb::arg("ordinals").noconvert(), nb::arg("n"))
      .def("slices_from", &slices_from, nb::arg("seqs").noconvert(), nb::arg("window").none(),
           nb::arg("spec"))
      .def_prop_ro(
          "work",
          [](const ViewHandle& v) { return v.call([&](View& view) { return view.work(); }); })
      .def(
          "spans_in",
          [](ViewHandle& v, nb::object window) {
            std::vector<int64_t> firsts, counts;
            const Window w = window_of(window);
            v.call([&](View& view) { view.spans_in(w, &firsts, &counts); });
            return nb::make_tuple(to_array(firsts), to_array(counts));
          },
          nb::arg("window").none())
      .def(
          "has_rows",
          [](const ViewHandle& v, Seqs seqs, nb::object window) {
            const Window w = window_of(window);
            std::vector<int64_t> out(seqs.shape(0));
            v.call([&](View& view) {
              for (size_t i = 0; i < out.size(); ++i)
                out[i] = view.row_in(static_cast<uint64_t>(seqs.data()[i]), w) ? 1 : 0;
            });
            return to_array(out);
          },
          nb::arg("seqs").noconvert(), nb::arg("window").none())
      .def(
          "has_trajectories",
          [](ViewHandle& v, Seqs ordinals, nb::object window, const SliceSpec& spec) {
            const Window w = window_of(window);
            std::vector<int64_t> out(ordinals.shape(0));
            v.call([&](View& view) {
              for (size_t i = 0; i < out.size(); ++i) {
                const auto ordinal = static_cast<uint64_t>(ordinals.data()[i]);
                out[i] = view.has_trajectory(ordinal, w, spec) ? 1 : 0;
              }
            });
            return to_array(out);
          },
          nb::arg("ordinals").noconvert(), nb::arg("window").none(), nb::arg("spec"))
      .def("follow",
           [](const ViewHandle& v, Seqs seqs, uint64_t length) {
             Slices out;
             v.call([&](View& view) { view.follow(seqs.data(), seqs.shape(0), length, &out); });
             return nb::make_tuple(to_array(out.seqs), to_array(out.lengths));
           })
      .def(
          "draw_kin",
          [](ViewHandle& v, State rng, Seqs seqs, nb::object window, Kin which) {
            std::vector<int64_t> out(seqs.shape(0));
            const Rng from = rng_of(rng);
            const Window w = window_of(window);
            v.call([&](View& view) {
              view.draw_kin(from, seqs.data(), out.size(), w, which, out.data());
            });
            return to_array(out);
          },
          nb::arg("rng").noconvert(), nb::arg("seqs").noconvert(), nb::arg("window").none(),
          nb::arg("which"))
      .def(
          "last_runs",
          [](const ViewHandle& v, Seqs ordinals) {
            std::vector<int64_t> out(ordinals.shape(0));
            v.call([&](View& view) {
              for (size_t i = 0; i < out.size(); ++i)
                out[i] =
                    static_cast<int64_t>(view.last_run(static_cast<uint64_t>(ordinals.data()[i])));
            });
            return to_array(out);
          },
          nb::arg("ordinals").noconvert())
      .def(
          "trajectories_of",
          [](const ViewHandle& v, Seqs seqs) {
            std::vector<int64_t> out(seqs.shape(0));
            v.call([&](View& view) { view.trajectories_of(seqs.data(), out.size(), out.data()); });
            return to_array(out);
          },
          nb::arg("seqs").noconvert())
      .def("rows_of",
           [](ViewHandle& v, uint64_t ordinal) {
             std::vector<int64_t> out;
             const uint64_t first = v.call([&](View& view) { return view.rows_of(ordinal, &out); });
             return nb::make_tuple(first, to_array(out));
           })
      .def(
          "changed_rows",
          [](ViewHandle& v, nb::object window, const SliceSpec& spec, uint64_t token) {
            Changes out;
            const Window w = window_of(window);
            v.call([&](View& view) { view.changed_rows(w, spec, token, &out); });
            return changes_tuple(out);
          },
          nb::arg("window").none(), nb::arg("spec"), nb::arg("token"))
      .def(
          "changed_ordinals",
          [](ViewHandle& v, nb::object window, const SliceSpec& spec, uint64_t token) {
            Changes out;
            const Window w = window_of(window);
            v.call([&](View& view) { view.changed_ordinals(w, spec, token, &out); });
            return changes_tuple(out);
          },
          nb::arg("window").none(), nb::arg("spec"), nb::arg("token"))
      .def(
          "weigh_rows",
          [](ViewHandle& v, nb::object window) {
            const Window w = window_of(window);
            return v.call([&](View& view) { return view.weigh_rows(w); });
          },
          nb::arg("window").none())
      .def(
          "weigh_slices",
          [](ViewHandle& v, nb::object window, const SliceSpec& spec) {
            const Window w = window_of(window);
            return v.call([&](View& view) { return view.weigh_slices(w, spec); });
          },
          nb::arg("window").none(), nb::arg("spec"))
      .def(
          "count",
          [](ViewHandle& v, nb::object window, const SliceSpec& spec) {
            const Window w = window_of(window);
            return v.call([&](View& view) { return view.count(w, spec); });
          },
          nb::arg("window").none(), nb::arg("spec"))
      .def(
          "ordinals",
          [](ViewHandle& v, nb::object window, const SliceSpec& spec) {
            std::vector<int64_t> out;
            const Window w = window_of(window);
            v.call([&](View& view) { view.ordinals(&out, w, spec); });
            return to_array(out);
          },
          nb::arg("window").none(), nb::arg("spec"));
}

}  // namespace contig
