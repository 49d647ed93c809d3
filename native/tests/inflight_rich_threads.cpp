// Items with fields and with bytes of any number to a tape, in threads (inflight_test.h). Run under
// ThreadSanitizer; each item must come once, in order, with its own fields and bytes.
#include "inflight_test.h"

namespace {

// The same with fields, given with every other item, and with bytes: word 1 and 2 of a record are
// where they are and how many. Bytes lap their ring, and a reader is behind them only as far as it
// has to be: it reads what is there, and looks at the tail afterwards.
struct RichTest : TapeTest {
  static constexpr uint64_t kFields = 24;
  std::vector<uint64_t> ring, fields, numbers_;
  uint64_t lost = 0;

  RichTest(uint64_t words, uint64_t count) : TapeTest("fields and bytes", words, count) {
    const uint64_t capacity = 4 * count, ring_bytes = 4096;
    control.resize(Tape::control_bytes(capacity) / 8);
    Tape::format(bytes(control), capacity);
    tape = std::make_unique<Tape>(bytes(control), -1);
    {
      Hold hold(*tape, kForever);
      if (!tape->publish("{}", 2, words * 8, kFields, 1, ring_bytes)) fail("publish");
    }
    data.resize(tape->data_bytes() / 8);
    ring.resize(ring_bytes / 8);
    fields.resize(tape->header().fields_bytes / 8);
    attach(*tape);
    writer = std::make_unique<Writer>(*tape, 1);
    flight.builder.set_variable({8});
  }
  void attach(Tape& own) override {
    own.attach_data(bytes(data));
    own.attach_blobs(bytes(ring), {BlobLeaf{8, 1}});
    own.attach_fields(bytes(fields));
    own.set_field_leaves({{0, 8}, {8, 16}});
  }
  void shape(Receiver& in) override {
    in.shape().fields = kFields;
    in.shape().field_leaves = 2;
    in.shape().variable = {VariableLeaf{8, 1, VariableLeaf::any}};
  }
  static uint64_t size_of(uint64_t name) { return rows::mix(name) % 60; }
  static uint8_t byte(uint64_t name) { return static_cast<uint8_t>(rows::mix(name + 1)); }

  void pack(uint64_t n) override {
    extras_ = ItemExtras{};
    for (uint64_t row = 0; row < rows_of(n); ++row) extras_.bytes += size_of(4 * n + row);
    if (n % 2 == 0) {
      const uint64_t given[] = {3, word(n, 0), word(n, 1), word(n, 2)};
      std::memcpy(given_, given, sizeof given);
      extras_.fields = reinterpret_cast<const uint8_t*>(given_);
      extras_.field_bytes = sizeof given_;
    }
    auto* record = reinterpret_cast<uint64_t*>(flight.builder.room(rows_of(n), 1, extras_));
    uint64_t at = 0;
    for (uint64_t row = 0; row < rows_of(n); ++row, record += words) {
      const uint64_t name = 4 * n + row, size = size_of(name);
      for (uint64_t i = 0; i < words; ++i) record[i] = word(name, i);
      record[1] = at;
      record[2] = size;
      if (size > 0) std::memset(flight.builder.bytes_room() + at, byte(name), size);
      at += size;
    }
  }
  void commit(uint64_t n) override {
    WireRun run{};
    run.rows = static_cast<uint32_t>(rows_of(n));
    run.flags = kBegins | kTerminated;
    run.traj_id = static_cast<int64_t>(n);
    if (n % 2 == 0) {
      run.flags |= kHasFields;
      run.fields = 1;
    }
    flight.builder.commit_run(run);
  }

  Rows others() override {
    numbers_.assign(words, kOther);
    numbers_[1] = 0;
    numbers_[2] = 8;
    Rows rows;
    rows.n = 1;
    rows.records = bytes(numbers_);
    rows.blobs = bytes(numbers_);
    rows.blob_bytes = 8;
    return rows;
  }

  void check(const Tape& own, uint64_t seq, uint64_t n, uint64_t row) override {
    const uint64_t name = 4 * n + row;
    const auto* values = reinterpret_cast<const uint64_t*>(own.row(seq));
    for (uint64_t i = 0; i < words; ++i)
      if (i != 1 && i != 2 && values[i] != word(name, i)) fail("another item, or a torn one");
    const auto place = load_place(own.row(seq) + 8);
    if (place.bytes != size_of(name)) fail("another row's bytes");
    std::vector<uint8_t> got(place.bytes);
    own.blobs().read(place.position, place.bytes, got.data());
    std::atomic_thread_fence(std::memory_order_acquire);
    if (own.header().tail.load() > seq) {
      ++lost;  // it was evicted meanwhile
      return;
    }
    for (const uint8_t b : got)
      if (b != byte(name)) fail("bytes of another row");
    if (row == 0) check_fields(own, n);
  }
  // Entries are in the items' order, with the other writer's among them: the item's own is found by
  // its id.
  void check_fields(const Tape& own, uint64_t n) {
    const Snapshot s = own.snapshot();
    uint64_t w[EntryWords::count], record[kFields / 8];
    for (uint64_t number = std::max(next_entry_, s.index_tail); number < s.index_head; ++number) {
      if (own.read_entry_words(number, s.head, w) != Tape::Read::ok) continue;
      if (w[EntryWords::traj_id] != n) continue;
      next_entry_ = number;
      if (!own.read_fields(number, reinterpret_cast<uint8_t*>(record))) return;
      for (uint64_t i = 0; i < kFields / 8; ++i)
        if (record[i] != (n % 2 == 0 ? word(n, i) : 0)) fail("fields of another item");
      return;
    }
    if (own.header().tail.load() <= s.tail) fail("an item without an entry");
  }

 private:
  ItemExtras extras_;
  uint64_t given_[1 + kFields / 8];
  uint64_t next_entry_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t scale = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  std::make_unique<RichTest>(3, 6000 * scale)->run();
  std::make_unique<RichTest>(40, 2000 * scale)->run();
  return 0;
}
