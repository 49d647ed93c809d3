// Observations that are stored once, as Python says which they are.
#include <nanobind/stl/optional.h>

#include "handles.h"

namespace contig {

namespace {

// `shared`: [offset, offset below next or -1, bytes, frames, inner bytes] of each leaf that is
// stored once; `kept`: [offset, bytes] of each other one.
SharedForm form_of(Seqs shared, Seqs kept, uint64_t record_size, bool encoded) {
  if (shared.shape(0) % 5 != 0 || shared.shape(0) == 0 || kept.shape(0) % 2 != 0)
    throw std::invalid_argument("SharedForm: five numbers a shared leaf, two another one");
  const auto number = [](const Seqs& from, size_t i) {
    if (from.data()[i] < 0) throw std::invalid_argument("SharedForm: a negative number");
    return static_cast<uint64_t>(from.data()[i]);
  };
  std::vector<SharedLeaf> leaves;
  for (size_t i = 0; i < shared.shape(0); i += 5)
    leaves.push_back(SharedLeaf{
        number(shared, i), shared.data()[i + 1] == -1 ? SharedLeaf::kNoNext : number(shared, i + 1),
        number(shared, i + 2), number(shared, i + 3), number(shared, i + 4)});
  std::vector<KeptLeaf> others;
  for (size_t i = 0; i < kept.shape(0); i += 2)
    others.push_back(KeptLeaf{number(kept, i), number(kept, i + 1)});
  return SharedForm(std::move(leaves), std::move(others), record_size, encoded);
}

}  // namespace

void bind_slots(nb::module_& m, nb::class_<TapeHandle>& tape) {
  nb::class_<SharedForm>(m, "SharedForm")
      .def(
          "__init__",
          [](SharedForm* self, Seqs shared, Seqs kept, uint64_t record_size, bool encoded) {
            new (self) SharedForm(form_of(shared, kept, record_size, encoded));
          },
          nb::arg("shared").noconvert(), nb::arg("kept").noconvert(), nb::arg("record_size"),
          nb::arg("encoded") = false)
      .def_prop_ro("stack", &SharedForm::stack)
      .def_prop_ro("slot_bytes", &SharedForm::slot_bytes)
      .def_prop_ro("references", &SharedForm::references)
      .def_prop_ro("row_bytes", &SharedForm::row_bytes)
      .def("stored", &SharedForm::stored, nb::arg("offset"));
  tape.def("attach_slots",
           [](TapeHandle& t, Bytes memory, const SharedForm& form) {
             if (memory.shape(0) < t.tape.header().slots_bytes)
               throw std::invalid_argument("attach_slots: the mapping is too small");
             *t.slots = memory;
             t.tape.attach_slots(memory.data(), form);
           })
      .def_prop_ro("slots_range",
                   [](const TapeHandle& t) {
                     const Header& h = t.tape.header();
                     return nb::make_tuple(h.slots_offset, h.slots_bytes);
                   })
      // Memory of slots, and how many of them were ever written.
      .def_prop_ro("slot_memory",
                   [](const TapeHandle& t) {
                     const Header& h = t.tape.header();
                     const SlotShape& shape = t.tape.slots().shape();
                     return h.reserved_places.load() * shape.chunk_bytes() +
                            h.reserved_encoded.load() * shape.encoded_chunk();
                   })
      .def_prop_ro("slots_given", [](TapeHandle& t) {
        return with_lock(t.tape, t.lock_timeout_s, 0, [&] { return t.tape.slot_head(); });
      });
}

}  // namespace contig
