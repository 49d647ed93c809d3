// Writers, as Python sees them: trees or columns in, one append out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <random>

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

Mark::Kind mark_kind(char kind, size_t itemsize) {
  const int log = itemsize == 1 ? 0 : itemsize == 2 ? 1 : itemsize == 4 ? 2 : 3;
  static constexpr Mark::Kind ints[] = {Mark::i8, Mark::i16, Mark::i32, Mark::i64};
  static constexpr Mark::Kind uints[] = {Mark::u8, Mark::u16, Mark::u32, Mark::u64};
  switch (kind) {
    case 'b':
      return Mark::b1;
    case 'i':
      return ints[log];
    case 'u':
      return uints[log];
    case 'f':
      return itemsize == 2 ? Mark::f16 : itemsize == 4 ? Mark::f32 : Mark::f64;
    case 'V':  // what numpy has no kind for
      return Mark::bf16;
    default:
      return Mark::none;
  }
}

enum Role { r_id, r_done, r_terminated, r_truncated, r_init, r_version, r_reward };
constexpr const char* kRoles[] = {"id",   "done",    "terminated", "truncated",
                                  "init", "version", "reward"};

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

Mark* mark_of(Marks& m, int role) {
  Mark* const all[] = {&m.id, &m.done, &m.terminated, &m.truncated, &m.init, &m.version, &m.reward};
  return all[role];
}

// Lanes have memory up to the highest one.
constexpr int64_t kMostEnvs = 1 << 20;

}  // namespace

void check_envs(const Seqs& envs, uint64_t rows) {
  if (envs.shape(0) != rows) throw std::invalid_argument("envs: expected one for each row");
  for (uint64_t i = 0; i < rows; ++i)
    if (envs.data()[i] < 0 || envs.data()[i] >= kMostEnvs)
      throw std::invalid_argument("envs: expected numbers from 0 to MOST_ENVS - 1");
}

MarkSpecs::MarkSpecs(nb::dict marks, bool id_alone) : id_alone_(id_alone) {
  for (int role = 0; role < 7; ++role) {
    if (!marks.contains(kRoles[role])) continue;
    const auto t = nb::cast<nb::tuple>(marks[kRoles[role]]);
    const auto itemsize = nb::cast<size_t>(t[1]);
    MarkSpec spec;
    spec.kind = mark_kind(nb::cast<std::string>(t[0])[0], itemsize);
    spec.offset = nb::cast<size_t>(t[2]);
    spec.count = nb::cast<size_t>(t[3]);
    spec.bytes = spec.count * itemsize;
    specs_.emplace_back(role, spec);
  }
}

void MarkSpecs::check(uint64_t record_size) const {
  for (const auto& item : specs_)
    check_place(item.second.offset, item.second.bytes, record_size, "Writer");
}

Marks MarkSpecs::of(const Rows& rows, size_t record_size) const {
  Marks m;
  m.id_alone = id_alone_;
  for (const auto& item : specs_) {
    Mark& mark = *mark_of(m, item.first);
    mark.count = item.second.count;
    if (rows.records != nullptr) {
      mark.data = rows.records + item.second.offset;
      mark.stride = record_size;
    } else {
      for (size_t c = 0; c < rows.n_columns; ++c)
        if (rows.columns[c].offset == item.second.offset && rows.columns[c].bytes > 0) {
          mark.data = rows.columns[c].data;
          mark.stride = rows.columns[c].stride;
        }
      if (mark.data == nullptr) continue;
    }
    mark.kind = item.second.kind;
  }
  return m;
}

WriterHandle::WriterHandle(TapeHandle& tape, nb::dict marks, bool id_alone, bool stage)
    : tape_(tape),
      writer_(tape.tape, random_id()),
      marks_(marks, id_alone),
      stage_(stage),
      thread_(thread_number()),
      generation_(fork_generation.load()) {
  if (tape.tape.attached()) marks_.check(tape.tape.record_size());
}

bool WriterHandle::mine() const {
  return thread_number() == thread_ && fork_generation.load() == generation_;
}

void WriterHandle::claim() {
  if (tape_.closed) throw std::runtime_error("this storage is closed");
  if (mine()) return;
  thread_ = thread_number();
  generation_ = fork_generation.load();
  envs_ = 0;
  writer_.restart(random_id());
}

void WriterHandle::stage(const Rows& rows) {
  const Tape& tape = tape_.tape;
  const uint64_t size = tape.record_size(), stride = tape.stride();
  const uint64_t capacity = tape.header().capacity;
  const uint64_t skip = rows.n > capacity ? rows.n - capacity : 0;  // as `append` does
  auto* block = new Block((rows.n - skip) * stride);
  staged_ = nb::cast(block, nb::rv_policy::take_ownership);
  encode_rows(rows, skip, size, stride, tape.sums(), tape.header().head.load(), block->data);
}

nb::object WriterHandle::staged() {
  nb::object out = staged_;
  staged_ = nb::none();
  return out;
}

int64_t WriterHandle::commit_staged() {
  const Turn turn(busy_);
  return with_lock(tape_.tape, tape_.lock_timeout_s, 0,
                   [&] { return static_cast<int64_t>(writer_.commit(sender_, true)); });
}

int64_t WriterHandle::commit(const Rows& rows) {
  if (stage_) {
    sender_ = Sender{};
    stage(rows);
    return static_cast<int64_t>(tape_.tape.header().head.load());
  }
  const uint64_t bytes = rows.n * tape_.tape.record_size();
  return with_lock(tape_.tape, tape_.lock_timeout_s, bytes,
                   [&] { return static_cast<int64_t>(writer_.commit()); });
}

int64_t WriterHandle::write(const Rows& rows, uint64_t lanes, Continue rule,
                            const std::optional<Seqs>& envs) {
  if (envs) {
    check_envs(*envs, rows.n);
    return write_step(rows, envs->data(), rule);
  }
  claim();
  writer_.start(rows);
  writer_.add_lanes(0, rows.n, lanes, marks(rows), rule);
  return commit(rows);
}

int64_t WriterHandle::write_step(const Rows& rows, const int64_t* envs, Continue rule) {
  claim();
  writer_.start(rows);
  writer_.add_rows(0, rows.n, envs, marks(rows), rule);
  return commit(rows);
}

int64_t WriterHandle::add(const Plan& plan, nb::handle tree) {
  const Turn turn(busy_);
  scratch_.resize(plan.record_size());
  if (!plan.pack(tree.ptr(), scratch_.data())) return -1;
  Rows rows;
  rows.n = 1;
  rows.records = scratch_.data();
  return write(rows, 1, Continue::if_open);
}

int64_t WriterHandle::extend(const Plan& plan, nb::handle tree, size_t batch_ndim, Lanes are,
                             Continue rule, std::optional<Seqs> envs) {
  const Turn turn(busy_);
  ColumnSet set;
  if (!plan.columns(tree.ptr(), batch_ndim, &set) || set.rows == 0) return -1;
  const Rows rows = rows_of(set.columns, set.rows);
  uint64_t lanes = 1;
  if (are == Lanes::leading_dims) lanes = set.rows / static_cast<uint64_t>(set.batch.back());
  if (are == Lanes::each_row && !envs) {
    const uint64_t known = this->envs();
    if (known != 0 && known != set.rows) return -1;  // Python words the error
    const int64_t first = write_step(rows, nullptr, rule);
    envs_ = set.rows;
    return first;
  }
  if (envs && envs->shape(0) != set.rows) return -1;
  return write(rows, lanes, rule, envs);
}

int64_t WriterHandle::append_records(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records,
                                     uint64_t lanes, Continue rule) {
  Rows rows;
  const uint64_t size = tape_.tape.record_size();
  rows.n = size > 0 ? records.shape(0) / size : 0;
  if (rows.n == 0 || rows.n * size != records.shape(0) || lanes == 0 || rows.n % lanes != 0)
    throw std::invalid_argument("records: expected a whole number of rows for each lane");
  rows.records = records.data();
  const Turn turn(busy_);
  return write(rows, lanes, rule);
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

int64_t WriterHandle::append_columns(nb::list arrays, nb::list offsets, uint64_t n, uint64_t lanes,
                                     Continue rule, std::optional<Seqs> envs) {
  if (lanes == 0 || n % lanes != 0)
    throw std::invalid_argument("columns: expected a whole number of rows for each lane");
  const std::vector<Column> columns = columns_of(arrays, offsets, n);
  const Rows rows = rows_of(columns, n);
  const Turn turn(busy_);
  return write(rows, lanes, rule, envs);
}

int64_t WriterHandle::append_whole(nb::list arrays, nb::list offsets, uint64_t n, uint64_t flags,
                                   int64_t traj_id, int64_t version) {
  const std::vector<Column> columns = columns_of(arrays, offsets, n);
  const Rows rows = rows_of(columns, n);
  const Turn turn(busy_);
  claim();
  writer_.start(rows);
  writer_.add_whole(0, n, marks(rows), Told{flags, traj_id, version});
  return commit(rows);
}

void WriterHandle::append_part(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records,
                               uint64_t flags, int64_t traj_id, int64_t version) {
  const uint64_t size = tape_.tape.record_size();
  Rows rows;
  rows.n = size > 0 ? records.shape(0) / size : 0;
  if (rows.n == 0 || rows.n * size != records.shape(0) ||
      (flags & ~(kBegins | kTerminated | kTruncated)) != 0)
    throw std::invalid_argument("append_part: expected whole rows and known flags");
  rows.records = records.data();
  const Turn turn(busy_);
  claim();
  const Marks m = marks(rows);
  with_lock(tape_.tape, tape_.lock_timeout_s, records.shape(0), [&] {
    writer_.start(rows);
    writer_.add_part(0, rows.n, m, Told{flags, traj_id, version}, kNone);
    if (!stage_) writer_.commit();
    return 0;
  });
  if (stage_) {
    sender_ = Sender{};
    stage(rows);
  }
}

AcceptedRuns WriterHandle::accept(const Receiver& in, uint64_t producer, uint64_t most_rows,
                                  uint64_t next) {
  if (!in.fits(record_size(), true))
    throw std::invalid_argument("accept_runs: no whole frame of this tape's records");
  const Turn turn(busy_);
  claim();
  Rows rows;
  const MarksOf marks_of = [this](const Rows& r) { return marks(r); };
  const AcceptedRuns out = with_lock(tape_.tape, tape_.lock_timeout_s, in.frame().length, [&] {
    const AcceptedRuns a = prepare_runs(tape_.tape, writer_, marks_of, in.frame(), in.body(),
                                        producer, most_rows, next, &rows, &sender_);
    if (a.items > 0 && !stage_) writer_.commit(sender_);
    return a;
  });
  if (out.items > 0 && stage_) stage(rows);
  return out;
}

nb::tuple WriterHandle::take_frames(Receiver& in, int socket, uint64_t producer, uint64_t next,
                                    uint64_t most_rows, uint64_t inserted, uint64_t most_open) {
  if (stage_) throw std::invalid_argument("take_frames: this writer's rows are stored elsewhere");
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
      .def(nb::init<TapeHandle&, nb::dict, bool, bool>(), nb::arg("tape"), nb::arg("marks"),
           nb::arg("id_alone"), nb::arg("stage") = false, nb::keep_alive<1, 2>())
      .def("staged", &WriterHandle::staged)
      .def("commit_staged", &WriterHandle::commit_staged)
      .def_prop_ro("id", &WriterHandle::id)
      .def_prop_ro("last_rows", &WriterHandle::last_rows)
      .def_prop_rw("envs", &WriterHandle::envs, &WriterHandle::set_envs)
      .def("open_trajectories", &WriterHandle::open_trajectories)
      .def_prop_ro("open_bytes", &WriterHandle::open_bytes)
      .def("orphan", &WriterHandle::orphan)
      .def("add", &WriterHandle::add, nb::arg("plan"), nb::arg("tree").none())
      .def("extend", &WriterHandle::extend, nb::arg("plan"), nb::arg("tree").none(),
           nb::arg("batch_ndim"), nb::arg("lanes_are"), nb::arg("rule"),
           nb::arg("envs").noconvert() = nb::none())
      .def("append_records", &WriterHandle::append_records)
      .def("append_columns", &WriterHandle::append_columns, nb::arg("arrays"), nb::arg("offsets"),
           nb::arg("rows"), nb::arg("lanes"), nb::arg("rule"),
           nb::arg("envs").noconvert() = nb::none())
      .def("append_whole", &WriterHandle::append_whole)
      .def("append_part", &WriterHandle::append_part)
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
