// Observations that are stored once, of rows in files, as Python sees them.
#include "native/tape/stored_slots.h"

#include <nanobind/stl/vector.h>

#include <cstring>

#include "handles.h"
#include "slot_columns.h"

namespace contig {

namespace {

RowSums sums_of(const State& salts) {
  if (salts.shape(0) % 2 != 0) throw std::invalid_argument("salts: expected pairs");
  return RowSums(salts.data(), salts.shape(0) / 2);
}

StoredShape shape_of(const SharedForm& form, uint64_t record_size, uint64_t stride) {
  if (stride < stored_bytes(form) + 8 || form.references() > StoredSlots::kMost)
    throw std::invalid_argument("a stride that has no room for a row");
  return StoredShape{&form, record_size, stride};
}

StoredPart part_of(const StoredShape& shape, const Record& stored, uint64_t first,
                   const Record& bytes, uint64_t base) {
  if (stored.shape(0) % shape.stride != 0) throw std::invalid_argument("a part of a row");
  return StoredPart{
      stored.data(), stored.shape(0) / shape.stride, first, bytes.data(), bytes.shape(0), base};
}

// Rows of a file as they came in, into `out`; places of the damaged. `bytes` are those of slots
// from position `base` on.
nb::object expand(Record stored, const SharedForm& form, uint64_t record_size, uint64_t stride,
                  uint64_t first, State salts, Record bytes, uint64_t base, Bytes out) {
  const StoredShape shape = shape_of(form, record_size, stride);
  const StoredPart part = part_of(shape, stored, first, bytes, base);
  if (out.shape(0) != part.n * record_size || record_end(form) > record_size)
    throw std::invalid_argument("expand_slots: room for other records");
  std::vector<int64_t> damaged;
  {
    const RowSums sums = sums_of(salts);
    NoGil no_gil;
    expand_slots(shape, part, sums, out.data(), &damaged);
  }
  return to_array(damaged);
}

// The same rows with the checksums of other salts: (rows, places of the damaged).
nb::tuple reseal(Record stored, const SharedForm& form, uint64_t stride, uint64_t first,
                 State salts, State now, Record bytes, uint64_t base) {
  const StoredShape shape = shape_of(form, 0, stride);
  const StoredPart part = part_of(shape, stored, first, bytes, base);
  auto* block = new Block(part.n * stride);
  nb::object out = nb::cast(block, nb::rv_policy::take_ownership);
  std::vector<int64_t> damaged;
  {
    const RowSums before = sums_of(salts), after = sums_of(now);
    NoGil no_gil;
    reseal_slots(shape, part, before, after, block->data, &damaged);
  }
  return nb::make_tuple(out, to_array(damaged));
}

// Records as they are going to be in files: (rows, bytes of new slots). `parts`: (trajectory, rows)
// one after another.
nb::tuple encode(SlotEncoder& encoder, Record records, Seqs parts, uint64_t first, State salts) {
  if (records.shape(0) % encoder.record_size() != 0 || parts.shape(0) % 2 != 0)
    throw std::invalid_argument("SlotEncoder: expected whole records, and pairs");
  Rows rows;
  rows.n = records.shape(0) / encoder.record_size();
  rows.records = records.data();
  std::vector<SlotEncoder::Part> list;
  for (size_t i = 0; i < parts.shape(0); i += 2)
    list.push_back(
        {static_cast<uint64_t>(parts.data()[i]), static_cast<uint64_t>(parts.data()[i + 1])});
  auto* block = new Block(rows.n * encoder.stride());
  nb::object out = nb::cast(block, nb::rv_policy::take_ownership);
  std::vector<uint8_t> bytes;
  {
    const RowSums sums = sums_of(salts);
    NoGil no_gil;
    encoder.encode(rows, list, sums, first, block->data, &bytes);
  }
  auto* copy = new Block(bytes.size());
  nb::object slots = nb::cast(copy, nb::rv_policy::take_ownership);
  if (!bytes.empty()) std::memcpy(copy->data, bytes.data(), bytes.size());
  return nb::make_tuple(out, slots);
}

// Slots that come once, and that rows in files are too far apart to share, are stored several
// times: a frame must not become any number of bytes here.
void check_growth(const CompactRows& came, const SlotPlan& plan, uint64_t slot_bytes) {
  constexpr uint64_t kMost = 64 << 20;
  if (plan.slots() * slot_bytes <= kMost || plan.slots() <= 2 * came.n_slots) return;
  throw std::invalid_argument(
      "observations of one item take " + std::to_string(plan.slots() * slot_bytes) +
      " bytes in files, and came as " + std::to_string(came.n_slots * slot_bytes) +
      ": rows that share them are too far apart. Send shorter parts of trajectories");
}

}  // namespace

uint64_t SlotColumns::copy_stored(const Tape& tape, const int64_t* rows, const Filling& f) const {
  // Of the thread: a file that is cut leaves from the middle of it.
  thread_local std::vector<SlotTarget> targets;
  thread_local std::vector<int64_t> seqs;
  uint8_t* data = f.block()->data;
  uint64_t tail = 0;
  for (const bool of_last : {false, true}) {
    targets.clear();
    for (const Place& place : places_)
      if (place.of_last == of_last)
        targets.push_back(
            SlotTarget{data + f.columns->starts[place.column], place.leaf, place.next});
    if (of_last && targets.empty()) break;
    const int64_t* from = rows;
    if (f.lengths != nullptr) {
      seqs.resize(f.n);
      const int64_t* group = rows;
      for (size_t i = 0; i < f.n; group += f.lengths[i++])
        seqs[i] = group[of_last ? f.to.steps[i] - 1 : 0];
      from = seqs.data();
    }
    tail = gather_stored_slots(tape, from, f.n, targets.data(), targets.size());
  }
  return tail;
}

void WriterHandle::stage_slots(const Rows& rows) {
  Tape& tape = tape_.tape;
  const Header& h = tape.header();
  const uint64_t slot_bytes = tape.form().slot_bytes();
  room_ = BlobRoom{};
  room_.skip = rows.n > h.capacity ? rows.n - h.capacity : 0;
  const RingSlots older(tape.blobs(), slot_bytes);
  const SlotPlan& plan = writer_.plan_stored(room_, older);
  room_.bytes = plan.slots() * slot_bytes;
  if (rows.compact != nullptr) check_growth(*rows.compact, plan, slot_bytes);
  if (room_.bytes > h.blob_most)
    throw std::invalid_argument("an append of " + std::to_string(rows.n) + " rows has " +
                                std::to_string(room_.bytes) +
                                " bytes of observations, and the storage has room for " +
                                std::to_string(h.blob_most) + "; nothing was written");
  staged_blobs_ = std::make_unique<Block>(room_.bytes);
  staged_ = std::make_unique<Block>((rows.n - room_.skip) * tape.stride());
  seal_slots({&tape.form(), tape.record_size(), tape.stride()}, plan, rows, room_.skip, tape.sums(),
             h.head.load(), older, staged_->data, staged_blobs_->data);
}

void bind_stored_slots(nb::module_& m, nb::class_<TapeHandle>& tape) {
  tape.def("attach_stored_slots", [](TapeHandle& t, const SharedForm& form, uint64_t reach) {
    t.tape.attach_stored_slots(form, reach);
  });
  m.def("expand_slots", &expand, nb::arg("stored"), nb::arg("form"), nb::arg("record_size"),
        nb::arg("stride"), nb::arg("first"), nb::arg("salts"), nb::arg("bytes"), nb::arg("base"),
        nb::arg("out"));
  m.def("reseal_slots", &reseal, nb::arg("stored"), nb::arg("form"), nb::arg("stride"),
        nb::arg("first"), nb::arg("salts"), nb::arg("now"), nb::arg("bytes"), nb::arg("base"));
  m.def("stored_bytes", [](const SharedForm& form) { return stored_bytes(form); });
  nb::class_<SlotEncoder>(m, "SlotEncoder")
      .def(nb::init<const SharedForm&, uint64_t, uint64_t, uint64_t>(), nb::arg("form"),
           nb::arg("record_size"), nb::arg("stride"), nb::arg("reach"))
      .def("encode", &encode, nb::arg("records"), nb::arg("parts").noconvert(), nb::arg("first"),
           nb::arg("salts"))
      .def_prop_ro("head", &SlotEncoder::head);
}

}  // namespace contig
