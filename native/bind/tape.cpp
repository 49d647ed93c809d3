// The tape, as Python sees it, and gathering from it.
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
  bool whole = false;
  for (int tries = 0; tries < 10 && !whole; ++tries) whole = read();
  if (!whole) with_lock(t.tape, t.lock_timeout_s, 0, read);
  const uint64_t tail = t.tape.header().tail.load();
  return nb::make_tuple(to_array(words), head, tail);
}

uint64_t gather_packed(const TapeHandle& t, Seqs seqs, Bytes out) {
  if (!t.tape.attached()) throw std::invalid_argument("gather_records: the tape has no rows yet");
  check_room(seqs.shape(0), t.tape.record_size(), out.shape(0),
             "gather_records: the output is too small");
  NoGil no_gil;
  const uint64_t tail = gather_records(t.tape, seqs.data(), seqs.shape(0), out.data());
  return lost_below(seqs.data(), seqs.shape(0), tail);
}

// Raises what would make `restore_stored` of these entries fail, and has the memory for them.
void prepare_restore(TapeHandle& t, State entries, uint64_t index_tail, uint64_t index_head) {
  if (entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the index's parts do not fit together");
  with_lock(t.tape, t.lock_timeout_s, 0, [&] {
    t.tape.prepare(entries.data(), index_tail, index_head);
    return 0;
  });
}

// A tape whose rows are in files: takes its index over, in place of what it has.
void restore_stored(TapeHandle& t, uint64_t tail, uint64_t head, State entries, uint64_t index_tail,
                    uint64_t index_head, uint64_t trajectories) {
  if (entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the index's parts do not fit together");
  with_lock(t.tape, t.lock_timeout_s, 0, [&] {
    t.tape.restore(nullptr, tail, head, entries.data(), index_tail, index_head, trajectories);
    return 0;
  });
}

void follow(TapeHandle& t, State entries, uint64_t tail, uint64_t head, uint64_t index_tail,
            uint64_t index_head, uint64_t trajectories) {
  const size_t n = entries.shape(0) / W::count;
  with_lock(t.tape, t.lock_timeout_s, 0, [&] {
    const Snapshot now = t.tape.snapshot();
    if (index_tail > now.index_head || index_head < now.index_head || tail < now.tail ||
        head < now.head || index_tail < now.index_tail || index_tail > index_head || tail > head)
      throw std::invalid_argument("follow: bounds that do not go on from those before");
    for (size_t i = 0; i < n; ++i) {
      const uint64_t number = entries.data()[W::count * i + W::number];
      if (number < index_tail || number >= index_head)
        throw std::invalid_argument("follow: an entry outside the index");
    }
    t.tape.follow(entries.data(), n, Snapshot{head, tail, index_head, index_tail}, trajectories);
    return 0;
  });
}

RowSums row_sums(const State& salts) {
  if (salts.shape(0) % 2 != 0) throw std::invalid_argument("salts: expected pairs");
  return RowSums(salts.data(), salts.shape(0) / 2);
}

// Records as they are in a file, the first of them with this seq.
nb::object encode(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records, uint64_t size,
                  uint64_t stride, uint64_t first, const RowSums& sums) {
  if (size == 0 || size > stride || stride - size < 4 || records.shape(0) % size != 0)
    throw std::invalid_argument("encode_rows: expected whole records");
  const uint64_t n = records.shape(0) / size;
  auto* block = new Block(n * stride);
  nb::object out = nb::cast(block, nb::rv_policy::take_ownership);
  NoGil no_gil;
  Rows rows;
  rows.n = n;
  rows.records = records.data();
  encode_rows(rows, 0, size, stride, sums, first, block->data);
  return out;
}

// Rows of a file: (records, places of the damaged).
nb::tuple decode(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> stored, uint64_t size,
                 uint64_t stride, uint64_t first, State salts) {
  if (size == 0 || size > stride || stride - size < 4 || stored.shape(0) % stride != 0)
    throw std::invalid_argument("decode_rows: expected whole rows");
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

// Entries [from, to), `W::count` words each; only for the one process that appends.
nb::object entries(TapeHandle& t, uint64_t from, uint64_t to) {
  std::vector<int64_t> words;
  const uint64_t head = t.tape.header().head.load();
  for (uint64_t n = from; n < to; ++n) {
    uint64_t w[W::count] = {};
    t.tape.read_entry_words(n, head, w);
    words.insert(words.end(), w, w + W::count);
  }
  return to_array(words);
}

void restore(TapeHandle& t, Bytes records, uint64_t tail, uint64_t head, State entries,
             uint64_t index_tail, uint64_t index_head, uint64_t trajectories) {
  if (records.shape(0) != (head - tail) * t.tape.record_size() ||
      entries.shape(0) != (index_head - index_tail) * W::count)
    throw std::invalid_argument("restore: the checkpoint's parts do not fit together");
  with_lock(t.tape, t.lock_timeout_s, kKeepGil, [&] {
    t.tape.restore(records.data(), tail, head, entries.data(), index_tail, index_head,
                   trajectories);
    return 0;
  });
}

bool wait(TapeHandle& t, uint32_t seen, double timeout_s) {
  NoGil no_gil;
  return wait_change(t.tape.header().wake_word, t.tape.header().waiters, seen, timeout_s);
}

}  // namespace

void bind_tape(nb::module_& m) {
  static nb::exception<Busy> busy(m, "TapeBusy", PyExc_TimeoutError);
  static nb::exception<NoSpace> no_space(m, "StorageFull", PyExc_OSError);
  m.attr("ROBUST_LOCKS") = bool(CONTIG_ROBUST);
  m.attr("FLAG_BITS") = kFlagBits;
  m.attr("RANKED") = W::kRanked;
  m.def("entry_fields", &entry_fields);
  nb::enum_<RunFlag>(m, "RunFlag", nb::is_arithmetic())
      .value("BEGINS", kBegins)
      .value("TERMINATED", kTerminated)
      .value("TRUNCATED", kTruncated)
      .value("CUT", kCut)
      .value("MARKED", kMarked)
      .value("GOES_ON", kGoesOn)
      .value("TOLD", kTold);
  m.def("decode_rows", &decode, nb::arg("stored"), nb::arg("record_size"), nb::arg("stride"),
        nb::arg("first"), nb::arg("salts"));
  m.def(
      "encode_rows",
      [](nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records, uint64_t size,
         uint64_t stride, uint64_t first,
         State salts) { return encode(records, size, stride, first, row_sums(salts)); },
      nb::arg("records"), nb::arg("record_size"), nb::arg("stride"), nb::arg("first"),
      nb::arg("salts"));
  m.def("control_bytes", &Tape::control_bytes);
  m.def("table_bytes", &Tape::table_bytes);
  m.def("format_control", [](Bytes control, uint64_t capacity) {
    if (control.shape(0) < Tape::control_bytes(capacity))
      throw std::invalid_argument("format_control: the buffer is too small");
    Tape::format(control.data(), capacity);
  });

  nb::class_<Region>(m, "Region")
      .def(nb::init<uint64_t>(), nb::arg("bytes"))
      .def("map", &Region::map, nb::arg("offset"), nb::arg("fd"), nb::arg("bytes"))
      .def("unmap", &Region::unmap, nb::arg("offset"), nb::arg("bytes"));
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
      .def(
          "attach_region",
          [](TapeHandle& t, Region& region) {
            if (region.size() < t.tape.data_bytes())
              throw std::invalid_argument("attach_region: the region is too small");
            t.tape.attach_data(region.data());
          },
          nb::keep_alive<1, 2>())
      .def("attach_data",
           [](TapeHandle& t, Bytes data) {
             if (data.shape(0) < t.tape.data_bytes())
               throw std::invalid_argument("attach_data: the mapping is too small");
             *t.data = data;
             t.tape.attach_data(data.data());
           })
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
                              [&] { return t.tape.seen(producer, next).seq; });
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
      .def("gather_records", &gather_packed, nb::arg("seqs").noconvert(),
           nb::arg("out").noconvert())
      .def("clear",
           [](TapeHandle& t) {
             with_lock(t.tape, t.lock_timeout_s, 0, [&] {
               t.tape.clear();
               return 0;
             });
           })
      .def("restore", &restore)
      .def("prepare_restore", &prepare_restore)
      .def("restore_stored", &restore_stored)
      .def("entries", &entries)
      .def("follow", &follow)
      .def_prop_ro("record_size", [](const TapeHandle& t) { return t.tape.record_size(); })
      .def("encode",  // records as they are stored in files, from a seq on: each with its checksum
           [](const TapeHandle& t, nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records,
              uint64_t first) {
             if (!t.tape.checked())
               throw std::invalid_argument("encode: rows of this tape are not in files");
             return encode(records, t.tape.record_size(), t.tape.stride(), first, t.tape.sums());
           })
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
      .def("publish_stored",
           [](TapeHandle& t, uint64_t record_size, uint64_t stride, uint64_t shift,
              uint64_t most_extents) {
             if (stride < record_size + 4 || shift > 40 || most_extents < 3)
               throw std::invalid_argument("publish_stored: a stride that has no room for a row");
             t.tape.publish_stored(record_size, stride, shift, most_extents);
           })
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
             t.tape.repair();
           })
      .def("release", [](TapeHandle& t) { lock_release(t.tape.header().lock); });
}

}  // namespace contig
