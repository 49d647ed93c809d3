// "Killed at any store" of an append, or of a change of fields. Every state that the memory goes
// through is checked: as readers find it before anybody took the lock, after the repair, after a
// repair that was itself killed at each of its stores, and after the next append. Besides, children
// are really killed at random instructions, so that the lock's own recovery (EOWNERDEAD) is part of
// it.
#include <chrono>
#include <map>
#include <set>

#include "killpoints.h"

namespace {

using namespace killpoints;
using Clock = std::chrono::steady_clock;

// Of the runs from one on, which both have.
bool same_fields(const Content& a, const Content& b, uint64_t from) {
  if (a.fields.empty() && b.fields.empty()) return true;
  for (uint64_t n = from; n < a.index_head && n < b.index_head; ++n)
    if (std::memcmp(&a.fields[n - a.index_tail], &b.fields[n - b.index_tail],
                    sizeof(rows::Fields)) != 0)
      return false;
  return true;
}

// Apart from the clock's time: an append that is done again has another one.
bool same(const Content& a, const Content& b) {
  if (a.head != b.head || a.tail != b.tail || a.index_head != b.index_head ||
      a.index_tail != b.index_tail || a.trajectories != b.trajectories ||
      a.runs.size() != b.runs.size() || a.rows.size() != b.rows.size())
    return false;
  for (int i = 0; i < 2; ++i)
    if (a.producer_seq[i] != b.producer_seq[i]) return false;
  for (size_t i = 0; i < a.runs.size(); ++i)
    for (int k = 0; k < 12; ++k)
      if (k != W::time_ns && a.runs[i].w[k] != b.runs[i].w[k]) return false;
  if (!same_fields(a, b, a.index_tail)) return false;
  return a.rows.empty() ||
         std::memcmp(a.rows.data(), b.rows.data(), a.rows.size() * rows::kBytes) == 0;
}

// A repaired tape, compared with what was there before the append and what would be after it.
void check_outcome(const Content& now, const Content& before, const Content& after) {
  if (now.head == after.head) {
    if (!same(now, after)) fail("committed, but not all of it is there");
    return;
  }
  if (now.head != before.head) fail("a head that nobody stored");
  if (now.index_head != before.index_head) fail("a killed append left entries");
  if (now.trajectories != before.trajectories) fail("a killed append took trajectory numbers");
  if (now.tail < before.tail || now.tail > after.tail) fail("a tail that nobody asked for");
  if (now.index_tail < before.index_tail || now.index_tail > after.index_tail)
    fail("an index tail that nobody asked for");
  for (int i = 0; i < 2; ++i)
    if (now.producer_seq[i] != before.producer_seq[i])
      fail("a killed append counts for its producer");
  for (uint64_t n = now.index_tail; n < now.index_head; ++n) {
    const uint64_t* a = now.runs[n - now.index_tail].w;
    const uint64_t* b = before.runs[n - before.index_tail].w;
    for (int k = 0; k < 12; ++k) {
      // The newest run may have been marked as cut when it was put back.
      const uint64_t cut = k == 1 && n + 1 == now.index_head ? uint64_t{kCut} : 0;
      if ((a[k] & ~cut) != (b[k] & ~cut)) fail("an entry was not put back");
    }
  }
  if (!same_fields(now, before, now.index_tail)) fail("a killed append changed fields");
  const size_t gone = now.tail - before.tail;
  if (!now.rows.empty() &&
      std::memcmp(now.rows.data(), &before.rows[gone], now.rows.size() * rows::kBytes) != 0)
    fail("committed rows changed");
}

// ---- one append, killed everywhere -------------------------------------------------------------

struct Counts {
  uint64_t appends = 0, states = 0, instructions = 0, kills = 0, repairs = 0, undone = 0;
  uint64_t changes = 0, half_changed = 0, set_kept = 0;  // of fields
};

struct Scene {
  uint64_t capacity;
  bool ids, producers, fields;
  uint64_t seed;
};

class Stage {
 public:
  Stage(const Scene& scene, Counts* counts)
      : scene_(scene),
        counts_(counts),
        memory_(scene.capacity, scene.fields),
        tape_(memory_.attach()),
        random_(scene.seed) {
    for (uint64_t w = 0; w < 2; ++w) {
      writers_.push_back(std::make_unique<Writer>(*tape_, w + 1));
      scripts_.emplace_back(w + 1, scene.ids, scene.capacity + 2, scene.seed * 7 + w);
    }
    for (uint64_t& s : rng_) s = random_.next();
  }

  // Some appends, then one that is killed everywhere, and so on with the history.
  void run(int appends, int kills) {
    for (int i = 0; i < appends; ++i) {
      const int skip = static_cast<int>(random_.below(4));
      for (int k = 0; k < skip; ++k) prepare(random_.below(2))();
      const size_t w = random_.below(2);
      attack(prepare(w), 1 - w, kills);
      check_set();
      if (scene_.fields) attack_change(kills);
    }
  }

 private:
  // The next append of some writer, ready to be done with the lock any number of times in children
  // and once here.
  std::function<void()> prepare(size_t w) {
    const uint64_t lanes = scripts_[w].next(&records_);
    const bool producers = scene_.producers;
    if (producers) {
      // One run, straight to the tape, with a producer's number.
      for (Row& r : records_) {
        r.word[rows::traj] = (w + 1) << 32 | produced_[w];
        r.word[rows::step] = r.word[rows::pos] + tracks_[w].steps;
        r.word[rows::done] = 0;
      }
      const bool starts = !tracks_[w].known || (tracks_[w].flags & kEnded) != 0;
      if (starts) {
        ++produced_[w];
        for (Row& r : records_) {
          r.word[rows::traj] = (w + 1) << 32 | produced_[w];
          r.word[rows::step] = r.word[rows::pos];
        }
      }
      const bool ends = random_.below(3) == 0;
      records_.back().word[rows::done] = ends;
      for (Row& r : records_) rows::seal(&r);
      run_ = Run{&tracks_[w],
                 records_.size(),
                 (starts ? kBegins : uint64_t{0}) | (ends ? kTerminated : uint64_t{0}),
                 starts,
                 static_cast<double>(records_.size()),
                 -1,
                 -1};
      if (const Given fields = give(w + 1, 1)) fields.to(&run_, 0, records_.size() - 1);
      run_.lane = kFirstLane + w;  // as of a producer that a server writes for
      ++items_[w];
      return [this, w] {
        Append a;
        a.rows = rows::as_rows(records_);
        a.runs = &run_;
        a.n_runs = 1;
        a.writer = w + 1;
        a.producer = 100 + w;
        a.producer_seq = items_[w];
        Hold hold(*tape_, 10);
        tape_->append(a);
      };
    }
    const Rows given = rows::as_rows(records_);
    writers_[w]->start(given);
    writers_[w]->add_lanes(0, given.n, lanes, rows::marks(records_, scene_.ids), Continue::if_open,
                           give(w + 1, lanes));
    return [this, w] {
      Hold hold(*tape_, 10);
      writers_[w]->commit();
    };
  }

  // Fields for some appends: the writer's, of some lanes.
  Given give(uint64_t writer, uint64_t lanes) {
    if (!scene_.fields || random_.below(3) == 0) return {};
    given_.clear();
    masks_.clear();
    for (uint64_t i = 0; i < lanes; ++i) {
      given_.push_back(rows::fields_of(writer, ++numbers_, 0));
      masks_.push_back(i == 0 || random_.below(2) == 0 ? rows::kGivenByWriter : 0);
    }
    return {rows::bytes_of(given_[0]), masks_.data(), sizeof(rows::Fields),
            lanes > 1 ? Given::For::lanes : Given::For::all};
  }

  // A change of some trajectory's fields, killed everywhere: it is there whole or not at all, and
  // if it is, the log has it.
  void attack_change(int kills) {
    View view(*tape_);
    view.refresh();
    const Snapshot& s = view.at();
    if (s.tail >= s.head) return;
    const auto seq = static_cast<int64_t>(s.tail + random_.below(s.head - s.tail));
    int64_t ordinal = -1;
    view.trajectories_of(&seq, 1, &ordinal);
    const uint64_t number = view.last_run(static_cast<uint64_t>(ordinal));
    Row row;
    gather_records(*tape_, &seq, 1, reinterpret_cast<uint8_t*>(&row));
    // Something else than what it has, or what it has: then nothing is to be done.
    const bool later = random_.below(4) != 0;
    const rows::Fields fields =
        rows::fields_of(row.word[rows::writer], ++numbers_, row.word[rows::traj]);
    const auto change = [&] {
      Hold hold(*tape_, 10);
      tape_->write_fields(number, rows::bytes_of(fields),
                          later ? rows::kGivenLater : rows::kGivenByWriter);
    };
    const Image start = memory_.image();
    const Content before = read(memory_, *tape_);
    const uint64_t since = tape_->fields_changes();
    if (since + 2 * rows::kLongest > Memory::kLogged) return;
    uint64_t instructions = 0;
    const std::vector<Image> states = trace(memory_, change, &instructions);
    const Content after = read(memory_, *tape_);
    const auto check = [&] {
      View fresh(*tape_);
      check_readers(*tape_, &fresh, rng_);
      const bool pending = tape_->header().fields_pending != 0;
      counts_->half_changed += pending ? 1 : 0;
      Hold hold(*tape_, 5);
      const Content now = read(memory_, *tape_);
      if (!same(now, before) && !same(now, after)) fail("a killed change of fields left a part");
      std::vector<uint64_t> noted;
      uint64_t count = 0;
      if (!tape_->changed_fields(since, &count, &noted)) fail("a log that is too short");
      for (const uint64_t n : noted)
        if (n != number) fail("the log has a change that nobody made");
      if (!same(now, before) && noted.empty()) fail("the log misses a change");
      if (tape_->header().fields_pending != 0) fail("a change is pending after the repair");
    };
    for (const Image& state : states) {
      memory_.load_unlocked(state);
      check();
    }
    // The repair itself, killed at every store.
    memory_.load_unlocked(states[states.size() / 2 + random_.below(states.size() / 2)]);
    uint64_t ignored = 0;
    for (const Image& state : trace(memory_, [this] { Hold hold(*tape_, 10); }, &ignored)) {
      memory_.load_unlocked(state);
      check();
      ++counts_->repairs;
    }
    for (int i = 0; i < kills; ++i) {
      memory_.load(start);
      const pid_t pid = killpoints::start(change);
      for (uint64_t k = random_.below(instructions); k > 0 && step(pid); --k) {
      }
      finish(pid);
      check();
      ++counts_->kills;
    }
    counts_->changes += same(before, after) ? 0 : 1;
    memory_.load(start);
    change();
    if (later) set_later_.insert(row.word[rows::traj]);
  }

  // What was set stays, whether or not the rows did that it was set on: every trajectory's newest
  // run has it.
  void check_set() {
    const Content now = read(memory_, *tape_);
    std::map<uint64_t, uint64_t> newest;
    for (uint64_t n = now.index_tail; n < now.index_head && !now.fields.empty(); ++n) {
      const uint64_t* w = now.runs[n - now.index_tail].w;
      const uint64_t last = w[W::first] + run_rows(w[W::steps_flags]) - 1;
      if (last >= now.tail) newest[now.rows[last - now.tail].word[rows::traj]] = n;
    }
    for (const auto& [traj, n] : newest) {
      if (set_later_.count(traj) == 0) continue;
      if (now.fields[n - now.index_tail].traj != traj) fail("fields that were set are forgotten");
      const uint64_t* w = now.runs[n - now.index_tail].w;
      counts_->set_kept += w[W::prev] == kNone && w[W::before] != 0 ? 1 : 0;
    }
  }

  // A writer that lives goes on with what it has open, in a process of its own.
  void go_on(size_t w) {
    const pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) {
      prepare(w)();
      check_set();
      std::_Exit(0);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || status != 0) fail("a writer could not go on");
  }

  void attack(const std::function<void()>& append, size_t other, int kills) {
    const Image start = memory_.image();
    const Content before = read(memory_, *tape_);
    check_consistent(before, scene_.capacity);

    uint64_t instructions = 0;
    const std::vector<Image> states = trace(memory_, append, &instructions);
    const Content after = read(memory_, *tape_);
    check_consistent(after, scene_.capacity);
    ++counts_->appends;
    counts_->states += states.size();
    counts_->instructions += instructions;

    for (const Image& state : states) {
      memory_.load_unlocked(start);
      View old(*tape_);  // a reader that knew the tape before the append
      old.refresh();
      memory_.load_unlocked(state);
      check_readers(*tape_, &old, rng_);
      View fresh(*tape_);
      check_readers(*tape_, &fresh, rng_);
      recover(before, after, &old);
      if (scene_.fields) go_on(other);
    }
    // The repair itself, killed at every store: of a state in the middle of the entries.
    const Image& middle = states[states.size() / 2 + random_.below(states.size() / 2)];
    memory_.load_unlocked(middle);
    uint64_t ignored = 0;
    const std::vector<Image> repairs = trace(memory_, [this] { Hold hold(*tape_, 10); }, &ignored);
    for (const Image& state : repairs) {
      memory_.load_unlocked(state);
      View fresh(*tape_);
      check_readers(*tape_, &fresh, rng_);
      recover(before, after, &fresh);
      ++counts_->repairs;
    }
    // And truly killed, so that the lock has a dead holder.
    for (int i = 0; i < kills; ++i) {
      memory_.load(start);
      const pid_t pid = killpoints::start(append);
      for (uint64_t k = random_.below(instructions); k > 0 && step(pid); --k) {
      }
      finish(pid);
      View fresh(*tape_);
      check_readers(*tape_, &fresh, rng_);
      recover(before, after, &fresh);
      if (scene_.fields) go_on(other);
      ++counts_->kills;
    }
    memory_.load(start);
    append();  // the history goes on
  }

  // The next one takes the lock: everything must be as before or as after, and stay usable.
  void recover(const Content& before, const Content& after, View* reader) {
    const bool pending = tape_->header().undo_head == tape_->header().head;
    {
      Hold hold(*tape_, 5);
      const Content now = read(memory_, *tape_);
      check_consistent(now, scene_.capacity);
      check_outcome(now, before, after);
      if (pending) {
        ++counts_->undone;
        if (now.head != before.head) fail("undone, though it was committed");
        tape_->repair();  // once more changes nothing
        if (!same(read(memory_, *tape_), now)) fail("a second repair changed something");
      }
    }
    check_readers(*tape_, reader, rng_);
    // A new writer appends: a trajectory of its own, at the head.
    Writer writer(*tape_, 9);
    rows::Script script(9, scene_.ids, 3, counts_->states);
    std::vector<Row> records;
    const uint64_t lanes = script.next(&records);
    const Rows given = rows::as_rows(records);
    writer.start(given);
    writer.add_lanes(0, given.n, lanes, rows::marks(records, scene_.ids), Continue::if_open);
    Hold hold(*tape_, 5);
    const uint64_t head = tape_->header().head;
    if (writer.commit() != head) fail("an append that is not at the head");
    const Content now = read(memory_, *tape_);
    check_consistent(now, scene_.capacity);
    check_readers(*tape_, reader, rng_);
  }

  Scene scene_;
  Counts* counts_;
  Memory memory_;
  std::unique_ptr<Tape> tape_;
  rows::Random random_;
  std::vector<std::unique_ptr<Writer>> writers_;
  std::vector<rows::Script> scripts_;
  std::vector<Row> records_;
  Track tracks_[2];
  Run run_{};
  uint64_t produced_[2] = {0, 0}, items_[2] = {0, 0}, numbers_ = 0;
  std::vector<rows::Fields> given_;
  std::vector<uint64_t> masks_;
  std::set<uint64_t> set_later_;  // trajectories whose fields were changed
  uint64_t rng_[4];
};

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 8;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  Counts counts;
  for (uint64_t seed = 1; seed <= 3 || Clock::now() < deadline; ++seed) {
    Scene scene{};
    scene.capacity = 4 + seed % 7;
    scene.ids = seed % 2 == 0;
    scene.producers = seed % 3 == 2;
    scene.fields = seed % 5 != 3;
    scene.seed = seed;
    Stage(scene, &counts).run(6, 3);
  }
  std::printf(
      "%llu appends, %llu instructions stepped, %llu states and %llu states of repairs checked, "
      "%llu of them undone, %llu processes killed; %llu changes of fields, %llu states of them "
      "repaired, %llu runs with what was set on evicted ones\n",
      (unsigned long long)counts.appends, (unsigned long long)counts.instructions,
      (unsigned long long)counts.states, (unsigned long long)counts.repairs,
      (unsigned long long)counts.undone, (unsigned long long)counts.kills,
      (unsigned long long)counts.changes, (unsigned long long)counts.half_changed,
      (unsigned long long)counts.set_kept);
  if (counts.appends < 10 || counts.undone == 0) fail("too few appends: the test is void");
  if (counts.changes == 0 || counts.half_changed == 0 || counts.set_kept == 0)
    fail("too few changes: the test is void");
  return 0;
}
