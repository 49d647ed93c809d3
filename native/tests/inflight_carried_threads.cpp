// Steps whose observations are sent once to a tape, in threads (inflight_test.h): frames refer to
// slots of the frame before, and connections are cut between them. Run under ThreadSanitizer; each
// row must come once, in order, with its own observations.
#include <chrono>

#include "inflight_test.h"
#include "slot_rows.h"

namespace {

using slot_rows::Row;

// Item n is one to three rows of one of three trajectories in turn, each of 19 items. Some steps
// lead to what the next one does not begin with.
struct CarriedTest : TapeTest {
  static constexpr uint64_t kWords = slot_rows::kBytes / 8, kItems = 19, kTurns = 3;
  const slot_rows::Form form;
  const uint64_t carry;
  std::vector<uint64_t> slots;

  CarriedTest(slot_rows::Form form, uint64_t carry, uint64_t count)
      : TapeTest("carried slots", kWords, count), form(form), carry(carry) {
    const uint64_t capacity = 4 * count;
    control.resize(Tape::control_bytes(capacity) / 8);
    Tape::format(bytes(control), capacity);
    tape = std::make_unique<Tape>(bytes(control), -1);
    {
      Hold hold(*tape, kForever);
      if (!tape->publish("{}", 2, slot_rows::kBytes, 0, 0, 0, slot_rows::form(form)))
        fail("publish");
    }
    data.resize(tape->data_bytes() / 8);
    slots.resize(tape->header().slots_bytes / 8);
    attach(*tape);
    writer = std::make_unique<Writer>(*tape, 1);
    const SharedForm shared = slot_rows::form(form);
    flight.builder.set_shared(&shared, 1 << 20);
    flight.carry(carry);
  }
  void attach(Tape& own) override {
    own.attach_data(bytes(data));
    own.attach_slots(bytes(slots), slot_rows::form(form));
  }
  void shape(Receiver& in) override {
    in.shape().share(slot_rows::form(form));
    in.set_carry(carry);
  }

  static uint64_t turn(uint64_t n) { return n % kTurns; }
  static uint64_t traj(uint64_t n) { return n / (kTurns * kItems) * kTurns + turn(n); }
  // Row `row` of item n.
  static Row row_of(uint64_t n, uint64_t row) {
    const uint64_t block = n / (kTurns * kItems) * kTurns * kItems;
    uint64_t step = row;
    for (uint64_t i = block + turn(n); i < n; i += kTurns) step += rows_of(i);
    Row r{7, traj(n), step, n, {}, 0, {}};
    slot_rows::fill(&r);
    return r;
  }
  void pack(uint64_t n) override {
    auto* record = reinterpret_cast<Row*>(flight.builder.room(rows_of(n)));
    for (uint64_t row = 0; row < rows_of(n); ++row) record[row] = row_of(n, row);
  }
  void commit(uint64_t n) override {
    WireRun run{};
    run.rows = static_cast<uint32_t>(rows_of(n));
    run.traj_id = static_cast<int64_t>(traj(n));
    flight.builder.commit_run(run);
    // At a pace of its own: what is sent meanwhile has few steps.
    if (n % 64 < 32) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  Rows others() override {
    other_ = Row{kOther, 0, 0, 0, {}, 0, {}};
    Rows rows;
    rows.n = 1;
    rows.records = reinterpret_cast<const uint8_t*>(&other_);
    return rows;
  }
  bool is_others(const Tape& own, uint64_t seq) override {
    uint64_t first;
    std::memcpy(&first, own.row(seq) + own.form().stored(offsetof(Row, writer)), sizeof first);
    return first == kOther;
  }
  void check(const Tape& own, uint64_t seq, uint64_t n, uint64_t row) override {
    std::vector<Row> got(1);
    if (slot_rows::gather_leaves(own, {static_cast<int64_t>(seq)}, &got) > seq) return;  // evicted
    const Row wanted = row_of(n, row);
    if (std::memcmp(&got[0], &wanted, sizeof wanted) != 0) fail("another item, or a torn one");
  }

 private:
  Row other_;
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t scale = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  for (const auto form : {slot_rows::Form::stacks, slot_rows::Form::whole})
    for (const uint64_t carry : {0, 700, 1 << 20}) {
      const auto test = std::make_unique<CarriedTest>(form, carry, 2000 * scale);
      test->run();
      std::printf("  %llu bytes\n", (unsigned long long)test->came);
    }
  return 0;
}
