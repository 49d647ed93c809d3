// Compact rows, as Python takes them from a tape and makes them of records: for checkpoints.
#include <cstring>

#include "handles.h"
#include "native/tape/compact_copy.h"
#include "native/tape/compactor.h"

namespace contig {

namespace {

// Copies rows [first, ...) into `out`, as many as it has room for: (slots that are new with them,
// the seq below which rows are gone).
nb::tuple copy(CompactCopy& self, uint64_t first, Bytes out) {
  const uint64_t bytes = self.tape().form().row_bytes();
  if (out.shape(0) % bytes != 0) throw std::invalid_argument("CompactCopy: room for whole rows");
  std::vector<uint8_t> slots;
  uint64_t gone;
  {
    NoGil no_gil;
    gone = self.copy(first, out.shape(0) / bytes, out.data(), &slots);
  }
  auto* block = new Block(slots.size());
  nb::object there = nb::cast(block, nb::rv_policy::take_ownership);
  if (!slots.empty()) std::memcpy(block->data, slots.data(), slots.size());
  return nb::make_tuple(there, gone);
}

// `parts`: (trajectory, rows) one after another.
void add(Compactor& self, Record records, Seqs parts, Bytes out) {
  if (records.shape(0) % self.record_size() != 0 || parts.shape(0) % 2 != 0)
    throw std::invalid_argument("Compactor: expected whole records, and pairs");
  const uint64_t n = records.shape(0) / self.record_size();
  if (out.shape(0) != n * self.form().row_bytes())
    throw std::invalid_argument("Compactor: room for other rows");
  std::vector<Compactor::Part> list;
  for (size_t i = 0; i < parts.shape(0); i += 2)
    list.push_back(
        {static_cast<uint64_t>(parts.data()[i]), static_cast<uint64_t>(parts.data()[i + 1])});
  NoGil no_gil;
  self.add(records.data(), n, list, out.data());
}

// Whole records into `out`.
void expand(const SharedForm& form, Record rows, Record slots, uint64_t record_size, Bytes out) {
  const uint64_t n = rows.shape(0) / form.row_bytes(), there = slots.shape(0) / form.slot_bytes();
  if (rows.shape(0) % form.row_bytes() != 0 || out.shape(0) != n * record_size ||
      form.record_end() > record_size)
    throw std::invalid_argument("expand_compact: room for other records");
  if (!references_below(form, rows.data(), n, there))
    throw std::invalid_argument("rows refer to observations that are not there");
  NoGil no_gil;
  if (n > 0) std::memset(out.data(), 0, n * record_size);  // what lies between leaves
  expand_rows(form, CompactRows{rows.data(), slots.data(), there}, n, record_size, out.data());
}

}  // namespace

void bind_compact(nb::module_& m) {
  nb::class_<CompactCopy>(m, "CompactCopy")
      .def(
          "__init__", [](CompactCopy* self, TapeHandle& t) { new (self) CompactCopy(t.tape); },
          nb::arg("tape"), nb::keep_alive<1, 2>())
      .def("copy", &copy, nb::arg("first"), nb::arg("out").noconvert());
  nb::class_<Compactor>(m, "Compactor")
      .def(nb::init<const SharedForm&, uint64_t>(), nb::arg("form"), nb::arg("record_size"))
      .def("add", &add, nb::arg("records"), nb::arg("parts").noconvert(),
           nb::arg("out").noconvert())
      // Of all records so far; it counts until the next ones are added.
      .def_prop_ro("slots", [](Compactor& self) {
        const size_t bytes = self.n_slots() * self.form().slot_bytes();
        return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(self.slots(), {bytes},
                                                                           nb::find(self)),
                        nb::rv_policy::reference);
      });
  m.def("expand_compact", &expand, nb::arg("form"), nb::arg("rows").noconvert(),
        nb::arg("slots").noconvert(), nb::arg("record_size"), nb::arg("out").noconvert());
}

}  // namespace contig
