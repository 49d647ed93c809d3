// Fields of trajectories, as Python sees them.
#include <nanobind/stl/optional.h>

#include <cstring>

#include "handles.h"

namespace contig {

namespace {

// Records one after another, as a numpy array [n, size].
nb::object records_array(std::vector<uint8_t>&& records, size_t n, size_t size) {
  auto* kept = new std::vector<uint8_t>(std::move(records));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<uint8_t>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(kept->data(), {n, size}, owner));
}

// Of each entry; zeros of one that is gone.
nb::object fields_of(const TapeHandle& t, Seqs numbers) {
  const uint64_t size = t.tape.fields_size();
  const size_t n = numbers.shape(0);
  std::vector<uint8_t> out(n * size), record(t.tape.fields().room());
  for (size_t i = 0; i < n && size > 0; ++i)
    if (t.tape.read_fields(static_cast<uint64_t>(numbers.data()[i]), record.data()))
      std::memcpy(out.data() + i * size, record.data(), size);
  return records_array(std::move(out), n, size);
}

// Changes the leaves of the mask, of each trajectory that is there: which of them were. One record
// for all, or one for each.
nb::object set_fields(TapeHandle& t, ViewHandle& v, Seqs ordinals, Records records, uint64_t mask) {
  const size_t n = ordinals.shape(0);
  const uint64_t size = t.tape.fields_size();
  t.tape.check_open();
  if (size == 0 || records.shape(1) != size || (records.shape(0) != n && records.shape(0) != 1))
    throw std::invalid_argument(
        "set_fields: expected a record of the tape's fields, or one for each");
  const size_t step = records.shape(0) == 1 ? 0 : size;
  std::vector<int64_t> there(n);
  v.call([&](View& view) {
    with_lock(t.tape, t.lock_timeout_s, 0, [&] {
      view.refresh();
      for (size_t i = 0; i < n; ++i) {
        const auto ordinal = static_cast<uint64_t>(ordinals.data()[i]);
        const uint64_t number = view.last_run(ordinal);
        there[i] = number != kNone ? 1 : 0;
        if (there[i] != 0) t.tape.write_fields(number, records.data() + i * step, mask);
      }
      t.tape.fields_changed();
      return 0;
    });
  });
  return to_array(there);
}

// Entries whose fields were changed since there were so many changes, and how many there are now;
// None instead of the entries: more than are known.
nb::tuple changed_fields(const TapeHandle& t, uint64_t since) {
  std::vector<uint64_t> numbers;
  uint64_t now = 0;
  if (t.tape.fields_size() > 0 && !t.tape.changed_fields(since, &now, &numbers))
    return nb::make_tuple(now, nb::none());
  return nb::make_tuple(now, to_array(std::vector<int64_t>(numbers.begin(), numbers.end())));
}

void attach_fields(TapeHandle& t, Bytes memory, Seqs leaves) {
  const Header& h = t.tape.header();
  if (!t.tape.ready() || h.fields_size == 0 || memory.shape(0) < h.fields_bytes)
    throw std::invalid_argument("attach_fields: the mapping is too small");
  check_aligned(memory.data());
  FieldLeaves pairs;
  for (size_t i = 0; i + 1 < leaves.shape(0); i += 2)
    pairs.emplace_back(leaves.data()[i], leaves.data()[i + 1]);
  *t.fields = memory;
  t.tape.attach_fields(memory.data());
  t.tape.set_field_leaves(std::move(pairs));
}

}  // namespace

void check_fields_size(uint64_t size) {
  if (size > kMostFieldBytes)
    throw std::invalid_argument("fields: a record of more than MOST_FIELD_BYTES");
}

Given GivenFields::kept(nb::handle fields, const Tape& tape, uint64_t lanes, uint64_t rows) {
  Given out;
  const auto given = nb::cast<nb::tuple>(fields);
  const auto records = nb::cast<Records>(given[0], false);
  const auto masks = nb::cast<Masks>(given[1], false);
  const uint64_t size = tape.fields_size();
  const size_t n = masks.shape(0);
  if (size == 0 || records.shape(0) != n || records.shape(1) != size ||
      (n != 1 && n != lanes && n != rows))
    throw std::invalid_argument(
        "fields: expected a record and a mask, or one for each lane, or for each row");
  records_.assign(records.data(), records.data() + n * size);
  masks_.assign(masks.data(), masks.data() + n);
  out.records = records_.data();
  out.masks = masks_.data();
  out.size = size;
  out.whom = n == 1 ? Given::For::all : n == lanes ? Given::For::lanes : Given::For::rows;
  return out;
}

void bind_fields(nb::module_& m, nb::class_<TapeHandle>& tape) {
  m.attr("MOST_FIELD_LEAVES") = kMostFieldLeaves;
  m.attr("MOST_FIELD_BYTES") = kMostFieldBytes;
  m.attr("FIELDS_LOG") = kFieldsLog;
  tape.def_prop_ro("fields_range",
                   [](const TapeHandle& t) {
                     const Header& h = t.tape.header();
                     return nb::make_tuple(h.fields_offset, h.fields_bytes);
                   })
      .def_prop_ro("fields_size", [](const TapeHandle& t) { return t.tape.header().fields_size; })
      .def_prop_ro("fields_log", [](const TapeHandle& t) { return t.tape.fields().log_length(); })
      .def_prop_ro("restores", [](const TapeHandle& t) { return t.tape.header().restores.load(); })
      .def("attach_fields", &attach_fields, nb::arg("memory"), nb::arg("leaves").noconvert())
      .def("fields_of", &fields_of, nb::arg("numbers").noconvert())
      .def("set_fields", &set_fields, nb::arg("view"), nb::arg("ordinals").noconvert(),
           nb::arg("records").noconvert(), nb::arg("mask"))
      .def("fields_changes", [](const TapeHandle& t) { return t.tape.fields_changes(); })
      .def("changed_fields", &changed_fields, nb::arg("since"));
}

}  // namespace contig
