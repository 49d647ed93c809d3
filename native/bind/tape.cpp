// The tape, as Python sees it, and gathering from it.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unordered_map>

#include "handles.h"
#include "native/sys/region.h"
#include "native/sys/wait.h"
#include "native/tape/gather.h"

namespace contig {

namespace {

using W = EntryWords;

// Where the words of an entry are, and what they are: (bytes before it, numpy's type) by name.
nb::dict entry_fields() {
  nb::dict out;
  const auto put = [&](const char* name, int word, const char* type = "<i8") {
    out[name] = nb::make_tuple(8 * word, type);
  };
  put("first", W::first);
  put("steps_flags", W::steps_flags);
  put("prev", W::prev);
  put("jump", W::jump);
  put("before", W::before);
  put("ordinal", W::ordinal);
  put("version", W::version);
  put("ret", W::ret, "<f8");
  put("traj_id", W::traj_id);
  put("writer", W::writer);
  put("time_ns", W::time_ns);
  put("depth", W::depth);
  put("number", W::number);
  return out;
}

nb::tuple snapshot(const TapeHandle& t) {
  const Snapshot s = t.tape.snapshot();
  return nb::make_tuple(s.head, s.tail, s.index_head, s.index_tail);
}

// The live index, `W::count` words an entry, consistent; and the bounds they are valid for.
nb::tuple read_index(TapeHandle& t) {
  std::vector<int64_t> words;
  uint64_t head = 0;
  const auto read = [&] {
    words.clear();
    const uint64_t restores = t.tape.header().restores.load();
    const Snapshot s = t.tape.snapshot();
    head = s.head;
    for (uint64_t n = s.index_tail; n < s.index_head; ++n) {
      uint64_t w[W::count];
      const Tape::Read result = t.tape.read_entry_words(n, s.head, w);
      if (result == Tape::Read::gone) continue;
      if (result != Tape::Read::ok) return false;
      words.insert(words.end(), w, w + W::count);
    }
    return restores % 2 == 0 && restores == t.tape.header().restores.load();
  };
  {
    const Snapshot s = t.tape.snapshot();
    const NoGil no_gil((s.index_head - s.index_tail) * sizeof(Entry) >= kKeepGil);
    bool whole = false;
    for (int tries = 0; tries < 10 && !whole; ++tries) whole = read();
    if (!whole) with_lock(t.tape, t.lock_timeout_s, 0, read);
  }
  const uint64_t tail = t.tape.header().tail.load();
  const nb::object array = to_array(words);
  give_back(&words);
  return nb::make_tuple(array, head, tail);
}

uint64_t gather_packed(const TapeHandle& t, Seqs seqs, Bytes out) {
  if (!t.tape.attached()) throw std::invalid_argument("gather_records: the tape has no rows yet");
  check_room(seqs.shape(0), t.tape.record_size(), out.shape(0),
             "gather_records: the output is too small");
  NoGil no_gil;
  const uint64_t tail = gather_records(t.tape, seqs.data(), seqs.shape(0), out.data());
  return lost_below(seqs.data(), seqs.shape(0), tail);
}

// Entries [from, to), `W::count` words each; only for the one process that appends.
nb::object entries(TapeHandle& t, uint64_t from, uint64_t to) {
  std::vector<int64_t> words;
  const uint64_t head = t.tape.header().head.load();
  {
    const NoGil no_gil(from < to && (to - from) * sizeof(Entry) >= kKeepGil);
    for (uint64_t n = from; n < to; ++n) {
      uint64_t w[W::count] = {};
      t.tape.read_entry_words(n, head, w);
      words.insert(words.end(), w, w + W::count);
    }
  }
  const nb::object array = to_array(words);
  give_back(&words);
  return array;
}

// `leaves`: (offset in the record, what lengths are multiples of) one after another.
void attach_blobs(TapeHandle& t, Bytes ring, Seqs leaves, std::vector<std::string> names) {
  if (ring.shape(0) < t.tape.header().blob_ring || leaves.shape(0) % 2 != 0)
    throw std::invalid_argument("attach_blobs: the mapping is too small");
  std::vector<BlobLeaf> list;
  for (size_t i = 0; i < leaves.shape(0); i += 2)
    list.push_back(BlobLeaf{static_cast<uint64_t>(leaves.data()[i]),
                            static_cast<uint64_t>(leaves.data()[i + 1])});
  *t.blobs = ring;
  t.tape.attach_blobs(ring.data(), std::move(list), std::move(names));
}

// Bytes of the ring that rows have: from the oldest row's first on.
uint64_t blob_bytes(const TapeHandle& t) {
  const Tape& tape = t.tape;
  if (tape.blob_leaves().empty() || !tape.attached()) return 0;
  for (int tries = 0; tries < 100; ++tries) {
    const Snapshot s = tape.snapshot();
    if (s.tail >= s.head) return 0;
    const uint64_t first = tape.blob_begin(s.tail);
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t end = tape.header().blob_head.load();
    if (tape.snapshot().tail == s.tail) return end - first;
  }
  return tape.blobs().size;  // they are overwritten faster than they can be counted
}

// Bytes that have memory: of rows, of the ring of bytes, and of fields; slots say theirs.
nb::object reserved(const TapeHandle& t) {
  const Header& h = t.tape.header();
  const uint64_t rows = h.reserved_extents.load() * (h.row_stride << h.extent_shift);
  const uint64_t fields =
      h.fields_size == 0
          ? 0
          : ((h.reserved_chunks.load() * Fields::slot_bytes(h.fields_size)) << h.chunk_shift) +
                h.reserved_log.load() * sizeof(Word) +
                h.reserved_evicted.load() * Fields::evicted_bytes(h.fields_size);
  return nb::make_tuple(rows, h.reserved_blobs.load(), fields);
}

// Bytes by position, as far as the ring has them; the tape's tail afterwards: those of rows below
// it may be others by then.
uint64_t read_blobs(const TapeHandle& t, uint64_t position, Bytes out) {
  if (t.tape.blobs().data == nullptr || out.shape(0) > t.tape.blobs().size)
    throw std::invalid_argument("read_blobs: more bytes than the ring has");
  NoGil no_gil;
  t.tape.blobs().read(position, out.shape(0), out.data());
  std::atomic_thread_fence(std::memory_order_acquire);
  return t.tape.header().tail.load(std::memory_order_relaxed);
}

// Of what tells apart the trajectories that a producer has open at a time.
struct LaneKey {
  uint64_t writer, lane, id;
  bool operator==(const LaneKey& o) const {
    return writer == o.writer && lane == o.lane && id == o.id;
  }
};
struct LaneKeyHash {
  size_t operator()(const LaneKey& k) const {
    uint64_t h = k.writer * 0x9E3779B97F4A7C15ull;
    h = (h ^ k.lane) * 0xD6E8FEB86659FD93ull;
    return (h ^ k.id) * 0x9E3779B97F4A7C15ull;
  }
};

// The last run of each lane of each producer: where a writer of this process goes on. Of lanes
// whose rows have ids, of each id; those that ended only with `ended_ids`. Of an id that two open
// trajectories of one producer have, none: nobody could tell whose rows come next.
nb::object last_runs(const TapeHandle& t, bool by_id, bool ended_ids) {
  struct Last {
    uint64_t ordinal;
    int64_t entry;  // -1: it is not gone on with
  };
  std::vector<int64_t> writers, entries;
  {
    NoGil no_gil;
    std::unordered_map<LaneKey, Last, LaneKeyHash> found;
    const Snapshot s = t.tape.snapshot();
    uint64_t w[W::count];
    for (uint64_t number = s.index_head; number-- > s.index_tail;) {
      if (t.tape.read_entry_words(number, s.head, w) != Tape::Read::ok) continue;
      const uint64_t lane = lane_of(w[W::steps_flags]);
      if (lane == 0) continue;
      const bool named = by_id || lane == kNamedLane;
      const bool ended = (w[W::steps_flags] & kEnded) != 0;
      const bool counts = !named || ended_ids || !ended;
      const LaneKey key{w[W::writer], lane, named ? w[W::traj_id] : 0};
      const int64_t entry = counts ? static_cast<int64_t>(number) : -1;
      const auto [at, is_last] = found.try_emplace(key, Last{w[W::ordinal], entry});
      if (!is_last && lane == kNamedLane && !ended && at->second.ordinal != w[W::ordinal])
        at->second.entry = -1;
    }
    for (const auto& [key, last] : found) {
      if (last.entry < 0) continue;
      writers.push_back(static_cast<int64_t>(key.writer));
      entries.push_back(last.entry);
    }
  }
  return nb::make_tuple(to_array(writers), to_array(entries));
}

bool wait(TapeHandle& t, uint32_t seen, double timeout_s) {
  NoGil no_gil;
  return wait_change(t.tape.header().wake_word, t.tape.header().waiters, seen, timeout_s);
}

// Part of a file as an array, which keeps it mapped.
nb::object map_file(int fd, uint64_t offset, uint64_t bytes) {
  auto* mapping = new FileMapping(fd, offset, bytes);
  nb::capsule owner(mapping, [](void* p) noexcept { delete static_cast<FileMapping*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(mapping->data(), {bytes}, owner));
}

}  // namespace

void bind_tape(nb::module_& m) {
  m.attr("ROBUST_LOCKS") = bool(CONTIG_ROBUST);
  m.attr("FLAG_BITS") = kFlagBits;
  m.attr("MOST_RUN_ROWS") = kMostRunRows;
  m.attr("RANKED") = W::kRanked;
  m.def("entry_fields", &entry_fields);
  nb::enum_<RunFlag>(m, "RunFlag", nb::is_arithmetic())
      .value("BEGINS", kBegins)
      .value("TERMINATED", kTerminated)
      .value("TRUNCATED", kTruncated)
      .value("CUT", kCut)
      .value("MARKED", kMarked)
      .value("GOES_ON", kGoesOn)
      .value("TOLD", kTold)
      .value("SEVERAL", kSeveral);
  m.def("control_bytes", &Tape::control_bytes);
  m.def("table_bytes", &Tape::table_bytes);
  m.def("map_file", &map_file, nb::arg("fd"), nb::arg("offset"), nb::arg("nbytes"));
  m.def("format_control", [](Bytes control, uint64_t capacity) {
    if (control.shape(0) < Tape::control_bytes(capacity))
      throw std::invalid_argument("format_control: the buffer is too small");
    Tape::format(control.data(), capacity);
  });

  nb::class_<Region>(m, "Region")
      .def(nb::init<uint64_t>(), nb::arg("bytes"))
      .def("map", &Region::map, nb::arg("offset"), nb::arg("fd"), nb::arg("bytes"))
      .def("unmap", &Region::unmap, nb::arg("offset"), nb::arg("bytes"));
  nb::class_<TapeHandle> tape(m, "Tape");
  bind_restore(tape);
  bind_fields(m, tape);
  bind_stored(m, tape);
  bind_slots(m, tape);
  bind_stored_slots(m, tape);
  bind_compact(m);
  tape.def(nb::init<Bytes, int>(), nb::arg("control"), nb::arg("fd"))
      .def_rw("lock_timeout_s", &TapeHandle::lock_timeout_s)
      .def("close", [](TapeHandle& t) { t.tape.close(); })
      .def(
          "publish",
          [](TapeHandle& t, nb::bytes schema, uint64_t record_size, uint64_t fields_size,
             uint64_t blob_leaves, uint64_t blob_ring, std::optional<SharedForm> form) {
            check_fields_size(fields_size);
            if ((blob_leaves != 0) != (blob_ring != 0))
              throw std::invalid_argument("publish: leaves of any size need a ring of bytes");
            return with_lock(t.tape, t.lock_timeout_s, 0, [&] {
              return t.tape.publish(schema.c_str(), schema.size(), record_size, fields_size,
                                    blob_leaves, blob_ring, form.value_or(SharedForm()));
            });
          },
          nb::arg("schema"), nb::arg("record_size"), nb::arg("fields_size") = 0,
          nb::arg("blob_leaves") = 0, nb::arg("blob_ring") = 0, nb::arg("form") = nb::none())
      .def_prop_ro("ready", [](const TapeHandle& t) { return t.tape.ready(); })
      .def_prop_ro("attached", [](const TapeHandle& t) { return t.tape.attached(); })
      .def_prop_ro("schema_range",
                   [](const TapeHandle& t) {
                     t.tape.check_published();
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
             *t.data = data;
             t.tape.attach_data(data.data());
           })
      .def("attach_blobs", &attach_blobs, nb::arg("ring"), nb::arg("leaves"),
           nb::arg("names") = std::vector<std::string>())
      .def_prop_ro("blob_range",
                   [](const TapeHandle& t) {
                     const Header& h = t.tape.header();
                     return nb::make_tuple(h.blob_offset, h.blob_ring);
                   })
      .def_prop_ro("blob_most", [](const TapeHandle& t) { return t.tape.header().blob_most; })
      .def_prop_ro("blob_bytes", &blob_bytes)
      .def_prop_ro("reserved", &reserved)
      .def_prop_ro("row_stride", [](const TapeHandle& t) { return t.tape.header().row_stride; })
      .def("read_blobs", &read_blobs)
      .def_prop_ro("capacity", [](const TapeHandle& t) { return t.tape.header().capacity; })
      .def_prop_ro("trajectories",
                   [](const TapeHandle& t) { return t.tape.header().trajectories.load(); })
      .def_prop_ro("appends", [](const TapeHandle& t) { return t.tape.header().appends.load(); })
      .def_prop_rw(
          "inserted",
          [](const TapeHandle& t) {
            const Header& h = t.tape.header();
            return h.inserted_base.load() + h.head.load();
          },
          [](TapeHandle& t, uint64_t n) {
            Header& h = t.tape.header();
            h.inserted_base.store(n - h.head.load());
          })
      .def_prop_rw(
          "sampled", [](const TapeHandle& t) { return t.tape.header().sampled.load(); },
          [](TapeHandle& t, uint64_t n) { t.tape.header().sampled.store(n); })
      .def("reserve_sampled",
           [](TapeHandle& t, uint64_t rows, double need, double limit) {
             // Counts rows as sampled if that keeps within the limit; atomic between samplers.
             Word& sampled = t.tape.header().sampled;
             uint64_t now = sampled.load();
             do {
               if (static_cast<double>(now) + need > limit) return false;
             } while (!sampled.compare_exchange_weak(now, now + rows));
             return true;
           })
      .def("add_sampled",
           [](TapeHandle& t, int64_t n) {
             Header& h = t.tape.header();
             h.sampled.fetch_add(static_cast<uint64_t>(n));
             if (h.waiters.load() > 0) wake(h.wake_word, h.waiters);
           })
      .def("seen",
           [](TapeHandle& t, uint64_t producer, uint64_t next) {
             return with_lock(t.tape, t.lock_timeout_s, 0,
                              [&] { return t.tape.seen(producer, next); });
           })
      .def("skip",
           [](TapeHandle& t, uint64_t producer, uint64_t next) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.skip(producer, next);
               return 0;
             });
           })
      .def_prop_ro("drawn",
                   [](const TapeHandle& t) {
                     const Header& h = t.tape.header();
                     return nb::make_tuple(h.drawn.load(), h.drawn_age.load());
                   })
      .def_prop_ro("wake_word",
                   [](const TapeHandle& t) { return t.tape.header().wake_word.load(); })
      .def("wait", &wait, nb::arg("seen"), nb::arg("timeout_s"))
      .def("notify",
           [](TapeHandle& t) { wake(t.tape.header().wake_word, t.tape.header().waiters); })
      .def("snapshot", &snapshot)
      .def("read_index", &read_index)
      .def("last_runs", &last_runs, nb::arg("by_id"), nb::arg("ended_ids"),
           "(writers, entries): of each lane of each producer, its last run.")
      .def("gather_records", &gather_packed, nb::arg("seqs").noconvert(),
           nb::arg("out").noconvert())
      .def("clear",
           [](TapeHandle& t) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.clear();
               return 0;
             });
           })
      .def("entries", &entries)
      .def_prop_ro("record_size", [](const TapeHandle& t) { return t.tape.record_size(); })
      .def("set_producer",
           [](TapeHandle& t, uint64_t producer, uint64_t seq) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.recall(producer, seq);
               return 0;
             });
           })
      .def("leave",  // a producer's connection is gone
           [](TapeHandle& t, uint64_t producer) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.leave(producer);
               return 0;
             });
           })
      .def("leave_all",
           [](TapeHandle& t) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.leave_all();
               return 0;
             });
           })
      .def("retire",  // evicts rows below a seq: retention by bytes or age
           [](TapeHandle& t, uint64_t tail) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.retire(tail);
               return 0;
             });
           })
      .def("acquire",
           [](TapeHandle& t) {
             NoGil no_gil;
             Lock& lock = t.tape.header().lock;
             if (!lock_until(lock, t.lock_timeout_s))
               throw Busy(lock_holder(lock), t.lock_timeout_s);
             try {
               t.tape.repair();
             } catch (...) {
               lock_release(lock);
               throw;
             }
           })
      .def("release", [](TapeHandle& t) {
        if (!lock_release(t.tape.header().lock))
          throw std::runtime_error("this thread does not hold the storage's lock");
      });
}

}  // namespace contig
