// Filling a tape from a checkpoint, or from what another process stored, as Python does it.
#include <nanobind/stl/optional.h>

#include "handles.h"

namespace contig {

namespace {

using W = EntryWords;

uint64_t bytes_of(const State& entries) { return entries.shape(0) * sizeof(uint64_t); }

// A record for each entry, or null: there are none.
const uint8_t* fields_of_entries(const Tape& tape, const std::optional<Records>& fields, size_t n) {
  if (!fields) return nullptr;
  if (tape.fields_size() == 0 || fields->shape(0) != n || fields->shape(1) != tape.fields_size())
    throw std::invalid_argument("restore: the fields are not those of the entries");
  return fields->data();
}

// Raises what would make `restore_stored` of these entries fail, and has the memory for them.
void prepare_restore(TapeHandle& t, State entries, uint64_t index_tail, uint64_t index_head) {
  if (entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the index's parts do not fit together");
  with_lock(t.tape, t.lock_timeout_s, bytes_of(entries), [&] {
    t.tape.prepare(entries.data(), index_tail, index_head);
    return 0;
  });
}

// A tape whose rows are in files: takes its index over, in place of what it has.
void restore_stored(TapeHandle& t, uint64_t tail, uint64_t head, State entries, uint64_t index_tail,
                    uint64_t index_head, uint64_t trajectories, std::optional<Records> fields) {
  if (entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the index's parts do not fit together");
  const uint8_t* each = fields_of_entries(t.tape, fields, index_head - index_tail);
  with_lock(t.tape, t.lock_timeout_s, bytes_of(entries), [&] {
    t.tape.restore(Rows{}, tail, head, entries.data(), index_tail, index_head, trajectories, each);
    return 0;
  });
}

void follow(TapeHandle& t, State entries, uint64_t tail, uint64_t head, uint64_t index_tail,
            uint64_t index_head, uint64_t trajectories, std::optional<Records> fields) {
  const size_t n = entries.shape(0) / W::count;
  const uint8_t* each = fields_of_entries(t.tape, fields, n);
  with_lock(t.tape, t.lock_timeout_s, bytes_of(entries), [&] {
    const Snapshot now = t.tape.snapshot();
    if (index_tail > now.index_head || index_head < now.index_head || tail < now.tail ||
        head < now.head || index_tail < now.index_tail || index_tail > index_head || tail > head)
      throw std::invalid_argument("follow: bounds that do not go on from those before");
    for (size_t i = 0; i < n; ++i) {
      const uint64_t number = entries.data()[W::count * i + W::number];
      if (number < index_tail || number >= index_head)
        throw std::invalid_argument("follow: an entry outside the index");
    }
    t.tape.follow(entries.data(), n, Snapshot{head, tail, index_head, index_tail}, trajectories,
                  each);
    return 0;
  });
}

// `blobs`: the bytes of leaves of any size, in packed order.
void restore(TapeHandle& t, Bytes records, uint64_t tail, uint64_t head, State entries,
             uint64_t index_tail, uint64_t index_head, uint64_t trajectories,
             std::optional<Records> fields, std::optional<Record> blobs) {
  if (records.shape(0) != (head - tail) * t.tape.record_size() ||
      entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the checkpoint's parts do not fit together");
  const uint8_t* each = fields_of_entries(t.tape, fields, index_head - index_tail);
  Rows rows;
  rows.n = head - tail;
  rows.records = records.data();
  if (blobs) {
    rows.blobs = blobs->data();
    rows.blob_bytes = blobs->shape(0);
  }
  with_lock(t.tape, t.lock_timeout_s, kKeepGil, [&] {
    t.tape.restore(rows, tail, head, entries.data(), index_tail, index_head, trajectories, each);
    return 0;
  });
}

// The same of compact rows, of the tape's own form or for one that stores nothing once.
void restore_compact(TapeHandle& t, const SharedForm& form, Record rows, Record slots,
                     uint64_t tail, uint64_t head, State entries, uint64_t index_tail,
                     uint64_t index_head, uint64_t trajectories, std::optional<Records> fields,
                     std::optional<Record> blobs) {
  Tape& tape = t.tape;
  const uint64_t n = head - tail, n_slots = slots.shape(0) / form.slot_bytes();
  if (rows.shape(0) != n * form.row_bytes() || slots.shape(0) % form.slot_bytes() != 0 ||
      entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the checkpoint's parts do not fit together");
  if (tape.checked() ||
      (tape.form() ? !tape.form().same_rows(form) : form.record_end() > tape.record_size()))
    throw std::invalid_argument("restore: rows of another form than the tape's");
  if (!references_below(form, rows.data(), n, n_slots))
    throw std::invalid_argument("restore: rows refer to observations that are not there");
  const uint8_t* each = fields_of_entries(tape, fields, index_head - index_tail);
  const CompactRows compact{rows.data(), slots.data(), n_slots};
  std::vector<Column> columns;
  kept_columns(form, rows.data(), &columns);
  Rows from;
  from.n = n;
  from.compact = &compact;
  from.columns = columns.data();
  from.n_columns = columns.size();
  if (blobs) {
    from.blobs = blobs->data();
    from.blob_bytes = blobs->shape(0);
  }
  with_lock(tape, t.lock_timeout_s, kKeepGil, [&] {
    tape.restore(from, tail, head, entries.data(), index_tail, index_head, trajectories, each,
                 &form);
    return 0;
  });
}

}  // namespace

void bind_restore(nb::class_<TapeHandle>& tape) {
  tape.def("restore", &restore, nb::arg("records"), nb::arg("tail"), nb::arg("head"),
           nb::arg("entries"), nb::arg("index_tail"), nb::arg("index_head"),
           nb::arg("trajectories"), nb::arg("fields").noconvert() = nb::none(),
           nb::arg("blobs").noconvert() = nb::none())
      .def("restore_compact", &restore_compact, nb::arg("form"), nb::arg("rows").noconvert(),
           nb::arg("slots").noconvert(), nb::arg("tail"), nb::arg("head"), nb::arg("entries"),
           nb::arg("index_tail"), nb::arg("index_head"), nb::arg("trajectories"),
           nb::arg("fields").noconvert() = nb::none(), nb::arg("blobs").noconvert() = nb::none())
      .def("prepare_restore", &prepare_restore)
      .def("restore_stored", &restore_stored, nb::arg("tail"), nb::arg("head"), nb::arg("entries"),
           nb::arg("index_tail"), nb::arg("index_head"), nb::arg("trajectories"),
           nb::arg("fields").noconvert() = nb::none())
      .def("follow", &follow, nb::arg("entries"), nb::arg("tail"), nb::arg("head"),
           nb::arg("index_tail"), nb::arg("index_head"), nb::arg("trajectories"),
           nb::arg("fields").noconvert() = nb::none());
}

}  // namespace contig
