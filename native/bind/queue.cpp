// The batch queue, as Python sees it.
#include "native/queue/queue.h"

#include <nanobind/stl/string.h>

#include <cstring>

#include "handles.h"
#include "native/sys/process.h"
#include "native/sys/wait.h"
#include "receive.h"

namespace contig {

namespace {

struct QueueHandle {
  explicit QueueHandle(Bytes memory) : memory(memory), queue(memory.data(), memory.shape(0)) {}
  Held<Bytes> memory;
  Queue queue;
  double lock_timeout_s = 10;

  template <class F>
  auto locked(uint64_t bytes, F f) {
    Lock& lock = queue.header().lock;
    const auto run = [&] {
      struct Release {
        Lock& lock;
        ~Release() { lock_release(lock); }
      } release{lock};
      queue.repair();
      return f();
    };
    if (bytes < kKeepGil && lock_try(lock)) return run();
    NoGil no_gil;
    if (!lock_until(lock, lock_timeout_s)) throw Busy(lock_holder(lock), lock_timeout_s);
    return run();
  }
};

// A block of the queue while somebody looks at it: read-only bytes, given back with the last look.
struct PinnedBlock {
  PinnedBlock(nb::object owner, Queue& queue, uint64_t slot)
      : owner(std::move(owner)), queue(queue), slot(slot), holder(process_id()) {}
  ~PinnedBlock() {
    if (holder == process_id()) queue.release(slot);  // a forked child has only a copy of the pin
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  nb::object owner;
  Queue& queue;
  uint64_t slot, holder;
};

int pinned_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* block = nb::inst_ptr<PinnedBlock>(self);
  return PyBuffer_FillInfo(view, self, block->queue.block(block->slot),
                           static_cast<Py_ssize_t>(block->queue.spec().block_bytes), 1, flags);
}

PyType_Slot pinned_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(pinned_buffer)},
                              {0, nullptr}};

Queue::Spec queue_spec(uint64_t record_size, uint64_t batch_size, uint64_t num_slots,
                       uint64_t block_bytes, Seqs columns, uint64_t schema_bytes) {
  if (columns.shape(0) % 3 != 0) throw std::invalid_argument("queue: three values per column");
  Queue::Spec spec{record_size, batch_size, num_slots, block_bytes, schema_bytes, {}};
  for (size_t i = 0; i < columns.shape(0); i += 3) {
    const auto offset = static_cast<uint64_t>(columns.data()[i]);
    const auto bytes = static_cast<uint64_t>(columns.data()[i + 1]);
    const auto start = static_cast<uint64_t>(columns.data()[i + 2]);
    spec.columns.push_back(QueueColumn{offset, bytes, start});
  }
  return spec;
}

// Ids that the table of producers uses for itself; 0 sends without one.
void check_producer(uint64_t producer, bool none) {
  if (producer == ~uint64_t{0} || (!none && producer == Queue::kNoProducer))
    throw std::invalid_argument("producer: a number of 1 to 2^64 - 2");
}

nb::tuple accepted(const Queue::Accepted& a) {
  return nb::make_tuple(a.seen, a.added, a.gap, a.full);
}

// The frame at a connection's front, which must be checked ITEMS of this queue's records.
// Of a producer that is not known, items below `next` are in.
nb::tuple accept_frame(QueueHandle& q, Receiver& r, uint64_t producer, uint64_t next) {
  const Frame& f = r.frame();
  check_producer(producer, false);
  if (!r.fits(q.queue.spec().record_size, false))
    throw std::invalid_argument("accept_frame: no whole frame of this queue's records");
  return accepted(q.locked(
      f.length, [&] { return q.queue.accept(producer, f.number, r.body(), f.rows, next); }));
}

// As many frames as can be taken in natively: see `receive`.
nb::tuple take_frames(QueueHandle& q, Receiver& r, int socket, uint64_t producer, uint64_t next,
                      double patience_s) {
  check_producer(producer, false);
  QueueIntake intake(q.queue, producer, std::min(q.lock_timeout_s, kIntakeLock));
  return receive(intake, r, socket, next, patience_s);
}

nb::tuple accept_records(QueueHandle& q, Record records, uint64_t producer, uint64_t first) {
  const uint64_t size = q.queue.spec().record_size, n = records.shape(0) / size;
  check_producer(producer, true);
  if (n == 0 || n * size != records.shape(0))
    throw std::invalid_argument("records: expected a whole number of records");
  return accepted(q.locked(records.shape(0),
                           [&] { return q.queue.accept(producer, first, records.data(), n); }));
}

// 1: in the queue; 2: in it after a wait of up to `patience_s`; 0: full; -1: the plan does not
// understand the tree.
int submit(QueueHandle& q, const Plan& plan, nb::handle tree, double patience_s) {
  const uint64_t size = plan.record_size();
  if (size != q.queue.spec().record_size)
    throw std::invalid_argument("submit: a plan for other records");
  thread_local std::vector<uint8_t> spare;
  std::vector<uint8_t> record = std::move(spare);  // not to be shared with whom packing may call
  record.resize(size);
  const auto accept = [&] {
    const auto append = [&] { return q.queue.accept(Queue::kNoProducer, 0, record.data(), 1); };
    return q.locked(size, append).full ? 0 : 1;
  };
  QueueHeader& h = q.queue.header();
  const uint32_t space = h.space_word.load();
  int outcome = plan.pack(tree.ptr(), record.data()) ? accept() : -1;
  if (outcome == 0 && patience_s > 0 && h.closed.load() == 0) {
    {
      NoGil no_gil;
      wait_change(h.space_word, h.space_waiters, space, patience_s);
    }
    outcome = 2 * accept();
  }
  spare = std::move(record);
  return outcome;
}

// (block, rows, whether it is a copy), or None. A copy where a pin would leave no slot to fill.
nb::object take(nb::handle self, bool copy, bool partial) {
  auto& q = *nb::inst_ptr<QueueHandle>(self);
  Queue::Taken t{};
  if (!q.locked(0, [&] { return q.queue.take(partial, process_id(), &t); })) return nb::none();
  auto* pinned = new PinnedBlock(nb::borrow(self), q.queue, t.slot);
  nb::object block = nb::cast(pinned, nb::rv_policy::take_ownership);
  const bool fresh = t.last_free && !copy;
  if (fresh || copy) {
    const uint64_t bytes = q.queue.spec().block_bytes;
    auto* own = new Block(bytes);
    nb::object out = nb::cast(own, nb::rv_policy::take_ownership);
    {
      NoGil no_gil;
      std::memcpy(own->data, q.queue.block(t.slot), bytes);
    }
    if (fresh) q.queue.header().fresh.fetch_add(1);
    block = out;
  }
  return nb::make_tuple(block, t.rows, fresh);
}

// Count, least, largest, mean and three percentiles.
nb::tuple histogram(const Histogram& h) {
  const uint64_t count = h.count.load();
  if (count == 0) return nb::make_tuple(0, 0, 0, 0.0, 0.0, 0.0, 0.0);
  const double mean = static_cast<double>(h.sum.load()) / static_cast<double>(count);
  return nb::make_tuple(count, h.least.load(), h.largest.load(), mean, h.percentile(0.5),
                        h.percentile(0.9), h.percentile(0.99));
}

Histogram& histogram_of(const QueueHandle& q, const std::string& name) {
  QueueHeader& h = q.queue.header();
  if (name == "drain_round") return h.drain_round;
  if (name == "memcpy") return h.memcpy_ns;
  if (name == "queue_dwell") return h.queue_dwell;
  throw std::invalid_argument("no histogram of this name");
}

}  // namespace

void bind_queue(nb::module_& m) {
  nb::class_<PinnedBlock>(m, "PinnedBlock", nb::type_slots(pinned_slots));
  nb::class_<QueueHandle>(m, "Queue")
      .def(nb::init<Bytes>(), nb::arg("memory").noconvert())
      .def_static("bytes_for",
                  [](uint64_t record_size, uint64_t batch_size, uint64_t num_slots,
                     uint64_t block_bytes, Seqs columns, uint64_t schema_bytes) {
                    return Queue::bytes_for(queue_spec(record_size, batch_size, num_slots,
                                                       block_bytes, columns, schema_bytes));
                  })
      .def_static(
          "format",
          [](Bytes memory, uint64_t record_size, uint64_t batch_size, uint64_t num_slots,
             uint64_t block_bytes, Seqs columns, nb::bytes schema) {
            const Queue::Spec spec =
                queue_spec(record_size, batch_size, num_slots, block_bytes, columns, schema.size());
            if (memory.shape(0) < Queue::bytes_for(spec))
              throw std::invalid_argument("queue: the memory is too small");
            check_aligned(memory.data());
            Queue::format(memory.data(), spec, schema.c_str());
          },
          nb::arg("memory").noconvert(), nb::arg("record_size"), nb::arg("batch_size"),
          nb::arg("num_slots"), nb::arg("block_bytes"), nb::arg("columns"), nb::arg("schema"))
      .def_rw("lock_timeout_s", &QueueHandle::lock_timeout_s)
      .def("accept_frame", &accept_frame, nb::arg("receiver"), nb::arg("producer"),
           nb::arg("next") = 0)
      .def("take_frames", &take_frames, nb::arg("receiver"), nb::arg("socket"), nb::arg("producer"),
           nb::arg("next"), nb::arg("patience_s"))
      .def("accept_records", &accept_records, nb::arg("records").noconvert(), nb::arg("producer"),
           nb::arg("first"))
      .def("submit", &submit, nb::arg("plan"), nb::arg("tree").none(), nb::arg("patience_s") = 0.0)
      .def("seen",
           [](QueueHandle& q, uint64_t producer, uint64_t next) {
             check_producer(producer, false);
             return q.locked(0, [&] { return q.queue.seen(producer, next); });
           })
      .def("skip",
           [](QueueHandle& q, uint64_t producer, uint64_t next) {
             check_producer(producer, false);
             q.locked(0, [&] {
               q.queue.skip(producer, next);
               return 0;
             });
           })
      .def("leave",  // a producer's connection is gone
           [](QueueHandle& q, uint64_t producer) {
             check_producer(producer, false);
             q.locked(0, [&] {
               q.queue.leave(producer);
               return 0;
             });
           })
      .def("leave_all",
           [](QueueHandle& q) {
             q.locked(0, [&] {
               q.queue.leave_all();
               return 0;
             });
           })
      .def(
          "take",
          [](nb::handle self, bool copy, bool partial) { return take(self, copy, partial); },
          nb::arg("copy"), nb::arg("partial"))
      .def("close",
           [](QueueHandle& q) {
             q.queue.header().closed.store(1);
             wake(q.queue.header().data_word, q.queue.header().data_waiters);
             wake(q.queue.header().space_word, q.queue.header().space_waiters);
           })
      .def_prop_ro("closed", [](const QueueHandle& q) { return q.queue.header().closed != 0; })
      .def_prop_ro("data_word",
                   [](const QueueHandle& q) { return q.queue.header().data_word.load(); })
      .def_prop_ro("space_word",
                   [](const QueueHandle& q) { return q.queue.header().space_word.load(); })
      .def("wait_data",
           [](QueueHandle& q, uint32_t seen, double timeout_s) {
             NoGil no_gil;
             QueueHeader& h = q.queue.header();
             return wait_change(h.data_word, h.data_waiters, seen, timeout_s);
           })
      .def("wait_space",
           [](QueueHandle& q, uint32_t seen, double timeout_s) {
             NoGil no_gil;
             QueueHeader& h = q.queue.header();
             return wait_change(h.space_word, h.space_waiters, seen, timeout_s);
           })
      .def_prop_ro("schema",
                   [](const QueueHandle& q) {
                     return nb::bytes(q.queue.schema(), q.queue.spec().schema_bytes);
                   })
      .def_prop_ro("shape",
                   [](const QueueHandle& q) {
                     const Queue::Spec& s = q.queue.spec();
                     return nb::make_tuple(s.record_size, s.batch_size, s.num_slots);
                   })
      .def("counters",
           [](const QueueHandle& q) {
             const QueueHeader& h = q.queue.header();
             nb::dict out;
             out["head"] = h.head.load();
             out["items"] = q.queue.items();
             out["taken"] = h.taken.load();
             out["blocked"] = h.blocked.load();
             out["fresh"] = h.fresh.load();
             out["duplicates"] = h.duplicates.load();
             out["connections"] = h.connections.load();
             out["depth_sum"] = h.depth_sum.load();
             out["depth_max"] = h.depth_max.load();
             return out;
           })
      .def("tell",
           [](QueueHandle& q, uint64_t connections, uint64_t depth_sum, uint64_t depth_max) {
             QueueHeader& h = q.queue.header();
             h.connections.store(connections);
             h.depth_sum.store(depth_sum);
             h.depth_max.store(depth_max);
           })
      .def("note", [](QueueHandle& q, const std::string& name,
                      uint64_t ns) { histogram_of(q, name).add(ns); })
      .def("histogram", [](const QueueHandle& q,
                           const std::string& name) { return histogram(histogram_of(q, name)); })
      .def("reset_histograms", [](QueueHandle& q) {
        for (const char* name : {"drain_round", "memcpy", "queue_dwell"})
          histogram_of(q, name).reset();
      });
}

}  // namespace contig
