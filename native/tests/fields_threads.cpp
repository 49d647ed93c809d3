// Fields of trajectories: writers that give them, others that change them, and readers, in threads
// over one tape in plain memory, each with a handle of its own. Run under ThreadSanitizer; in every
// build it checks what readers accept.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "native/tape/gather.h"
#include "native/tape/view.h"
#include "rows.h"

namespace {

using namespace contig;
using rows::fail;
using rows::Row;

constexpr double kTimeout = 120;

struct Shared {
  std::vector<uint64_t> control, data, fields;  // words, for alignment
  uint64_t capacity;
  bool ids;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0}, given{0}, changed{0}, too_late{0}, read{0}, lagged{0}, known{0};

  Shared(uint64_t n, bool with_ids)
      : control(Tape::control_bytes(n) / 8), capacity(n), ids(with_ids) {
    Tape::format(bytes(control), n);
    Tape tape(bytes(control), -1);
    Hold hold(tape, kTimeout);
    if (!tape.publish("{}", 2, rows::kBytes, sizeof(rows::Fields))) fail("publish");
    data.resize(tape.data_bytes() / 8);
    fields.resize(tape.header().fields_bytes / 8);
  }
  static uint8_t* bytes(std::vector<uint64_t>& v) { return reinterpret_cast<uint8_t*>(v.data()); }
  std::unique_ptr<Tape> attach() {
    auto tape = std::make_unique<Tape>(bytes(control), -1);
    tape->attach_data(bytes(data));
    tape->attach_fields(bytes(fields));
    tape->set_field_leaves(rows::field_leaves());
    return tape;
  }
};

void write(Shared* shared, uint64_t number) {
  const auto tape = shared->attach();
  Writer writer(*tape, number);
  rows::Script script(number, shared->ids, shared->capacity + 2, number * 977);
  rows::Random random(number);
  std::vector<Row> records;
  for (uint64_t n = 1; !shared->stop.load(); ++n) {
    const uint64_t lanes = script.next(&records);
    const Rows rows = rows::as_rows(records);
    const rows::Fields fields = rows::fields_of(number, n, 0);
    const uint64_t mask = random.below(3) == 0 ? 0 : rows::kGivenByWriter;
    writer.start(rows);
    writer.add_lanes(0, rows.n, lanes, rows::marks(records, shared->ids), Continue::if_open,
                     Given{rows::bytes_of(fields), &mask, sizeof(fields)});
    Hold hold(*tape, kTimeout);
    writer.commit();
    shared->written += std::min<uint64_t>(records.size(), shared->capacity);
    shared->given += mask != 0 ? 1 : 0;
  }
}

// Rows, the trajectories that they are of, and those's newest runs; of rows that are there.
struct Sample {
  std::vector<int64_t> seqs, ordinals;
  std::vector<Row> rows;

  Sample(const Tape& tape, const View& view, rows::Random* random, size_t n) {
    const Snapshot& s = view.at();
    if (s.tail >= s.head) return;
    std::vector<int64_t> all(n);
    for (int64_t& seq : all) seq = static_cast<int64_t>(s.tail + random->below(s.head - s.tail));
    std::vector<int64_t> of(n);
    view.trajectories_of(all.data(), n, of.data());
    std::vector<Row> found(n);
    const uint64_t tail =
        gather_records(tape, all.data(), n, reinterpret_cast<uint8_t*>(found.data()));
    for (size_t i = 0; i < n; ++i) {
      if (static_cast<uint64_t>(all[i]) < tail || of[i] < 0) continue;
      seqs.push_back(all[i]);
      ordinals.push_back(of[i]);
      rows.push_back(found[i]);
    }
  }
};

// Puts the trajectory's name into its fields, some at a time.
void change(Shared* shared, uint64_t number) {
  const auto tape = shared->attach();
  View view(*tape);
  rows::Random random(number + 77);
  while (!shared->stop.load()) {
    view.refresh();
    const Sample sample(*tape, view, &random, 1 + random.below(6));
    Hold hold(*tape, kTimeout);
    view.refresh();
    for (size_t i = 0; i < sample.rows.size(); ++i) {
      const uint64_t run = view.last_run(static_cast<uint64_t>(sample.ordinals[i]));
      if (run == kNone) {
        ++shared->too_late;
        continue;
      }
      // Away and back again, so that there is always something to change; now and then faster than
      // a reader can copy it.
      const uint64_t times = random.below(16) == 0 ? 400 : 1 + random.below(2);
      for (uint64_t k = 0; k < times; ++k) {
        const uint64_t traj = k % 2 == 0 ? 0 : sample.rows[i].word[rows::traj];
        rows::Fields fields = rows::fields_of(0, 0, traj);
        if (traj == 0) fields.traj_check = 0;
        tape->write_fields(run, rows::bytes_of(fields), rows::kGivenLater);
        ++shared->changed;
      }
    }
    tape->fields_changed();
  }
}

// What is read is whole and its trajectory's. One that keeps up by the log knows, under the lock,
// what there is.
void read(Shared* shared, uint64_t number) {
  const auto tape = shared->attach();
  View view(*tape);
  rows::Random random(number + 1000);
  struct Known {
    uint64_t run;
    rows::Fields fields;
  };
  std::map<int64_t, Known> known;
  uint64_t seen = 0;
  const auto keep_up = [&] {
    view.refresh();
    std::vector<uint64_t> changed;
    uint64_t now = 0;
    const bool all = !tape->changed_fields(seen, &now, &changed);
    shared->lagged += all ? 1 : 0;
    seen = now;
    std::sort(changed.begin(), changed.end());
    std::vector<int64_t> ordinals;
    view.ordinals(&ordinals, Window{}, SliceSpec{});
    std::map<int64_t, Known> next;
    for (const int64_t ordinal : ordinals) {
      const uint64_t run = view.last_run(static_cast<uint64_t>(ordinal));
      const auto old = known.find(ordinal);
      const bool touched = std::binary_search(changed.begin(), changed.end(), run);
      if (!all && !touched && old != known.end() && old->second.run == run) {
        next[ordinal] = old->second;
        continue;
      }
      Known k{run, {}};
      if (tape->read_fields(run, reinterpret_cast<uint8_t*>(&k.fields))) next[ordinal] = k;
      ++shared->read;
    }
    known.swap(next);
  };
  while (!shared->stop.load()) {
    keep_up();
    const Sample sample(*tape, view, &random, 16);
    for (size_t i = 0; i < sample.rows.size(); ++i) {
      const auto k = known.find(sample.ordinals[i]);
      if (k == known.end()) continue;
      rows::check_fields(k->second.fields, sample.rows[i]);
      rows::Fields now;
      for (int times = 0; times < 50; ++times)
        if (tape->read_fields(k->second.run, reinterpret_cast<uint8_t*>(&now)))
          rows::check_fields(now, sample.rows[i]);
    }
    if (random.below(8) != 0) continue;
    Hold hold(*tape, kTimeout);
    keep_up();
    for (const auto& item : known) {
      rows::Fields now;
      if (!tape->read_fields(item.second.run, reinterpret_cast<uint8_t*>(&now)))
        fail("fields that are gone under the lock");
      if (std::memcmp(&now, &item.second.fields, sizeof(now)) != 0)
        fail("a reader missed a change of fields");
      ++shared->known;
    }
  }
}

void round(uint64_t capacity, bool ids, double seconds) {
  Shared shared(capacity, ids);
  std::vector<std::thread> threads;
  for (uint64_t w = 1; w <= 2; ++w) threads.emplace_back(write, &shared, w);
  for (uint64_t c = 0; c < 2; ++c) threads.emplace_back(change, &shared, c);
  for (uint64_t r = 0; r < 2; ++r) threads.emplace_back(read, &shared, r);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  shared.stop = true;
  for (std::thread& t : threads) t.join();
  if (shared.attach()->snapshot().head != shared.written.load()) fail("appends were lost");
  std::printf(
      "capacity %4llu %-5s: %llu appends with fields, %llu changes (%llu too late), %llu read, "
      "%llu times all, %llu compared with the lock\n",
      (unsigned long long)capacity, ids ? "ids" : "lanes", (unsigned long long)shared.given,
      (unsigned long long)shared.changed, (unsigned long long)shared.too_late,
      (unsigned long long)shared.read, (unsigned long long)shared.lagged,
      (unsigned long long)shared.known);
  std::fflush(stdout);
  if (capacity >= 64 && (shared.changed == 0 || shared.read == 0 || shared.known == 0))
    fail("nobody saw a change: the test is void");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;
  for (const bool ids : {false, true})
    for (const uint64_t capacity : {5, 64, 300}) round(capacity, ids, 1 * scale);
  return 0;
}
