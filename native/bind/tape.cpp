// The tape and its writers, as Python sees them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <random>
#include <thread>

#include "../gather.h"
#include "../wait.h"
#include "handles.h"

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
      return itemsize == 4 ? Mark::f32 : itemsize == 8 ? Mark::f64 : Mark::none;
    default:
      return Mark::none;
  }
}

enum Role { r_id, r_done, r_terminated, r_truncated, r_init, r_version, r_reward };
constexpr const char* kRoles[] = {"id",   "done",    "terminated", "truncated",
                                  "init", "version", "reward"};

Mark* mark_of(Marks& m, int role) {
  Mark* const all[] = {&m.id,   &m.done,    &m.terminated, &m.truncated,
                       &m.init, &m.version, &m.reward};
  return all[role];
}
}  // namespace

WriterHandle::WriterHandle(TapeHandle& tape, nb::dict marks, bool id_alone)
    : tape_(tape),
      writer_(tape.tape, random_id()),
      id_alone_(id_alone),
      thread_(thread_number()),
      generation_(fork_generation.load()) {
  for (int role = 0; role < 7; ++role) {
    if (!marks.contains(kRoles[role])) continue;
    const auto t = nb::cast<nb::tuple>(marks[kRoles[role]]);
    MarkSpec spec;
    spec.kind = mark_kind(nb::cast<std::string>(t[0])[0], nb::cast<size_t>(t[1]));
    spec.offset = nb::cast<size_t>(t[2]);
    spec.count = nb::cast<size_t>(t[3]);
    specs_.emplace_back(role, spec);
  }
}

Marks WriterHandle::marks(const Rows& rows) const {
  Marks m;
  m.id_alone = id_alone_;
  for (const auto& item : specs_) {
    Mark& mark = *mark_of(m, item.first);
    mark.count = item.second.count;
    if (rows.records != nullptr) {
      mark.data = rows.records + item.second.offset;
      mark.stride = tape_.tape.record_size();
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

void WriterHandle::claim() {
  if (tape_.closed) throw std::runtime_error("this storage is closed");
  const uint64_t thread = thread_number(), generation = fork_generation.load();
  if (thread == thread_ && generation == generation_) return;
  thread_ = thread;
  generation_ = generation;
  writer_.restart(random_id());
}

int64_t WriterHandle::commit(const Rows& rows) {
  const uint64_t bytes = rows.n * tape_.tape.record_size();
  return with_lock(tape_.tape, tape_.lock_timeout_s, bytes,
                   [&] { return static_cast<int64_t>(writer_.commit()); });
}

int64_t WriterHandle::write(const Rows& rows, uint64_t lanes, int rule) {
  struct Turn {  // one call at a time: a writer belongs to one thread
    std::atomic<bool>& busy;
    explicit Turn(std::atomic<bool>& b) : busy(b) {
      if (busy.exchange(true))
        throw std::runtime_error(
            "this writer is being used by two threads at once; give each thread its own writer()");
    }
    ~Turn() { busy.store(false); }
  } turn(busy_);
  claim();
  writer_.prepare(rows, lanes, marks(rows), static_cast<Continue>(rule));
  return commit(rows);
}

int64_t WriterHandle::add(const Plan& plan, nb::handle tree) {
  scratch_.resize(plan.record_size());
  if (!plan.pack(tree.ptr(), scratch_.data())) return -1;
  Rows rows;
  rows.n = 1;
  rows.records = scratch_.data();
  return write(rows, 1, static_cast<int>(Continue::if_open));
}

int64_t WriterHandle::extend(const Plan& plan, nb::handle tree, size_t batch_ndim, int lanes_are,
                             int rule) {
  ColumnSet set;
  if (!plan.columns(tree.ptr(), batch_ndim, &set) || set.rows == 0) return -1;
  Rows rows;
  rows.n = set.rows;
  rows.columns = set.columns.data();
  rows.n_columns = set.columns.size();
  uint64_t lanes = 1;
  if (lanes_are == 1) lanes = set.rows / static_cast<uint64_t>(set.batch.back());
  if (lanes_are == 2) lanes = set.rows;
  return write(rows, lanes, rule);
}

int64_t WriterHandle::append_records(
    nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records, uint64_t lanes, int rule) {
  Rows rows;
  const uint64_t size = tape_.tape.record_size();
  rows.n = size > 0 ? records.shape(0) / size : 0;
  if (rows.n == 0 || rows.n * size != records.shape(0) || rows.n % lanes != 0)
    throw std::invalid_argument("records: expected a whole number of rows for each lane");
  rows.records = records.data();
  return write(rows, lanes, rule);
}

std::vector<Column> WriterHandle::columns_of(nb::list arrays, nb::list offsets,
                                             uint64_t rows) const {
  std::vector<Column> columns;
  for (size_t i = 0; i < nb::len(arrays); ++i) {
    const auto a = nb::cast<nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig>>(arrays[i]);
    const size_t bytes = a.shape(0) / rows;
    columns.push_back(Column{a.data(), nb::cast<size_t>(offsets[i]), bytes, bytes});
  }
  return columns;
}

int64_t WriterHandle::append_columns(nb::list arrays, nb::list offsets, uint64_t n, uint64_t lanes,
                                     int rule) {
  const std::vector<Column> columns = columns_of(arrays, offsets, n);
  Rows rows;
  rows.n = n;
  rows.columns = columns.data();
  rows.n_columns = columns.size();
  return write(rows, lanes, rule);
}

int64_t WriterHandle::append_whole(nb::list arrays, nb::list offsets, uint64_t n, uint64_t flags,
                                   int64_t traj_id, int64_t version) {
  const std::vector<Column> columns = columns_of(arrays, offsets, n);
  Rows rows;
  rows.n = n;
  rows.columns = columns.data();
  rows.n_columns = columns.size();
  claim();
  writer_.prepare_whole(rows, marks(rows), Whole{flags, traj_id, version});
  return commit(rows);
}

namespace {

nb::tuple snapshot(const TapeHandle& t) {
  const Snapshot s = t.tape.snapshot();
  return nb::make_tuple(s.head, s.tail, s.index_head, s.index_tail);
}

// The live index as [n, 16] words, consistent; and the head they are valid for.
nb::tuple read_index(TapeHandle& t) {
  std::vector<int64_t> words;
  const auto read = [&]() -> uint64_t {
    words.clear();
    const Snapshot s = t.tape.snapshot();
    for (uint64_t n = s.index_tail; n < s.index_head; ++n) {
      uint64_t w[16];
      switch (t.tape.read_entry_words(n, s.head, w)) {
        case Tape::Read::gone:
          continue;
        case Tape::Read::unsettled:
          return kNone;
        case Tape::Read::ok:
          w[15] = n;  // a spare word: the entry's number
          words.insert(words.end(), w, w + 16);
      }
    }
    return s.head;
  };
  uint64_t head = read();
  if (head == kNone) head = with_lock(t.tape, t.lock_timeout_s, 0, read);
  const uint64_t tail = t.tape.header().tail.load();
  return nb::make_tuple(to_array(words), head, tail);
}

// 0 if every row is good, else the tail below which rows were lost.
uint64_t verdict(const int64_t* seqs, size_t n, uint64_t tail) {
  for (size_t i = 0; i < n; ++i)
    if (static_cast<uint64_t>(seqs[i]) < tail) return tail;
  return 0;
}

// Gathers rows into the columns of a batch: where stored leaves go among all of its leaves, and
// which column takes the seqs.
class Gatherer {
 public:
  // `sizes`: bytes per row of every column; `stored`: [column, offset, bytes] of each stored leaf.
  Gatherer(TapeHandle& t, Seqs sizes, Seqs stored, int index)
      : tape_(t),
        sizes_(sizes.data(), sizes.data() + sizes.shape(0)),
        stored_(stored.data(), stored.data() + stored.shape(0)),
        index_(index),
        starts_(sizes.shape(0)) {
    std::vector<bool> is_stored(sizes_.size(), false);
    for (size_t i = 0; i < stored_.size(); i += 3)
      is_stored[static_cast<size_t>(stored_[i])] = true;
    for (size_t c = 0; c < sizes_.size(); ++c)
      if (!is_stored[c] && static_cast<int>(c) != index_) extra_.push_back(c);
  }

  // (block, lost): lost is 0, or the tail below which rows were lost while they were copied.
  nb::tuple gather(Seqs seqs) {
    const size_t n = seqs.shape(0);
    const int64_t* p = seqs.data();
    size_t at = 0;
    for (size_t c = 0; c < sizes_.size(); ++c) {
      starts_[c] = at;
      at += (static_cast<size_t>(sizes_[c]) * n + kColumnAlign - 1) / kColumnAlign * kColumnAlign;
    }
    auto* block = new Block(at);
    nb::object owner = nb::cast(block, nb::rv_policy::take_ownership);
    for (const size_t c : extra_)  // leaves that are not stored start as zeros
      std::memset(block->data + starts_[c], 0, static_cast<size_t>(sizes_[c]) * n);
    std::vector<Target> targets(stored_.size() / 3);
    for (size_t i = 0; i < targets.size(); ++i)
      targets[i] = Target{block->data + starts_[static_cast<size_t>(stored_[3 * i])],
                          static_cast<size_t>(stored_[3 * i + 1]),
                          static_cast<size_t>(stored_[3 * i + 2])};
    if (index_ >= 0 && n > 0)
      std::memcpy(block->data + starts_[static_cast<size_t>(index_)], p, n * sizeof(int64_t));
    const Tape& tape = tape_.tape;
    const auto copy = [&] {
      return verdict(p, n, gather_columns(tape, p, n, targets.data(), targets.size()));
    };
    uint64_t lost;
    if (n * tape.record_size() < kKeepGil) {
      lost = copy();
    } else {
      nb::gil_scoped_release no_gil;
      lost = copy();
    }
    return nb::make_tuple(owner, lost);
  }

 private:
  TapeHandle& tape_;
  std::vector<int64_t> sizes_, stored_;
  int index_;
  std::vector<size_t> starts_, extra_;
};

uint64_t gather_packed(const TapeHandle& t, Seqs seqs, Bytes out) {
  if (out.shape(0) < seqs.shape(0) * t.tape.record_size())
    throw std::invalid_argument("gather_records: the output is too small");
  nb::gil_scoped_release no_gil;
  const uint64_t tail = gather_records(t.tape, seqs.data(), seqs.shape(0), out.data());
  return verdict(seqs.data(), seqs.shape(0), tail);
}

void restore(TapeHandle& t, Bytes records, uint64_t tail, uint64_t head, State entries,
             uint64_t index_tail, uint64_t index_head, uint64_t trajectories) {
  if (records.shape(0) != (head - tail) * t.tape.record_size() ||
      entries.shape(0) != (index_head - index_tail) * 16)
    throw std::invalid_argument("restore: the checkpoint's parts do not fit together");
  with_lock(t.tape, t.lock_timeout_s, kKeepGil, [&] {
    t.tape.restore(records.data(), tail, head, entries.data(), index_tail, index_head,
                   trajectories);
    return 0;
  });
}

bool wait(TapeHandle& t, uint32_t seen, double timeout_s) {
  nb::gil_scoped_release no_gil;
  return wait_change(t.tape.header().wake_word, t.tape.header().waiters, seen, timeout_s);
}

}  // namespace

void bind_tape(nb::module_& m) {
#if defined(__linux__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
#endif
  static nb::exception<Busy> busy(m, "TapeBusy", PyExc_TimeoutError);
  static nb::exception<NoSpace> no_space(m, "StorageFull", PyExc_OSError);
  m.attr("ROBUST_LOCKS") = bool(CONTIG_ROBUST);
  m.attr("ENTRY_WORDS") = 16;
  m.def("control_bytes", &Tape::control_bytes);
  m.def("format_control", [](Bytes control, uint64_t capacity) {
    if (control.shape(0) < Tape::control_bytes(capacity))
      throw std::invalid_argument("format_control: the buffer is too small");
    Tape::format(control.data(), capacity);
  });

  nb::class_<TapeHandle>(m, "Tape")
      .def(nb::init<Bytes, int>(), nb::arg("control"), nb::arg("fd"))
      .def_rw("lock_timeout_s", &TapeHandle::lock_timeout_s)
      .def("close", [](TapeHandle& t) { t.closed = true; })
      .def("publish",
           [](TapeHandle& t, nb::bytes schema, uint64_t record_size) {
             return with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               return t.tape.publish(schema.c_str(), schema.size(), record_size);
             });
           })
      .def_prop_ro("ready", [](const TapeHandle& t) { return t.tape.ready(); })
      .def_prop_ro("attached", [](const TapeHandle& t) { return t.tape.attached(); })
      .def_prop_ro("schema_range",
                   [](const TapeHandle& t) {
                     const Header& h = t.tape.header();
                     return nb::make_tuple(h.schema_offset, h.schema_bytes);
                   })
      .def_prop_ro("data_range",
                   [](const TapeHandle& t) {
                     return nb::make_tuple(t.tape.header().data_offset, t.tape.data_bytes());
                   })
      .def("attach_data",
           [](TapeHandle& t, Bytes data) {
             if (data.shape(0) < t.tape.data_bytes())
               throw std::invalid_argument("attach_data: the mapping is too small");
             t.data = data;
             t.tape.attach_data(t.data.data());
           })
      .def_prop_ro("capacity", [](const TapeHandle& t) { return t.tape.header().capacity; })
      .def_prop_ro("trajectories",
                   [](const TapeHandle& t) { return t.tape.header().trajectories.load(); })
      .def_prop_ro("max_version",
                   [](const TapeHandle& t) {
                     return static_cast<int64_t>(t.tape.header().max_version.load());
                   })
      .def_prop_ro("appends", [](const TapeHandle& t) { return t.tape.header().appends.load(); })
      .def_prop_rw(
          "inserted", [](const TapeHandle& t) { return t.tape.header().inserted.load(); },
          [](TapeHandle& t, uint64_t n) { t.tape.header().inserted.store(n); })
      .def_prop_rw(
          "sampled", [](const TapeHandle& t) { return t.tape.header().sampled.load(); },
          [](TapeHandle& t, uint64_t n) { t.tape.header().sampled.store(n); })
      .def("add_sampled",
           [](TapeHandle& t, uint64_t n) {
             Header& h = t.tape.header();
             h.sampled.fetch_add(n);
             if (h.waiters.load() > 0) wake(h.wake_word, h.waiters);
           })
      .def_prop_ro("wake_word", [](const TapeHandle& t) { return t.tape.header().wake_word.load(); })
      .def("wait", &wait, nb::arg("seen"), nb::arg("timeout_s"))
      .def("notify",
           [](TapeHandle& t) { wake(t.tape.header().wake_word, t.tape.header().waiters); })
      .def("snapshot", &snapshot)
      .def("read_index", &read_index)
      .def("gather_records", &gather_packed, nb::arg("seqs"), nb::arg("out"))
      .def("clear",
           [](TapeHandle& t) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.clear();
               return 0;
             });
           })
      .def("restore", &restore)
      .def("acquire",
           [](TapeHandle& t) {
             nb::gil_scoped_release no_gil;
             Lock& lock = t.tape.header().lock;
             if (!lock_until(lock, t.lock_timeout_s))
               throw Busy(lock.holder.load(), t.lock_timeout_s);
             t.tape.repair();
           })
      .def("release", [](TapeHandle& t) { lock_release(t.tape.header().lock); });

  nb::class_<Gatherer>(m, "Gatherer")
      .def(nb::init<TapeHandle&, Seqs, Seqs, int>(), nb::arg("tape"), nb::arg("sizes"),
           nb::arg("stored"), nb::arg("index"), nb::keep_alive<1, 2>())
      .def("gather", &Gatherer::gather);

  nb::class_<WriterHandle>(m, "Writer")
      .def(nb::init<TapeHandle&, nb::dict, bool>(), nb::arg("tape"), nb::arg("marks"),
           nb::arg("id_alone"), nb::keep_alive<1, 2>())
      .def_prop_ro("id", &WriterHandle::id)
      .def_prop_ro("last_rows", &WriterHandle::last_rows)
      .def("add", &WriterHandle::add)
      .def("extend", &WriterHandle::extend)
      .def("append_records", &WriterHandle::append_records)
      .def("append_columns", &WriterHandle::append_columns)
      .def("append_whole", &WriterHandle::append_whole);
}

}  // namespace contig
