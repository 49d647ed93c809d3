// What clients have to send and have on its way, as Python sees it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <cstring>

#include "handles.h"
#include "native/tape/gather.h"
#include "native/wire/env_runs.h"
#include "native/wire/frame_builder.h"
#include "native/wire/inflight.h"
#include "native/wire/open_lanes.h"

namespace contig {

namespace {

using Record = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int out_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* frame = nb::inst_ptr<OutFrame>(self);
  return PyBuffer_FillInfo(view, self, frame->records.data,
                           static_cast<Py_ssize_t>(frame->records.used), 1, flags);
}

PyType_Slot out_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(out_buffer)}, {0, nullptr}};

WireRun wire_run(uint64_t rows, uint32_t flags, int64_t traj_id, int64_t version, uint32_t lanes) {
  if (rows == 0 || rows > UINT32_MAX) throw std::invalid_argument("a run has 1 to 2^32 - 1 rows");
  // Of marked rows, which trajectories are open instead of an id. Nobody knows here.
  const int64_t nobody_knows = (flags & kTold) != 0 ? -1 : 0;
  const int64_t id = (flags & kMarked) != 0 ? nobody_knows : traj_id;
  return WireRun{static_cast<uint32_t>(rows), flags, id, version, lanes, 0};
}

// Fields as the wire has them: mask and record of each.
using GivenFields =
    std::optional<nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>>;

ItemExtras extras_of(const GivenFields& fields, uint64_t bytes = 0) {
  ItemExtras extras;
  if (fields) {
    extras.fields = fields->data();
    extras.field_bytes = fields->size();
  }
  extras.bytes = bytes;
  return extras;
}

// A run whose fields these are.
WireRun with_fields(WireRun run, const GivenFields& fields) {
  if (!fields) return run;
  const uint64_t n = fields->shape(0);
  if (n == 0 || (n != 1 && n != run.lanes))
    throw std::invalid_argument("fields: one for all, or one for each lane");
  run.flags |= kHasFields;
  run.fields = static_cast<uint32_t>(n);
  return run;
}

// Room in a frame builder, given back unless what was written to it is committed.
class Filling {
 public:
  explicit Filling(FrameBuilder& builder, uint64_t rows, uint64_t runs = 1,
                   const ItemExtras& extras = {})
      : builder_(builder), rows_(rows), at(builder.room(rows, runs, extras)) {}
  // Of rows that stay where they are.
  Filling(FrameBuilder& builder, const Rows& rows, uint64_t runs, const ItemExtras& extras)
      : builder_(builder), rows_(rows.n), at(nullptr) {
    builder.room_for(rows, runs, extras);
  }
  void bytes(const uint8_t* from, uint64_t n) {
    if (n > 0) std::memcpy(builder_.bytes_room(), from, n);
  }
  ~Filling() {
    if (!done_) builder_.cancel();
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;
  void records() {
    builder_.commit_records(rows_);
    done_ = true;
  }
  void record(const LeafSums& sums) {
    builder_.commit_record(sums);
    done_ = true;
  }
  void run(const WireRun& run, bool may_grow) {
    if (!may_grow || !builder_.grow_run(run)) builder_.commit_run(run);
    done_ = true;
  }
  void runs(const std::vector<WireRun>& runs) {
    builder_.commit_runs(runs);
    done_ = true;
  }

 private:
  FrameBuilder& builder_;
  const uint64_t rows_;
  bool done_ = false;

 public:
  uint8_t* const at;
};

bool pack(FrameBuilder& b, const Plan& plan, nb::handle tree) {
  if (plan.record_size() != b.record_size())
    throw std::invalid_argument("pack: a plan for other records");
  Filling filling(b, 1);
  LeafSums sums;
  if (!plan.pack(tree.ptr(), filling.at, &sums)) return false;
  filling.record(sums);
  return true;
}

// The envs of a client's steps, with the marks of its records.
struct EnvRunsHandle {
  EnvRunsHandle(nb::dict marks, bool id_alone) : marks(marks, id_alone) {}
  MarkSpecs marks;
  EnvRuns runs;
};

// Which trajectories a client has open, with the marks of its records.
struct OpenLanesHandle {
  OpenLanesHandle(nb::dict marks, bool id_alone) : marks(marks, id_alone) {}
  MarkSpecs marks;
  OpenLanes lanes;
};

// Marked rows that their sender says more of, if it can.
class MarkedRun {
 public:
  MarkedRun(OpenLanesHandle* open, const Rows& rows, uint64_t record_size, WireRun* run)
      : open_(open) {
    if (open_ == nullptr) return;
    open_->marks.check(record_size);
    open_->lanes.tell(open_->marks.of(rows, record_size), run);
  }
  bool may_grow() const { return open_ == nullptr || open_->lanes.may_grow(); }
  void commit() {
    if (open_ != nullptr) open_->lanes.commit();
  }

 private:
  OpenLanesHandle* const open_;
};

// Rows of columns, for a frame: their leaves, and the bytes of leaves of any size.
class ColumnRows {
 public:
  ColumnRows(FrameBuilder& b, const nb::list& arrays, const Seqs& leaves, uint64_t n,
             const nb::list& blobs)
      : columns_(columns_from(arrays, leaves, n, b.record_size())),
        rows_(pack_rows(blob_columns_from(blobs, n, b.record_size()), n, &columns_, &packed_)) {}
  const Rows& rows() const { return rows_; }
  uint64_t bytes() const { return rows_.blob_bytes; }

 private:
  std::vector<Column> columns_;
  PackedColumns packed_;
  const Rows rows_;
};

void add_columns(FrameBuilder& b, nb::list arrays, Seqs leaves, uint64_t n, uint32_t flags,
                 int64_t traj_id, int64_t version, uint32_t lanes, bool may_grow,
                 GivenFields fields, nb::list blobs, OpenLanesHandle* open) {
  WireRun run = with_fields(wire_run(n, flags, traj_id, version, lanes), fields);
  const ColumnRows columns(b, arrays, leaves, n, blobs);
  MarkedRun marked(open, columns.rows(), b.record_size(), &run);
  Filling filling(b, columns.rows(), 1, extras_of(fields, columns.bytes()));
  filling.run(run, may_grow && marked.may_grow());
  marked.commit();
}

void add_env_rows(FrameBuilder& b, EnvRunsHandle& envs, nb::list arrays, Seqs leaves, Seqs whose,
                  int64_t next_id, GivenFields fields, nb::list blobs) {
  const uint64_t n = whose.shape(0);
  if (n == 0) throw std::invalid_argument("add_env_rows: no rows");
  if (fields && fields->shape(0) != n) throw std::invalid_argument("fields: one for each row");
  check_envs(whose, n);
  envs.marks.check(b.record_size());
  const ColumnRows columns(b, arrays, leaves, n, blobs);
  Filling filling(b, columns.rows(), n, extras_of(fields, columns.bytes()));
  const Marks marks = envs.marks.of(columns.rows(), b.record_size());
  const std::vector<WireRun>& told =
      envs.runs.tell(n, whose.data(), marks, next_id, fields.has_value());
  if (n == 1)
    filling.run(told[0], true);
  else
    filling.runs(told);
  envs.runs.commit();
}

// What a frame's run of one packed row is to say: its flags and the id of its trajectory.
nb::tuple tell_row(EnvRunsHandle& envs, Record record, int64_t next_id) {
  envs.marks.check(record.shape(0));
  Rows row;
  row.n = 1;
  row.records = record.data();
  const int64_t env = 0;
  const WireRun& run =
      envs.runs.tell(1, &env, envs.marks.of(row, record.shape(0)), next_id).front();
  return nb::make_tuple(run.flags, run.traj_id);
}

void check_plan(const FrameBuilder& b, const Plan& plan) {
  if (plan.record_size() != b.record_size())
    throw std::invalid_argument("pack: a plan for other records");
}

Rows one_row(const uint8_t* record) {
  Rows rows;
  rows.n = 1;
  rows.records = record;
  return rows;
}

// One row of fixed leaves; false: the plan does not understand it.
bool pack_row(FrameBuilder& b, const Plan& plan, nb::handle tree, uint32_t flags, int64_t traj_id,
              int64_t version, uint32_t lanes, OpenLanesHandle* open) {
  check_plan(b, plan);
  Filling filling(b, 1);
  if (!plan.pack(tree.ptr(), filling.at)) return false;
  WireRun run = wire_run(1, flags, traj_id, version, lanes);
  MarkedRun marked(open, one_row(filling.at), b.record_size(), &run);
  filling.run(run, marked.may_grow());
  marked.commit();
  return true;
}

// The same with fields, or with leaves of any size; false also if these have more than `most` bytes
// together, which is known only when they are packed.
bool pack_rich_row(FrameBuilder& b, const Plan& plan, nb::handle tree, uint32_t flags,
                   int64_t traj_id, int64_t version, uint32_t lanes, GivenFields fields,
                   uint64_t most, OpenLanesHandle* open) {
  check_plan(b, plan);
  WireRun run = with_fields(wire_run(1, flags, traj_id, version, lanes), fields);
  thread_local std::vector<uint8_t> spare_record, spare_bytes;
  // Not to be shared with whom packing may call.
  std::vector<uint8_t> record = std::move(spare_record), bytes = std::move(spare_bytes);
  record.assign(b.record_size(), 0);
  bytes.clear();
  const bool packed = plan.pack(tree.ptr(), record.data(), nullptr, &bytes) && bytes.size() <= most;
  if (packed) {
    MarkedRun marked(open, one_row(record.data()), b.record_size(), &run);
    Filling filling(b, 1, 1, extras_of(fields, bytes.size()));
    std::memcpy(filling.at, record.data(), record.size());
    filling.bytes(bytes.data(), bytes.size());
    filling.run(run, marked.may_grow());
    marked.commit();
  }
  spare_record = std::move(record);
  spare_bytes = std::move(bytes);
  return packed;
}

void bind_gathering(nb::module_& m) {
  nb::class_<EnvRunsHandle>(m, "EnvRuns")
      .def(nb::init<nb::dict, bool>(), nb::arg("marks"), nb::arg("id_alone"))
      .def("tell_row", &tell_row, nb::arg("record").noconvert(), nb::arg("next_id"))
      .def(
          "commit", [](EnvRunsHandle& envs, uint64_t ended) { envs.runs.commit(ended); },
          nb::arg("ended") = 0)
      .def("let_go", [](EnvRunsHandle& envs) { envs.runs.let_go(); });
  nb::class_<OpenLanesHandle>(m, "OpenLanes")
      .def(nb::init<nb::dict, bool>(), nb::arg("marks"), nb::arg("id_alone"));
  nb::class_<OutFrame>(m, "OutFrame", nb::type_slots(out_slots))
      .def_ro("first", &OutFrame::first)
      .def_ro("items", &OutFrame::items)
      .def_prop_ro("nbytes", &OutFrame::size)
      .def_prop_ro("slots",
                   [](const OutFrame& f) {
                     return nb::bytes(reinterpret_cast<const char*>(f.slots.data), f.slots.used);
                   })
      .def_prop_ro("bytes",
                   [](const OutFrame& f) {
                     return nb::bytes(reinterpret_cast<const char*>(f.bytes.data), f.bytes.used);
                   })
      .def_prop_ro("head", [](const OutFrame& f) {
        return nb::bytes(reinterpret_cast<const char*>(f.head.data()), f.head.size());
      });
  nb::class_<FrameBuilder>(m, "FrameBuilder")
      .def(nb::init<uint64_t, bool, uint64_t, uint64_t>(), nb::arg("record_size"),
           nb::arg("padded"), nb::arg("first"), nb::arg("frame_bytes"))
      .def("pack", &pack, nb::arg("plan"), nb::arg("tree").none())
      .def("pack_row", &pack_row, nb::arg("plan"), nb::arg("tree").none(), nb::arg("flags"),
           nb::arg("traj_id"), nb::arg("version"), nb::arg("lanes"),
           nb::arg("open").none() = nb::none())
      .def("pack_rich_row", &pack_rich_row, nb::arg("plan"), nb::arg("tree").none(),
           nb::arg("flags"), nb::arg("traj_id"), nb::arg("version"), nb::arg("lanes"),
           nb::arg("fields").noconvert().none(), nb::arg("most"),
           nb::arg("open").none() = nb::none())
      .def(
          "add_records",
          [](FrameBuilder& b, Record records) {
            const uint64_t n = records.shape(0) / b.record_size();
            if (n == 0 || n * b.record_size() != records.shape(0))
              throw std::invalid_argument("records: expected a whole number of records");
            Filling filling(b, n);
            std::memcpy(filling.at, records.data(), records.shape(0));
            filling.records();
          },
          nb::arg("records").noconvert())
      .def(
          "add_run",
          [](FrameBuilder& b, Record records, uint32_t flags, int64_t traj_id, int64_t version,
             uint32_t lanes, bool may_grow, GivenFields fields, std::optional<Record> blobs) {
            const uint64_t n = records.shape(0) / b.record_size();
            if (n * b.record_size() != records.shape(0))
              throw std::invalid_argument("records: expected a whole number of records");
            const WireRun run = with_fields(wire_run(n, flags, traj_id, version, lanes), fields);
            const uint64_t bytes = blobs ? blobs->shape(0) : 0;
            Filling filling(b, n, 1, extras_of(fields, bytes));
            std::memcpy(filling.at, records.data(), records.shape(0));
            if (blobs) filling.bytes(blobs->data(), bytes);
            filling.run(run, may_grow);
          },
          nb::arg("records").noconvert(), nb::arg("flags"), nb::arg("traj_id"), nb::arg("version"),
          nb::arg("lanes"), nb::arg("may_grow"), nb::arg("fields").noconvert() = nb::none(),
          nb::arg("blobs").noconvert() = nb::none())
      .def("add_columns", &add_columns, nb::arg("arrays"), nb::arg("leaves").noconvert(),
           nb::arg("n"), nb::arg("flags"), nb::arg("traj_id"), nb::arg("version"), nb::arg("lanes"),
           nb::arg("may_grow"), nb::arg("fields").noconvert() = nb::none(),
           nb::arg("blobs") = nb::list(), nb::arg("open").none() = nb::none())
      .def("add_env_rows", &add_env_rows, nb::arg("envs"), nb::arg("arrays"),
           nb::arg("leaves").noconvert(), nb::arg("whose").noconvert(), nb::arg("next_id"),
           nb::arg("fields").noconvert() = nb::none(), nb::arg("blobs") = nb::list(),
           "Rows of these envs in one frame, a run for each.")
      .def(
          "set_variable",
          [](FrameBuilder& b, Seqs offsets) {
            std::vector<uint64_t> out(offsets.data(), offsets.data() + offsets.shape(0));
            for (const uint64_t offset : out)
              check_place(offset, 16, b.record_size(), "set_variable");
            b.set_variable(std::move(out));
          },
          nb::arg("offsets").noconvert(),
          "Before the first record: where it has positions of leaves of any size.")
      .def(
          "set_shared",
          [](FrameBuilder& b, const SharedForm* form, uint64_t most) { b.set_shared(form, most); },
          nb::arg("form").none(), nb::arg("most"),
          "From the next frame on, rows are compact, or with None whole; at most so many bytes "
          "behind a header.")
      .def("take", &FrameBuilder::take, nb::arg("open"))
      .def_prop_ro("next", &FrameBuilder::next);
}

// A part of what is to be sent, for who sends it from Python.
int part_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* part = nb::inst_ptr<Inflight::Part>(self);
  return PyBuffer_FillInfo(view, self, const_cast<uint8_t*>(part->data),
                           static_cast<Py_ssize_t>(part->bytes), 1, flags);
}

PyType_Slot part_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(part_buffer)}, {0, nullptr}};

std::string bytes_of(nb::handle bytes) {
  const auto whole = nb::cast<nb::bytes>(bytes);
  return std::string(whole.c_str(), whole.size());
}

Inflight::Event run(Inflight& inflight, int socket, int wake, Receiver& receiver) {
  int error = 0;
  Inflight::Event event;
  {
    NoGil no_gil;
    event = inflight.run(socket, wake, receiver, &error);
  }
  if (event == Inflight::Event::failed) {
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return event;
}

void bind_inflight(nb::module_& m) {
  nb::class_<Inflight::Part>(m, "OutPart", nb::type_slots(part_slots));
  nb::class_<Inflight> inflight(m, "Inflight");
  nb::enum_<Inflight::Event>(inflight, "Event", nb::is_arithmetic())
      .value("STOPPED", Inflight::Event::stopped)
      .value("FRAME", Inflight::Event::frame)
      .value("REFUSED", Inflight::Event::refused)
      .value("CLOSED", Inflight::Event::closed)
      .value("FAILED", Inflight::Event::failed)
      .value("SILENT", Inflight::Event::silent)
      .value("DRAINED", Inflight::Event::drained);
  inflight
      .def(nb::init<uint64_t, bool, uint64_t, uint64_t, uint64_t>(), nb::arg("record_size"),
           nb::arg("padded"), nb::arg("first"), nb::arg("frame_bytes"), nb::arg("max_frames"))
      .def_prop_ro(
          "builder", [](Inflight& f) -> FrameBuilder& { return f.builder; },
          nb::rv_policy::reference_internal)
      .def(
          "send",
          [](Inflight& f, const Plan& plan, nb::handle tree) {
            if (f.room() != Inflight::Room::some) return 1;
            return pack(f.builder, plan, tree) ? 0 : 2;
          },
          nb::arg("plan"), nb::arg("tree").none(),
          "0: added, 1: too much is in flight, 2: the plan does not understand the tree.")
      .def(
          "room", [](Inflight& f) { return static_cast<int>(f.room()); },
          "0: another item may be added, 1: too many frames are in flight, 2: too many bytes.")
      .def("ask", [](Inflight& f, nb::bytes frame) { f.ask(bytes_of(frame)); })
      .def("rouse", &Inflight::rouse)
      .def_prop_ro("idle", &Inflight::idle)
      .def_prop_ro("changes", &Inflight::changes)
      .def(
          "wait",
          [](Inflight& f, uint64_t seen, uint64_t upto, double timeout_s) {
            NoGil no_gil;
            f.wait(seen, upto, timeout_s);
          },
          nb::arg("seen"), nb::arg("upto"), nb::arg("timeout_s"))
      .def("notify", &Inflight::notify)
      .def_prop_ro("frames", &Inflight::frames)
      .def_prop_ro("bytes", &Inflight::bytes)
      .def_prop_ro("sent_bytes", &Inflight::sent_bytes)
      .def_prop_ro("acked", &Inflight::acked)
      .def_prop_ro("most_bytes", &Inflight::most_bytes)
      .def("limit", &Inflight::limit, nb::arg("max_bytes"), nb::arg("near"))
      .def("carry", &Inflight::carry, nb::arg("bytes"),
           "A new connection, whose server keeps so many bytes of slots that came; 0: none.")
      .def(
          "resume",
          [](Inflight& f, uint64_t seen, nb::list requests) {
            std::vector<std::string> frames;
            for (nb::handle request : requests) frames.push_back(bytes_of(request));
            return f.resume(seen, std::move(frames));
          },
          nb::arg("seen"), nb::arg("requests"))
      .def(
          "reshape",
          [](Inflight& f, const SharedForm* form, uint64_t most) { f.reshape(form, most); },
          nb::arg("form").none(), nb::arg("most"),
          "Behind `resume`: the server stores observations in another way than the one before.")
      .def("heartbeat", &Inflight::heartbeat, nb::arg("seconds"))
      .def("close", &Inflight::close)
      .def("stop", &Inflight::stop)
      .def("leave", &Inflight::leave, nb::arg("seconds"))
      .def(
          "forked", [](nb::handle self) { self.inc_ref(); },
          "In a forked child: its threads are gone with what they held, so it is never destroyed.")
      .def("ack", &Inflight::ack)
      .def("next_parts",
           [](Inflight& f) {
             nb::list out;
             for (Inflight::Part& part : f.next_parts()) out.append(nb::cast(std::move(part)));
             return out;
           })
      .def("patience", &Inflight::patience)
      .def("ended", &Inflight::ended)
      .def("time_left", &Inflight::time_left)
      .def("run", &run, nb::arg("socket"), nb::arg("wake"), nb::arg("receiver"))
      .def_static("can_run", &Inflight::can_run);
}

}  // namespace

void bind_client(nb::module_& m) {
  bind_gathering(m);
  bind_inflight(m);
}

}  // namespace contig
