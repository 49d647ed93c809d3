// The module, and kernels that need no tape.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "handles.h"
#include "native/kernels/marks.h"
#include "native/kernels/multinomial.h"
#include "native/kernels/narrow.h"
#include "native/kernels/permute.h"
#include "native/kernels/rng.h"
#include "native/kernels/stored_zip.h"
#include "native/sys/block.h"
#include "native/sys/exchange.h"
#include "native/tape/gather.h"

namespace contig {

namespace {
// numpy's own function over our block: half the price of exporting an ndarray.
template <class T>
nb::object array_of(const std::vector<T>& values, const nb::object& dtype) {
  static const auto* numpy = new nb::module_(nb::module_::import_("numpy"));
  static const auto* frombuffer = new nb::object(numpy->attr("frombuffer"));
  static const auto* empty = new nb::object(numpy->attr("empty"));
  if (values.empty()) return (*empty)(0, dtype);
  auto* block = new Block(values.size() * sizeof(T));
  {
    const NoGil no_gil(block->bytes >= kKeepGil);
    std::memcpy(block->data, values.data(), block->bytes);
  }
  return (*frombuffer)(nb::cast(block, nb::rv_policy::take_ownership), dtype);
}

const nb::object& dtype_of(const char* name) {
  return *new nb::object(nb::module_::import_("numpy").attr("dtype")(name));
}
}  // namespace

nb::object to_array(const std::vector<int64_t>& values) {
  static const nb::object& int64 = dtype_of("int64");
  return array_of(values, int64);
}

nb::object to_array(const std::vector<float>& values) {
  static const nb::object& float32 = dtype_of("float32");
  return array_of(values, float32);
}

void SumTree::update(Seqs leaves, Reals values) {
  if (leaves.shape(0) != values.shape(0))
    throw std::invalid_argument("SumTree.update: as many values as leaves");
  const size_t n = leaves.shape(0);
  const int64_t* data = leaves.data();
  const double* value = values.data();
  call(n, [&](const Tree& tree) {
    for (size_t i = 0; i < n; ++i)
      if (data[i] < 0 || static_cast<size_t>(data[i]) >= shape_.n_leaves)
        throw std::out_of_range("SumTree.update: leaf out of range");
    tree_update(tree, data, value, n);
  });
}

nb::tuple SumTree::prioritize(Seqs seqs, Reals priorities, int64_t tail, int64_t head, double alpha,
                              double eps) {
  if (seqs.shape(0) != priorities.shape(0))
    throw std::invalid_argument("SumTree.prioritize: as many priorities as seqs");
  // A ring of n leaves holds the last n rows at most.
  tail = std::max<int64_t>({tail, 0, head - static_cast<int64_t>(shape_.n_leaves)});
  const PriorityUpdate r = call(seqs.shape(0), [&](const Tree& tree) {
    return tree_prioritize(tree, seqs.data(), priorities.data(), seqs.shape(0), tail, head, alpha,
                           eps);
  });
  return nb::make_tuple(r.bad, r.stale, r.largest);
}

void SumTree::fill(uint64_t from, uint64_t to, double value) {
  call(to > from ? to - from : 0, [&](const Tree& tree) { tree_fill(tree, from, to, value); });
}

std::vector<int64_t> SumTree::draw_rows(State& rng, size_t n, uint64_t head) const {
  Rng r = rng_of(rng);
  return call(n, [&](const Tree& tree) {
    std::vector<double> u(n);
    for (double& x : u) x = r.unit();
    std::vector<int64_t> out(n);
    tree_draw(tree, u.data(), out.data(), n, head % shape_.n_leaves);
    newest_rows(out.data(), n, head, shape_.n_leaves);
    return out;
  });
}

nb::object SumTree::draw(State rng, size_t n, uint64_t head) const {
  return to_array(draw_rows(rng, n, head));
}

nb::tuple SumTree::draw_weighted(State rng, size_t n, uint64_t head, double beta) const {
  const std::vector<int64_t> seqs = draw_rows(rng, n, head);
  std::vector<float> weights(n);
  call(n,
       [&](const Tree& tree) { tree_weights(tree, seqs.data(), weights.data(), n, head, beta); });
  return nb::make_tuple(to_array(seqs), to_array(weights));
}

nb::object SumTree::weights(Seqs seqs, uint64_t head, double beta) const {
  std::vector<float> out(seqs.shape(0));
  call(out.size(), [&](const Tree& tree) {
    tree_weights(tree, seqs.data(), out.data(), out.size(), head, beta);
  });
  return to_array(out);
}

nb::object SumTree::at(Reals u) const {
  std::vector<int64_t> out(u.shape(0));
  call(out.size(), [&](const Tree& tree) { tree_draw(tree, u.data(), out.data(), out.size()); });
  return to_array(out);
}

namespace {

FlagColumn flag_column(Block& block, nb::handle spec, size_t rows) {
  FlagColumn c;
  if (spec.is_none()) return c;
  const auto t = nb::borrow<nb::tuple>(spec);  // offset, bytes of "true"
  const auto one = nb::borrow<nb::bytes>(t[1]);
  const auto offset = nb::cast<size_t>(t[0]);
  c.bytes = one.size();
  c.one = reinterpret_cast<const uint8_t*>(one.c_str());
  if (offset > block.bytes) throw std::invalid_argument("mark_slices: a column past the block");
  check_room(rows, c.bytes, block.bytes - offset, "mark_slices: a column ends past the block");
  c.data = block.data + offset;
  return c;
}

void mark(Block& block, Seqs lengths, Seqs real, Seqs ends, nb::tuple columns, bool told) {
  const size_t n = lengths.shape(0);
  size_t rows = 0;
  if (nb::len(columns) != 5) throw std::invalid_argument("mark_slices: five columns");
  if (real.shape(0) != n || ends.shape(0) != n)
    throw std::invalid_argument("mark_slices: as many real and ends as lengths");
  for (size_t i = 0; i < n; ++i) {
    if (real.data()[i] < 1 || lengths.data()[i] < real.data()[i])
      throw std::invalid_argument("mark_slices: 1 <= real <= length must hold");
    if (__builtin_add_overflow(rows, static_cast<size_t>(lengths.data()[i]), &rows))
      throw std::invalid_argument("mark_slices: too many rows");
  }
  const SliceFlags flags{flag_column(block, columns[0], rows), flag_column(block, columns[1], rows),
                         flag_column(block, columns[2], rows), flag_column(block, columns[3], rows),
                         flag_column(block, columns[4], rows), told};
  mark_slices(flags, lengths.data(), real.data(), ends.data(), n);
}

Plan* make_plan(nb::object tree, nb::list leaves, nb::list duals, size_t record_size) {
  std::vector<LeafSpec> specs;
  for (nb::handle h : leaves) {
    const auto t = nb::borrow<nb::tuple>(h);
    if (nb::len(t) != 5 && nb::len(t) != 6)
      throw std::invalid_argument("Plan: a leaf is five values, or six");
    LeafSpec leaf;
    leaf.kind = nb::cast<std::string>(t[0])[0];
    leaf.itemsize = nb::cast<size_t>(t[1]);
    leaf.offset = nb::cast<size_t>(t[2]);
    leaf.bytes = nb::cast<size_t>(t[3]);
    for (nb::handle d : nb::borrow<nb::tuple>(t[4])) leaf.shape.push_back(nb::cast<Py_ssize_t>(d));
    if (nb::len(t) == 6)
      leaf.variable = static_cast<LeafSpec::Variable>(nb::cast<std::string>(t[5])[0]);
    if ((leaf.variable == LeafSpec::fixed ? leaf.element() : kPlaceBytes) != leaf.bytes)
      throw std::invalid_argument("Plan: bytes that the shape does not have");
    check_place(leaf.offset, leaf.bytes, record_size, "Plan");
    specs.push_back(leaf);
  }
  std::vector<DualSpec> flags;
  for (nb::handle h : duals) {
    const auto t = nb::borrow<nb::tuple>(h);
    const auto op = nb::cast<std::string>(t[0]);
    DualSpec d;
    d.op = op == "zero"     ? DualSpec::zero
           : op == "copy"   ? DualSpec::copy
           : op == "either" ? DualSpec::either
           : op == "check"  ? DualSpec::check
                            : DualSpec::and_not;
    if (d.op == DualSpec::and_not && op != "and_not")
      throw std::invalid_argument("Plan: no flag operation " + op);
    const auto place = [&](size_t i) {
      const auto p = nb::borrow<nb::tuple>(t[i]);
      const DualSpec::Place found{nb::cast<size_t>(p[0]), nb::cast<size_t>(p[1])};
      check_place(found.offset, found.bytes, record_size, "Plan");
      return found;
    };
    d.to = place(1);
    d.a = place(2);
    d.b = place(3);
    const auto one = nb::borrow<nb::bytes>(t[4]);
    d.one.assign(one.c_str(), one.size());
    if (d.one.size() != d.to.bytes) throw std::invalid_argument("Plan: a flag of the wrong size");
    flags.push_back(d);
  }
  return new Plan(tree, std::move(specs), std::move(flags), record_size);
}

// [(name, offset, size)], or None where it is no archive of members as they are.
nb::object stored_zip(nb::bytes data) {
  std::vector<ZipMember> members;
  std::string damaged;
  const auto read = [&] {
    return read_stored_zip(reinterpret_cast<const uint8_t*>(data.c_str()), data.size(), members,
                           damaged);
  };
  ZipState state;
  if (data.size() < kKeepGil) {
    state = read();
  } else {
    NoGil no_gil;
    state = read();
  }
  if (state == ZipState::unfamiliar) return nb::none();
  for (char& c : damaged)  // a damaged name need not be text
    if (c < ' ' || c > '~') c = '?';
  if (state == ZipState::damaged)
    throw std::invalid_argument("the checksum or place of " + damaged + " is wrong");
  nb::list out;
  for (const ZipMember& m : members)
    out.append(nb::make_tuple(nb::bytes(m.name.data(), m.name.size()), m.offset, m.size));
  return std::move(out);
}

int block_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* block = nb::inst_ptr<Block>(self);
  return PyBuffer_FillInfo(view, self, block->data, static_cast<Py_ssize_t>(block->bytes), 0,
                           flags);
}

PyType_Slot block_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(block_buffer)},
                             {0, nullptr}};

}  // namespace

std::vector<Column> columns_from(nb::list arrays, Seqs leaves, size_t n, size_t record_size) {
  std::vector<Column> columns;
  if (leaves.shape(0) != 2 * nb::len(arrays))
    throw std::invalid_argument("join: as many leaves as columns");
  for (size_t i = 0; i < nb::len(arrays); ++i) {
    const auto a =
        nb::cast<nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig>>(arrays[i], false);
    const auto bytes = static_cast<size_t>(leaves.data()[2 * i + 1]);
    check_place(static_cast<size_t>(leaves.data()[2 * i]), bytes, record_size, "join");
    if (a.shape(0) != n * bytes) throw std::invalid_argument("join: a column has the wrong size");
    columns.push_back(Column{a.data(), static_cast<size_t>(leaves.data()[2 * i]), bytes, bytes});
  }
  return columns;
}

void bind_kernels(nb::module_& m) {
  m.def("stored_zip", &stored_zip, nb::arg("data"));
  nb::class_<Block>(m, "Block", nb::type_slots(block_slots))
      .def(nb::init<size_t>(), nb::arg("bytes"))
      .def("__len__", [](const Block& b) { return b.bytes; });
  nb::class_<Plan>(m, "Plan")
      .def(nb::new_(&make_plan), nb::arg("tree"), nb::arg("leaves"), nb::arg("duals"),
           nb::arg("record_size"))
      .def(
          "pack",
          [](const Plan& p, nb::handle tree, Bytes out) {
            if (out.shape(0) < p.record_size())
              throw std::invalid_argument("pack: the record is too small");
            return p.pack(tree.ptr(), out.data());
          },
          nb::arg("tree").none(), nb::arg("record").noconvert());
  m.def(
      "join_columns",
      [](nb::list arrays, Seqs leaves, size_t n, size_t record_size, Bytes out) {
        if (record_size == 0) throw std::invalid_argument("join: records of no bytes");
        check_room(n, record_size, out.shape(0), "join: the output is too small");
        const std::vector<Column> columns = columns_from(arrays, leaves, n, record_size);
        join_columns(rows_of(columns, n), record_size, out.data());
      },
      nb::arg("arrays"), nb::arg("leaves").noconvert(), nb::arg("n"), nb::arg("record_size"),
      nb::arg("out").noconvert());
  m.def(
      "split_records",
      [](nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records, size_t n,
         size_t record_size, Bytes block, Seqs columns, Seqs leaves) {
        if (record_size == 0) throw std::invalid_argument("split: records of no bytes");
        check_room(n, record_size, records.shape(0), "split: too few records");
        std::vector<Target> targets(columns.shape(0));
        if (leaves.shape(0) != 2 * targets.size())
          throw std::invalid_argument("split: as many leaves as columns");
        for (size_t i = 0; i < targets.size(); ++i) {
          const auto offset = static_cast<uint64_t>(leaves.data()[2 * i]);
          const auto bytes = static_cast<uint64_t>(leaves.data()[2 * i + 1]);
          const auto start = static_cast<uint64_t>(columns.data()[i]);
          check_place(offset, bytes, record_size, "split");
          if (start > block.shape(0)) throw std::invalid_argument("split: a column past the block");
          check_room(n, bytes, block.shape(0) - start, "split: the block is too small");
          targets[i] = Target{block.data() + start, offset, bytes};
        }
        split_records(records.data(), n, record_size, targets.data(), targets.size());
      },
      nb::arg("records").noconvert(), nb::arg("n"), nb::arg("record_size"),
      nb::arg("block").noconvert(), nb::arg("columns").noconvert(), nb::arg("leaves").noconvert());
  m.def("mark_slices", &mark, nb::arg("block"), nb::arg("lengths").noconvert(),
        nb::arg("real").noconvert(), nb::arg("ends").noconvert(), nb::arg("columns"),
        nb::arg("told"), "columns: init, done, terminated, truncated, slice_end.");
  m.attr("LARGEST_PRIORITY") = kLargestPriority;
  nb::class_<SumTree>(m, "SumTree")
      .def(nb::init<size_t, Doubles>(), nb::arg("n"), nb::arg("nodes").noconvert())
      .def_static("size", &SumTree::size)
      .def_prop_ro(
          "total",
          [](const SumTree& t) { return t.call(0, [](const Tree& tree) { return tree.total(); }); })
      .def_prop_ro(
          "least",
          [](const SumTree& t) { return t.call(0, [](const Tree& tree) { return tree.least(); }); })
      .def("update", &SumTree::update, nb::arg("leaves").noconvert(), nb::arg("values").noconvert())
      .def("prioritize", &SumTree::prioritize, nb::arg("seqs").noconvert(),
           nb::arg("priorities").noconvert(), nb::arg("tail"), nb::arg("head"), nb::arg("alpha"),
           nb::arg("eps"))
      .def("fill", &SumTree::fill, nb::arg("start"), nb::arg("stop"), nb::arg("value"))
      .def("draw", &SumTree::draw, nb::arg("rng").noconvert(), nb::arg("n"), nb::arg("head"))
      .def("draw_weighted", &SumTree::draw_weighted, nb::arg("rng").noconvert(), nb::arg("n"),
           nb::arg("head"), nb::arg("beta"))
      .def("weights", &SumTree::weights, nb::arg("seqs").noconvert(), nb::arg("head"),
           nb::arg("beta"))
      .def("at", &SumTree::at, nb::arg("u").noconvert());
  m.def(
      "exchange_paths",
      [](nb::bytes one, nb::bytes other) { return exchange_paths(one.c_str(), other.c_str()); },
      nb::arg("one"), nb::arg("other"), "0, or an errno.");
  m.def(
      "fit_32_bits",
      [](Seqs values, bool with_sign) {
        return fit_32_bits(values.data(), values.shape(0), with_sign);
      },
      nb::arg("values").noconvert(), nb::arg("with_sign"));
  m.def(
      "permute",
      [](uint64_t key, uint64_t n, uint64_t from, size_t count) {
        if (from > n || count > n - from) throw std::out_of_range("permute: positions beyond n");
        std::vector<int64_t> out(count);
        {
          const NoGil no_gil(count >= kKeepGil / 64);  // some 100 ns each
          permute(key, n, from, out.data(), count);
        }
        return to_array(out);
      },
      nb::arg("key"), nb::arg("n"), nb::arg("start"), nb::arg("count"));
  m.def(
      "multinomial",
      [](State rng, const std::vector<double>& masses, size_t n) {
        if (masses.empty()) throw std::invalid_argument("multinomial: no masses");
        return multinomial(rng_of(rng), masses, n);
      },
      nb::arg("rng").noconvert(), nb::arg("masses"), nb::arg("n"));
  m.def(
      "uniform_below",
      [](State rng, uint64_t low, uint64_t high, size_t n) {
        if (low >= high) throw std::invalid_argument("uniform_below: an empty range");
        Rng r = rng_of(rng);
        std::vector<int64_t> out(n);
        for (int64_t& x : out) x = static_cast<int64_t>(low + r.below(high - low));
        return to_array(out);
      },
      nb::arg("rng").noconvert(), nb::arg("low"), nb::arg("high"), nb::arg("n"));
}

}  // namespace contig

NB_MODULE(_native, m) {
  // A prefetching thread may hold a batch when the interpreter ends; that is no leak to report.
  nanobind::set_leak_warnings(false);
  contig::bind_errors(m);
  contig::bind_kernels(m);
  contig::bind_tape(m);
  contig::bind_gather(m);
  contig::bind_writer(m);
  contig::bind_view(m);
  contig::bind_frames(m);
  contig::bind_queue(m);
  contig::bind_weights(m);
  contig::bind_client(m);
  contig::bind_scan(m);
  contig::bind_decode(m);
  contig::bind_columns(m);
  nanobind::module_::import_("atexit").attr("register")(
      nanobind::cpp_function(&contig::NoGil::end));
}
