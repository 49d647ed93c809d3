// Published weights, as Python sees them.
#include "native/queue/weights.h"

#include "handles.h"
#include "native/sys/wait.h"

namespace contig {

namespace {

struct BoardHandle {
  explicit BoardHandle(Bytes memory) : memory(memory), board(memory.data(), memory.shape(0)) {}
  Held<Bytes> memory;
  Board board;
};

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<BoardHandle>(m, "Board")
      .def(nb::init<Bytes>(), nb::arg("memory").noconvert())
      .def_static("bytes_for", &Board::bytes_for)
      .def_static(
          "format",
          [](Bytes memory, uint64_t record_size, nb::bytes schema) {
            if (memory.shape(0) < Board::bytes_for(record_size, schema.size()))
              throw std::invalid_argument("board: the memory is too small");
            check_aligned(memory.data());
            Board::format(memory.data(), record_size, schema.c_str(), schema.size());
          },
          nb::arg("memory").noconvert(), nb::arg("record_size"), nb::arg("schema"))
      .def(
          "publish",
          [](BoardHandle& b, int64_t version, Record record) {
            if (record.shape(0) != b.board.record_size())
              throw std::invalid_argument("publish: a record of another size");
            NoGil no_gil;
            b.board.publish(version, record.data());
          },
          nb::arg("version"), nb::arg("record").noconvert())
      .def("read",
           [](const BoardHandle& b) -> nb::object {
             auto* block = new Block(b.board.record_size());
             nb::object out = nb::cast(block, nb::rv_policy::take_ownership);
             int64_t version;
             bool there;
             {
               NoGil no_gil;
               there = b.board.read(block->data, &version);
             }
             if (!there) return nb::none();
             return nb::make_tuple(version, out);
           })
      .def_prop_ro("newest",
                   [](const BoardHandle& b) -> nb::object {
                     int64_t version;
                     if (!b.board.newest(&version)) return nb::none();
                     return nb::int_(version);
                   })
      .def_prop_ro(
          "schema",
          [](const BoardHandle& b) { return nb::bytes(b.board.schema(), b.board.schema_bytes()); })
      .def_prop_ro("word", [](const BoardHandle& b) { return b.board.header().wake_word.load(); })
      .def("wait", [](BoardHandle& b, uint32_t seen, double timeout_s) {
        NoGil no_gil;
        BoardHeader& h = b.board.header();
        return wait_change(h.wake_word, h.waiters, seen, timeout_s);
      });
}

}  // namespace contig
