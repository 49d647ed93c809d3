// Tapes whose rows are in files, as Python sees them: their checksums, and where they are mapped.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "handles.h"
#include "native/sys/region.h"
#include "native/tape/gather.h"
#include "native/tape/stored_rows.h"

namespace contig {

namespace {

RowSums row_sums(const State& salts) {
  if (salts.shape(0) % 2 != 0) throw std::invalid_argument("salts: expected pairs");
  return RowSums(salts.data(), salts.shape(0) / 2);
}

// Leaves of any size: (offset in the record, what lengths are multiples of) one after another.
std::vector<BlobLeaf> leaves_of(const std::optional<Seqs>& leaves, uint64_t record_size) {
  std::vector<BlobLeaf> out;
  for (size_t i = 0; leaves && i + 1 < leaves->shape(0); i += 2) {
    out.push_back(BlobLeaf{static_cast<uint64_t>(leaves->data()[i]),
                           static_cast<uint64_t>(leaves->data()[i + 1])});
    check_place(out.back().offset, kPlaceBytes, record_size, "leaves");
  }
  return out;
}

void check_shape(uint64_t size, uint64_t stride, size_t leaves, const char* where) {
  if (size == 0 || size > stride || stride - size < (leaves != 0 ? 8 : 4))
    throw std::invalid_argument(std::string(where) + ": a stride that has no room for a row");
}

// Records as they are in a file, the first of them with this seq. With leaves of any size, their
// positions count from 0 in `blobs`, and from `base` on in the file.
nb::object encode(Record records, uint64_t size, uint64_t stride, uint64_t first, State salts,
                  std::optional<Seqs> leaves, std::optional<Record> blobs, uint64_t base) {
  const std::vector<BlobLeaf> list = leaves_of(leaves, size);
  check_shape(size, stride, list.size(), "encode_rows");
  if (records.shape(0) % size != 0)
    throw std::invalid_argument("encode_rows: expected whole records");
  const uint64_t n = records.shape(0) / size;
  auto* block = new Block(n * stride);
  nb::object out = nb::cast(block, nb::rv_policy::take_ownership);
  const RowSums sums = row_sums(salts);
  NoGil no_gil;
  Rows rows;
  rows.n = n;
  rows.records = records.data();
  if (blobs) {
    rows.blobs = blobs->data();
    rows.blob_bytes = blobs->shape(0);
  }
  if (!list.empty()) BlobRows(rows, list, size).check(rows.blob_bytes, {});
  encode_rows(rows, 0, size, stride, sums, first, block->data, list, base);
  return out;
}

// Rows of a file: (records, places of the damaged). What leaves of any size have is not looked at.
nb::tuple decode(Record stored, uint64_t size, uint64_t stride, uint64_t first, State salts) {
  check_shape(size, stride, 0, "decode_rows");
  if (stored.shape(0) % stride != 0) throw std::invalid_argument("decode_rows: a part of a row");
  const uint64_t n = stored.shape(0) / stride;
  auto* block = new Block(n * size);
  nb::object out = nb::cast(block, nb::rv_policy::take_ownership);
  std::vector<int64_t> damaged;
  {
    const RowSums sums = row_sums(salts);
    NoGil no_gil;
    decode_rows(stored.data(), n, size, stride, sums, first, block->data, &damaged);
  }
  return nb::make_tuple(out, to_array(damaged));
}

// Places of rows of a file that are not as they were written, with their bytes: `blobs` are those
// from position `base` on.
nb::object check(Record stored, uint64_t size, uint64_t stride, uint64_t first, State salts,
                 Seqs leaves, Record blobs, uint64_t base) {
  const std::vector<BlobLeaf> list = leaves_of(leaves, size);
  check_shape(size, stride, 1, "check_rows");
  if (stored.shape(0) % stride != 0 || list.empty())
    throw std::invalid_argument("check_rows: expected whole rows with leaves of any size");
  std::vector<int64_t> damaged;
  {
    const RowSums sums = row_sums(salts);
    NoGil no_gil;
    check_rows(stored.data(), stored.shape(0) / stride, size, stride, list, sums, first,
               blobs.data(), blobs.shape(0), base, &damaged);
  }
  return to_array(damaged);
}

void publish(TapeHandle& t, uint64_t record_size, uint64_t stride, uint64_t shift,
             uint64_t most_extents, uint64_t fields_size, uint64_t blob_leaves, uint64_t blob_ring,
             uint64_t blob_most, uint64_t stored_size) {
  check_shape(stored_size != 0 ? stored_size : record_size, stride, blob_leaves, "publish_stored");
  if (shift > 40 || most_extents < 3 || (blob_leaves != 0) != (blob_ring != 0) ||
      blob_most > blob_ring)
    throw std::invalid_argument("publish_stored: files that make no sense");
  check_fields_size(fields_size);
  t.tape.publish_stored(record_size, stride, shift, most_extents, fields_size,
                        StoredBlobs{blob_leaves, blob_ring, blob_most});
}

void attach_region(TapeHandle& t, Region& region) {
  if (region.size() < t.tape.data_bytes())
    throw std::invalid_argument("attach_region: the region is too small");
  t.tape.attach_data(region.data());
}

void attach_blob_region(TapeHandle& t, Region& region, Seqs leaves,
                        std::vector<std::string> names) {
  if (region.size() < t.tape.header().blob_ring)
    throw std::invalid_argument("attach_blob_region: the region is too small");
  t.tape.attach_blobs(region.data(), leaves_of(leaves, t.tape.stored_size()), std::move(names));
}

void check_row(const TapeHandle& t, uint64_t seq) {
  if (!t.tape.checked() || t.tape.blob_leaves().empty() || seq >= t.tape.snapshot().head)
    throw std::invalid_argument("no row in files that has leaves of any size");
}

}  // namespace

// What is appended, as it is going to be in files.
void WriterHandle::stage(const Rows& rows) {
  if (tape_.tape.form()) return stage_slots(rows);
  if (rows.compact != nullptr)
    throw std::invalid_argument("stage: rows with slots of their own, for whole rows in files");
  const Tape& tape = tape_.tape;
  const uint64_t size = tape.record_size(), stride = tape.stride();
  const uint64_t capacity = tape.header().capacity;
  uint64_t skip = rows.n > capacity ? rows.n - capacity : 0;  // as `append` does
  uint64_t base = 0;
  if (!tape.blob_leaves().empty()) {
    room_ = tape.blob_room(rows);
    skip = room_.skip;
    base = tape.header().blob_head.load() - room_.from;
    staged_blobs_ = std::make_unique<Block>(room_.bytes);
    if (room_.bytes > 0) std::memcpy(staged_blobs_->data, rows.blobs + room_.from, room_.bytes);
  }
  staged_ = std::make_unique<Block>((rows.n - skip) * stride);
  encode_rows(rows, skip, size, stride, tape.sums(), tape.header().head.load(), staged_->data,
              tape.blob_leaves(), base);
}

void bind_stored(nb::module_& m, nb::class_<TapeHandle>& tape) {
  m.def("decode_rows", &decode, nb::arg("stored"), nb::arg("record_size"), nb::arg("stride"),
        nb::arg("first"), nb::arg("salts"));
  m.def("encode_rows", &encode, nb::arg("records"), nb::arg("record_size"), nb::arg("stride"),
        nb::arg("first"), nb::arg("salts"), nb::arg("leaves") = nb::none(),
        nb::arg("blobs") = nb::none(), nb::arg("base") = 0);
  m.def("check_rows", &check, nb::arg("stored"), nb::arg("record_size"), nb::arg("stride"),
        nb::arg("first"), nb::arg("salts"), nb::arg("leaves"), nb::arg("blobs"), nb::arg("base"));
  tape.def("attach_region", &attach_region, nb::keep_alive<1, 2>())
      .def("attach_blob_region", &attach_blob_region, nb::keep_alive<1, 2>(), nb::arg("region"),
           nb::arg("leaves").noconvert(), nb::arg("names") = std::vector<std::string>())
      .def("set_salts",  // (first seq, salt) one after another: what checksums are of
           [](TapeHandle& t, State salts) {
             if (salts.shape(0) % 2 != 0) throw std::invalid_argument("salts: expected pairs");
             t.tape.sums().set(salts.data(), salts.shape(0) / 2);
           })
      .def("damaged",
           [](const TapeHandle& t, uint64_t low, uint64_t high) {
             std::vector<int64_t> seqs;
             {
               NoGil no_gil;
               find_damaged(t.tape, low, high, &seqs);
             }
             return to_array(seqs);
           })
      .def("publish_stored", &publish, nb::arg("record_size"), nb::arg("stride"), nb::arg("shift"),
           nb::arg("most_extents"), nb::arg("fields_size") = 0, nb::arg("blob_leaves") = 0,
           nb::arg("blob_ring") = 0, nb::arg("blob_most") = 0, nb::arg("stored_size") = 0)
      .def_prop_rw(
          "blob_head", [](const TapeHandle& t) { return t.tape.header().blob_head.load(); },
          [](TapeHandle& t, uint64_t head) { t.tape.header().blob_head.store(head); })
      // Where a row's bytes begin and end, or -1 if it is damaged.
      .def("stored_begin",
           [](const TapeHandle& t, uint64_t seq) {
             check_row(t, seq);
             BlobPlace span{0, 0};
             return stored_span(t.tape, seq, &span) ? static_cast<int64_t>(span.position) : -1;
           })
      .def("stored_end",
           [](const TapeHandle& t, uint64_t seq) {
             check_row(t, seq);
             BlobPlace span{0, 0};
             return stored_span(t.tape, seq, &span)
                        ? static_cast<int64_t>(span.position + span.bytes)
                        : -1;
           })
      // The first row all of whose bytes are at a position or behind it.
      .def("stored_beyond",
           [](const TapeHandle& t, uint64_t position) {
             const Snapshot s = t.tape.snapshot();
             if (s.tail >= s.head) return s.tail;
             check_row(t, s.tail);
             NoGil no_gil;
             return stored_beyond(t.tape, position, s.tail, s.head);
           })
      // The first row such that it and those behind it have at most so many bytes in files.
      .def("stored_within", [](const TapeHandle& t, uint64_t stride, uint64_t bytes) {
        const Snapshot s = t.tape.snapshot();
        if (s.tail >= s.head) return s.tail;
        check_row(t, s.tail);
        NoGil no_gil;
        return stored_within(t.tape, stride, bytes, s.tail, s.head);
      });
}

}  // namespace contig
