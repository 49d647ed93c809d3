// Writers, as Python sees them: trees or columns in, one append out.
#include <nanobind/stl/optional.h>

#include <cstring>
#include <random>
#include <utility>

#include "handles.h"
#include "native/tape/gather.h"
#include "receive.h"

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace contig {

namespace {
std::atomic<uint64_t> fork_generation{0};

uint64_t thread_number() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t mine = next.fetch_add(1);
  return mine;
}

uint64_t random_id() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32 | device()) >> 1;
}

// One call at a time: a writer belongs to one thread.
struct Turn {
  explicit Turn(std::atomic<bool>& b) : busy(b) {
    if (busy.exchange(true))
      throw std::runtime_error(
          "this writer is being used by two threads at once; give each thread its own writer()");
  }
  ~Turn() { busy.store(false); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  std::atomic<bool>& busy;
};

// Lanes have memory up to the highest one.
constexpr int64_t kMostEnvs = 1 << 20;

}  // namespace

namespace {
void set_blobs(const std::optional<Record>& blobs, Rows* rows) {
  if (!blobs) return;
  rows->blobs = blobs->data();
  rows->blob_bytes = blobs->shape(0);
}
}  // namespace

void check_envs(const Seqs& envs, uint64_t rows) {
  if (envs.shape(0) != rows) throw std::invalid_argument("envs: expected one for each row");
  for (uint64_t i = 0; i < rows; ++i)
    if (envs.data()[i] < 0 || envs.data()[i] >= kMostEnvs)
      throw std::invalid_argument("envs: expected numbers from 0 to MOST_ENVS - 1");
}

WriterHandle::WriterHandle(TapeHandle& tape, nb::dict marks, bool id_alone, bool stage,
                           uint64_t number)
    : tape_(tape),
      writer_(tape.tape, number != 0 ? number : random_id()),
      marks_(marks, id_alone),
      stage_(stage),
      thread_(thread_number()),
      generation_(forks()) {
  if (tape.tape.attached()) marks_.check(tape.tape.record_size());
}

uint64_t forks() { return fork_generation.load(); }

bool WriterHandle::mine() const { return thread_number() == thread_ && forks() == generation_; }

void WriterHandle::claim() {
  tape_.tape.check_open();
  if (mine()) return;
  thread_ = thread_number();
  generation_ = forks();
  envs_ = 0;
  writer_.restart(random_id());
}

namespace {
nb::object object_of(std::unique_ptr<Block>& block) {
  if (block == nullptr) return nb::none();
  return nb::cast(block.release(), nb::rv_policy::take_ownership);
}
}  // namespace

nb::object WriterHandle::staged() { return object_of(staged_); }

nb::object WriterHandle::staged_blobs() { return object_of(staged_blobs_); }

int64_t WriterHandle::commit_staged() {
  const Turn turn(busy_);
  return with_lock(tape_.tape, tape_.lock_timeout_s, writer_.runs() * sizeof(Entry),
                   [&] { return static_cast<int64_t>(writer_.commit(sender_, true, room_)); });
}

int64_t WriterHandle::commit(const Rows& rows) {
  if (stage_) {
    sender_ = Sender{};
    stage(rows);
    return static_cast<int64_t>(tape_.tape.header().head.load());
  }
  return with_lock(tape_.tape, tape_.lock_timeout_s, bytes_of(rows),
                   [&] { return static_cast<int64_t>(writer_.commit()); });
}

int64_t WriterHandle::write(const Rows& rows, uint64_t lanes, Continue rule, nb::handle fields,
                            const std::optional<Seqs>& envs) {
  if (envs) {
    check_envs(*envs, rows.n);
    return write_step(rows, envs->data(), rule, fields);
  }
  claim();
  const Given given = given_.take(fields, tape_.tape, lanes, rows.n);
  const NoGil no_gil(bytes_of(rows) >= kKeepGil);
  writer_.start(rows);
  writer_.add_lanes(0, rows.n, lanes, marks(rows), rule, given);
  return commit(rows);
}

int64_t WriterHandle::write_step(const Rows& rows, const int64_t* envs, Continue rule,
                                 nb::handle fields) {
  claim();
  const Given given = given_.take(fields, tape_.tape, rows.n, rows.n);
  const NoGil no_gil(bytes_of(rows) >= kKeepGil);
  writer_.start(rows);
  writer_.add_rows(0, rows.n, envs, marks(rows), rule, given);
  return commit(rows);
}

int64_t WriterHandle::add(const Plan& plan, nb::handle tree, nb::handle fields) {
  const Turn turn(busy_);
  scratch_.resize(plan.record_size());
  scratch_blobs_.clear();
  if (!plan.pack(tree.ptr(), scratch_.data(), nullptr, &scratch_blobs_)) return -1;
  Rows rows;
  rows.n = 1;
  rows.records = scratch_.data();
  rows.blobs = scratch_blobs_.data();
  rows.blob_bytes = scratch_blobs_.size();
  return write(rows, 1, Continue::if_open, fields);
}

int64_t WriterHandle::extend(const Plan& plan, nb::handle tree, size_t batch_ndim, Lanes are,
                             Continue rule, std::optional<Seqs> envs, nb::handle fields) {
  const Turn turn(busy_);
  ColumnSet set;
  if (!plan.columns(tree.ptr(), batch_ndim, &set) || set.rows == 0) return -1;
  PackedColumns packed;
  const Rows rows = pack_rows(set.blobs, set.rows, &set.columns, &packed);
  uint64_t lanes = 1;
  if (are == Lanes::leading_dims) lanes = set.rows / static_cast<uint64_t>(set.batch.back());
  if (are == Lanes::each_row && !envs) {
    const uint64_t known = this->envs();
    if (known != 0 && known != set.rows) return -1;  // Python words the error
    const int64_t first = write_step(rows, nullptr, rule, fields);
    envs_ = set.rows;
    return first;
  }
  if (envs && envs->shape(0) != set.rows) return -1;
  return write(rows, lanes, rule, fields, envs);
}

int64_t WriterHandle::append_records(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records,
                                     uint64_t lanes, Continue rule, std::optional<Record> blobs,
                                     nb::handle fields) {
  Rows rows;
  const uint64_t size = tape_.tape.record_size();
  rows.n = size > 0 ? records.shape(0) / size : 0;
  if (rows.n == 0 || rows.n * size != records.shape(0) || lanes == 0 || rows.n % lanes != 0)
    throw std::invalid_argument("records: expected a whole number of rows for each lane");
  rows.records = records.data();
  set_blobs(blobs, &rows);
  const Turn turn(busy_);
  return write(rows, lanes, rule, fields);
}

std::vector<Column> WriterHandle::columns_of(nb::list arrays, nb::list offsets,
                                             uint64_t rows) const {
  if (!tape_.tape.attached()) throw std::invalid_argument("columns: the tape has no schema yet");
  if (rows == 0 || nb::len(arrays) != nb::len(offsets))
    throw std::invalid_argument("columns: expected rows, and an offset for each column");
  std::vector<Column> columns;
  for (size_t i = 0; i < nb::len(arrays); ++i) {
    const auto a =
        nb::cast<nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig>>(arrays[i], false);
    const size_t bytes = a.shape(0) / rows;
    if (bytes * rows != a.shape(0)) throw std::invalid_argument("columns: a part of a row");
    check_place(nb::cast<size_t>(offsets[i]), bytes, tape_.tape.record_size(), "columns");
    columns.push_back(Column{a.data(), nb::cast<size_t>(offsets[i]), bytes, bytes});
  }
  return columns;
}

Rows WriterHandle::rows_with(const nb::list& blobs, uint64_t n, std::vector<Column>* columns,
                             PackedColumns* packed) const {
  return pack_rows(blob_columns_from(blobs, n, tape_.tape.record_size()), n, columns, packed);
}

int64_t WriterHandle::append_columns(nb::list arrays, nb::list offsets, uint64_t n, uint64_t lanes,
                                     Continue rule, std::optional<Seqs> envs, nb::list blobs,
                                     nb::handle fields) {
  if (lanes == 0 || n % lanes != 0)
    throw std::invalid_argument("columns: expected a whole number of rows for each lane");
  std::vector<Column> columns = columns_of(arrays, offsets, n);
  PackedColumns packed;
  const Rows rows = rows_with(blobs, n, &columns, &packed);
  const Turn turn(busy_);
  return write(rows, lanes, rule, fields, envs);
}

int64_t WriterHandle::append_whole(nb::list arrays, nb::list offsets, uint64_t n, uint64_t flags,
                                   int64_t traj_id, int64_t version, nb::list blobs,
                                   nb::handle fields) {
  std::vector<Column> columns = columns_of(arrays, offsets, n);
  PackedColumns packed;
  const Rows rows = rows_with(blobs, n, &columns, &packed);
  const Turn turn(busy_);
  return write_whole(rows, flags, traj_id, version, fields);
}

int64_t WriterHandle::extend_whole(const Plan& plan, nb::handle tree, uint64_t flags,
                                   int64_t traj_id, int64_t version, nb::handle fields) {
  const Turn turn(busy_);
  ColumnSet set;
  if (!plan.columns(tree.ptr(), 1, &set) || set.rows == 0) return -1;
  PackedColumns packed;
  const Rows rows = pack_rows(set.blobs, set.rows, &set.columns, &packed);
  return write_whole(rows, flags, traj_id, version, fields);
}

int64_t WriterHandle::write_whole(const Rows& rows, uint64_t flags, int64_t traj_id,
                                  int64_t version, nb::handle fields) {
  claim();
  const Given given = given_.take(fields, tape_.tape, 1, 1);
  const NoGil no_gil(bytes_of(rows) >= kKeepGil);
  writer_.start(rows);
  writer_.add_whole(0, rows.n, marks(rows), Told{flags, traj_id, version, given});
  return commit(rows);
}

void WriterHandle::append_part(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records,
                               uint64_t flags, int64_t traj_id, int64_t version,
                               std::optional<Record> blobs, nb::handle fields) {
  const uint64_t size = tape_.tape.record_size();
  Rows rows;
  rows.n = size > 0 ? records.shape(0) / size : 0;
  if (rows.n == 0 || rows.n * size != records.shape(0) ||
      (flags & ~(kBegins | kEnded | kRowIds | kStarts)) != 0)
    throw std::invalid_argument("append_part: expected whole rows and known flags");
  rows.records = records.data();
  set_blobs(blobs, &rows);
  const Turn turn(busy_);
  claim();
  const Given given = given_.take(fields, tape_.tape, 1, 1);
  const NoGil no_gil(bytes_of(rows) >= kKeepGil);
  const Marks m = marks(rows);
  with_lock(tape_.tape, tape_.lock_timeout_s, bytes_of(rows), [&] {
    writer_.start(rows);
    writer_.add_part(0, rows.n, m, Told{flags, traj_id, version, given});
    if (!stage_) writer_.commit();
    return 0;
  });
  if (stage_) {
    sender_ = Sender{};
    stage(rows);
  }
}

void WriterHandle::check_form(const Receiver& in) const {
  const SharedForm &theirs = in.shape().form, &own = tape_.tape.form();
  if (theirs &&
      (!own || theirs.row_bytes() != own.row_bytes() || theirs.slot_bytes() != own.slot_bytes() ||
       theirs.stack() != own.stack() || theirs.references() != own.references()))
    throw std::invalid_argument("frames with other slots than the tape has");
}

AcceptedRuns WriterHandle::accept(const Receiver& in, uint64_t producer, uint64_t most_rows,
                                  uint64_t next) {
  if (!in.fits(record_size(), true))
    throw std::invalid_argument("accept_runs: no whole frame of this tape's records");
  check_form(in);
  const Turn turn(busy_);
  claim();
  IntakeRows rows;
  const CheckedItems items{in.frame(), in.shape(),
                           parts_of(in.frame(), in.body(), record_size(), in.shape())};
  const MarksOf marks_of = [this](const Rows& r) { return marks(r); };
  const NoGil no_gil(in.frame().length >= kKeepGil);
  const AcceptedRuns out = with_lock(tape_.tape, tape_.lock_timeout_s, in.frame().length, [&] {
    const AcceptedRuns a = prepare_runs(tape_.tape, writer_, marks_of, items, producer, most_rows,
                                        next, &rows, &sender_);
    if (a.items > 0 && !stage_) writer_.commit(sender_);
    return a;
  });
  if (out.items > 0 && stage_) stage(rows.rows);
  return out;
}

nb::tuple WriterHandle::take_frames(Receiver& in, int socket, uint64_t producer, uint64_t next,
                                    uint64_t most_rows, uint64_t inserted, uint64_t most_open) {
  if (stage_) throw std::invalid_argument("take_frames: this writer's rows are stored elsewhere");
  check_form(in);
  const Turn turn(busy_);
  claim();
  TapeIntake intake(tape_.tape, writer_, [this](const Rows& r) { return marks(r); }, producer,
                    {most_rows, inserted, most_open, std::min(tape_.lock_timeout_s, kIntakeLock)});
  return receive(intake, in, socket, next, 0);
}

nb::list WriterHandle::open_trajectories() const {
  nb::list out;
  for (const Writer::Open& o : writer_.open_trajectories())
    out.append(nb::make_tuple(o.lane, o.id, o.by_id));
  return out;
}

void WriterHandle::orphan(nb::list open) {
  for (nb::handle h : open) {
    const auto t = nb::borrow<nb::tuple>(h);
    writer_.orphan(
        Writer::Open{nb::cast<uint64_t>(t[0]), nb::cast<int64_t>(t[1]), nb::cast<bool>(t[2])});
  }
}

bool WriterHandle::adopt(uint64_t env, uint64_t entry) {
  if (env >= kMostEnvs) throw std::invalid_argument("adopt: no such env");
  const Turn turn(busy_);
  claim();
  return with_lock(tape_.tape, tape_.lock_timeout_s, 0, [&] { return writer_.adopt(env, entry); });
}

void WriterHandle::take_up(const Seqs& entries) {
  const Turn turn(busy_);
  claim();
  with_lock(tape_.tape, tape_.lock_timeout_s, 0, [&] {
    for (size_t i = 0; i < entries.shape(0); ++i)
      writer_.take_up(static_cast<uint64_t>(entries.data()[i]), marks_.by_id());
    return 0;
  });
}

void bind_writer(nb::module_& m) {
#if defined(__linux__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
#endif
  m.attr("MOST_ENVS") = kMostEnvs;
  nb::enum_<Continue>(m, "Continue")
      .value("NO", Continue::no)
      .value("IF_OPEN", Continue::if_open)
      .value("TOLD", Continue::told);
  nb::enum_<WriterHandle::Lanes>(m, "Lanes")
      .value("ONE", WriterHandle::Lanes::one)
      .value("LEADING_DIMS", WriterHandle::Lanes::leading_dims)
      .value("EACH_ROW", WriterHandle::Lanes::each_row);
  nb::class_<WriterHandle>(m, "Writer")
      .def(nb::init<TapeHandle&, nb::dict, bool, bool, uint64_t>(), nb::arg("tape"),
           nb::arg("marks"), nb::arg("id_alone"), nb::arg("stage") = false, nb::arg("number") = 0,
           nb::keep_alive<1, 2>())
      .def("staged", &WriterHandle::staged)
      .def("staged_blobs", &WriterHandle::staged_blobs)
      .def("commit_staged", &WriterHandle::commit_staged)
      .def_prop_ro("id", &WriterHandle::id)
      .def_prop_ro("last_rows", &WriterHandle::last_rows)
      .def_prop_ro("last_kept", &WriterHandle::last_kept)
      .def_prop_rw("envs", &WriterHandle::envs, &WriterHandle::set_envs)
      .def("open_trajectories", &WriterHandle::open_trajectories)
      .def_prop_ro("open_bytes", &WriterHandle::open_bytes)
      .def("orphan", &WriterHandle::orphan)
      .def("adopt", &WriterHandle::adopt)
      .def("take_up", &WriterHandle::take_up, nb::arg("entries"))
      .def("miss_items", &WriterHandle::miss_items)
      .def("add", &WriterHandle::add, nb::arg("plan"), nb::arg("tree").none(),
           nb::arg("fields") = nb::none())
      .def("extend", &WriterHandle::extend, nb::arg("plan"), nb::arg("tree").none(),
           nb::arg("batch_ndim"), nb::arg("lanes_are"), nb::arg("rule"),
           nb::arg("envs").noconvert() = nb::none(), nb::arg("fields") = nb::none())
      .def("append_records", &WriterHandle::append_records, nb::arg("records"), nb::arg("lanes"),
           nb::arg("rule"), nb::arg("blobs").noconvert() = nb::none(),
           nb::arg("fields") = nb::none())
      .def("append_columns", &WriterHandle::append_columns, nb::arg("arrays"), nb::arg("offsets"),
           nb::arg("rows"), nb::arg("lanes"), nb::arg("rule"),
           nb::arg("envs").noconvert() = nb::none(), nb::arg("blobs") = nb::list(),
           nb::arg("fields") = nb::none())
      .def("append_whole", &WriterHandle::append_whole, nb::arg("arrays"), nb::arg("offsets"),
           nb::arg("rows"), nb::arg("flags"), nb::arg("traj_id"), nb::arg("version"),
           nb::arg("blobs") = nb::list(), nb::arg("fields") = nb::none())
      .def("extend_whole", &WriterHandle::extend_whole, nb::arg("plan"), nb::arg("tree").none(),
           nb::arg("flags"), nb::arg("traj_id"), nb::arg("version"), nb::arg("fields") = nb::none())
      .def("append_part", &WriterHandle::append_part, nb::arg("records"), nb::arg("flags"),
           nb::arg("traj_id"), nb::arg("version"), nb::arg("blobs").noconvert() = nb::none(),
           nb::arg("fields") = nb::none())
      .def("take_frames", &WriterHandle::take_frames, nb::arg("receiver"), nb::arg("socket"),
           nb::arg("producer"), nb::arg("next"), nb::arg("most_rows"), nb::arg("inserted"),
           nb::arg("most_open"));
  // A frame's items, with the writer of their producer: (seen, items added, rows added, gap).
  m.def(
      "accept_runs",
      [](WriterHandle& w, const Receiver& in, uint64_t producer, uint64_t most_rows,
         uint64_t next) {
        const AcceptedRuns a = w.accept(in, producer, most_rows, next);
        return nb::make_tuple(a.seen, a.items, a.rows, a.gap);
      },
      nb::arg("writer"), nb::arg("receiver"), nb::arg("producer"), nb::arg("most_rows"),
      nb::arg("next") = 0);
}

}  // namespace contig
