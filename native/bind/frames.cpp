// Frames and receivers, as Python sees them.
#include <nanobind/stl/string.h>

#include <cstring>

#include "handles.h"
#include "native/kernels/crc32c.h"
#include "native/sys/process.h"
#include "receive.h"

namespace contig {

std::vector<VariableLeaf> variable_from(const Seqs& leaves) {
  if (leaves.shape(0) % 3 != 0) throw std::invalid_argument("variable leaves: threes");
  std::vector<VariableLeaf> out;
  for (size_t i = 0; i < leaves.shape(0); i += 3) {
    const int64_t* leaf = leaves.data() + i;
    if (leaf[0] < 0 || leaf[1] < 0 || leaf[2] < 0 || leaf[2] > 2 ||
        (!out.empty() && static_cast<uint64_t>(leaf[0]) < out.back().offset + 16))
      throw std::invalid_argument("variable leaves: in the record's order, of known contents");
    out.push_back(VariableLeaf{static_cast<uint64_t>(leaf[0]), static_cast<uint64_t>(leaf[1]),
                               static_cast<VariableLeaf::Content>(leaf[2])});
  }
  return out;
}

namespace {

nb::bytes make_frame(uint8_t type, uint64_t number, nb::bytes payload) {
  Frame f{};
  f.type = type;
  f.number = number;
  f.length = payload.size();
  const auto* body = reinterpret_cast<const uint8_t*>(payload.c_str());
  f.body_crc = crc32c(0, body, payload.size());
  std::string out(kFrameHeader, '\0');
  write_header(f, reinterpret_cast<uint8_t*>(&out[0]));
  out.append(payload.c_str(), payload.size());
  return nb::bytes(out.data(), out.size());
}

// A header in front of payload parts that are sent one after another.
nb::bytes make_header(uint8_t type, uint64_t number, nb::list parts) {
  Frame f{};
  f.type = type;
  f.number = number;
  for (nb::handle part : parts) {
    Py_buffer view;
    if (PyObject_GetBuffer(part.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    f.body_crc =
        crc32c(f.body_crc, static_cast<const uint8_t*>(view.buf), static_cast<size_t>(view.len));
    f.length += static_cast<uint64_t>(view.len);
    PyBuffer_Release(&view);
  }
  uint8_t out[kFrameHeader];
  write_header(f, out);
  return nb::bytes(reinterpret_cast<char*>(out), kFrameHeader);
}

nb::object room(nb::handle self) {
  auto& r = *nb::inst_ptr<Receiver>(self);
  uint64_t bytes;
  uint8_t* at = r.room(&bytes);
  PyObject* view = PyMemoryView_FromMemory(reinterpret_cast<char*>(at),
                                           static_cast<Py_ssize_t>(bytes), PyBUF_WRITE);
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

void feed(Receiver& h, nb::bytes data) {
  uint64_t bytes;
  uint8_t* at = h.room(&bytes);
  if (data.size() > bytes)
    throw std::invalid_argument("Receiver.feed: more than there is room for");
  std::memcpy(at, data.c_str(), data.size());
  h.received(data.size());
}

// Offset and bytes of each.
std::vector<Bools> bools_from(const Seqs& places, const char* whose) {
  if (places.shape(0) % 2 != 0) throw std::invalid_argument(std::string(whose) + ": pairs");
  std::vector<Bools> bools;
  for (size_t i = 0; i < places.shape(0); i += 2)
    bools.push_back(Bools{static_cast<uint64_t>(places.data()[i]),
                          static_cast<uint64_t>(places.data()[i + 1])});
  return bools;
}

nb::bytes payload(const Receiver& r) {
  if (!r.ready()) throw std::invalid_argument("Receiver.payload: no whole frame");
  return nb::bytes(reinterpret_cast<const char*>(r.body()), r.frame().length);
}

}  // namespace

nb::tuple receive(Intake& table, Receiver& in, int socket, uint64_t next, double patience_s) {
  TakenIn out;
  {
    NoGil no_gil;
    out = take_in(table, in, socket, next, patience_s);
  }
  return nb::make_tuple(out.bytes, out.frames, out.items, out.rows, out.partial, out.seen);
}

void bind_frames(nb::module_& m) {
  m.attr("FRAME_HEADER") = kFrameHeader;
  m.attr("RUN_BYTES") = kRunBytes;
  m.attr("MAX_LANES") = kMaxLanes;
  m.attr("MAX_CONNECTIONS") = kMaxConnections;
  m.attr("PRODUCERS") = kProducers;
  m.def(
      "crc32c",
      [](nb::bytes data, uint32_t before) {
        return crc32c(before, reinterpret_cast<const uint8_t*>(data.c_str()), data.size());
      },
      nb::arg("data"), nb::arg("before") = 0);
  m.def(
      "crc32c_portable",
      [](nb::bytes data, uint32_t before) {
        return crc32c_portable(before, reinterpret_cast<const uint8_t*>(data.c_str()), data.size());
      },
      nb::arg("data"), nb::arg("before") = 0);
  m.def("crc32c_join", &crc32c_join, nb::arg("first"), nb::arg("second"), nb::arg("bytes"));
  m.def("process_id", &process_id);
  m.def("process_gone", &process_gone, nb::arg("id"));
  m.def("make_frame", &make_frame, nb::arg("type"), nb::arg("number"), nb::arg("payload"));
  m.def("make_header", &make_header, nb::arg("type"), nb::arg("number"), nb::arg("parts"));
  nb::enum_<Receiver::State>(m, "Received", nb::is_arithmetic())
      .value("MORE", Receiver::State::more)
      .value("READY", Receiver::State::ready)
      .value("GROW", Receiver::State::grow)
      .value("BAD", Receiver::State::bad);
  nb::class_<Receiver>(m, "Receiver")
      .def(nb::init<uint64_t, uint64_t>(), nb::arg("bytes"), nb::arg("max_frame"))
      .def(
          "room", [](nb::handle self) { return room(self); },
          "Where to receive to; valid until the next call of anything else.")
      .def("received", [](Receiver& h, uint64_t n) { h.received(n); })
      .def("receive",
           [](Receiver& h, int socket) {
             NoGil no_gil;
             return h.receive(socket);
           })
      .def("feed", &feed)
      .def("peek",
           [](const Receiver& h, uint64_t n) -> nb::object {
             const uint8_t* at = h.peek(n);
             if (at == nullptr) return nb::none();
             return nb::bytes(reinterpret_cast<const char*>(at), n);
           })
      .def("skip",
           [](Receiver& h, uint64_t n) {
             if (n > h.held()) throw std::invalid_argument("Receiver.skip: more than is held");
             h.skip(n);
           })
      .def("next", &Receiver::next)
      .def("check_items",
           [](Receiver& h, uint64_t record_size, bool runs) { return h.check(record_size, runs); })
      .def("pop",
           [](Receiver& h) {
             if (!h.ready()) throw std::invalid_argument("Receiver.pop: no whole frame");
             h.pop();
           })
      .def("payload", &payload)
      .def_prop_ro("type", [](const Receiver& h) { return h.frame().type; })
      .def_prop_ro("number", [](const Receiver& h) { return h.frame().number; })
      .def_prop_ro("runs", [](const Receiver& h) { return h.frame().runs; })
      .def_prop_ro("rows", [](const Receiver& h) { return h.frame().rows; })
      .def_prop_ro("needed", [](const Receiver& h) { return h.needed(); })
      .def_prop_ro("held", [](const Receiver& h) { return h.held(); })
      .def_prop_ro("size", [](const Receiver& h) { return h.size(); })
      .def_prop_rw(
          "max_frame", [](const Receiver& h) { return h.max_frame(); },
          [](Receiver& h, uint64_t n) { h.allow(n); })
      .def("resize", [](Receiver& h, uint64_t n) { h.resize(n); })
      .def("set_near", &Receiver::set_near)
      .def_prop_rw("carry", &Receiver::carry, &Receiver::set_carry,
                   "Bytes of slots that are kept, for frames that leave them out.")
      .def("set_bools",
           [](Receiver& h, Seqs places) { h.shape().bools = bools_from(places, "set_bools"); })
      .def(
          "set_fields",
          [](Receiver& h, uint64_t bytes, uint64_t leaves, Seqs bools) {
            std::vector<Bools> places = bools_from(bools, "set_fields");
            for (const Bools& where : places)
              check_place(where.offset, where.bytes, bytes, "set_fields");
            if (bytes == 0 || bytes > kMostFieldBytes || leaves == 0 || leaves > kMostFieldLeaves)
              throw std::invalid_argument("set_fields: 1 to 64 leaves");
            h.shape().fields = bytes;
            h.shape().field_leaves = leaves;
            h.shape().field_bools = std::move(places);
          },
          nb::arg("bytes"), nb::arg("leaves"), nb::arg("bools").noconvert(),
          "What trajectories' fields look like; bools as `set_bools` has them.")
      .def(
          "set_variable",
          [](Receiver& h, Seqs leaves) { h.shape().variable = variable_from(leaves); },
          nb::arg("leaves").noconvert(),
          "Leaves of any size: offset, bytes of an element, and content (0 any, 1 text, 2 bools).")
      .def(
          "set_shared", [](Receiver& h, const SharedForm& form) { h.shape().share(form); },
          nb::arg("form"), "Behind the others: rows may come with slots.")
      .def_prop_ro("refusal",
                   [](const Receiver& h) { return std::string(refusal_name(h.refusal())); });
}

}  // namespace contig
