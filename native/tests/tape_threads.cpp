// Writers and readers in threads over one tape in plain memory, each with a handle of its own, as
// processes have. Run under ThreadSanitizer; in other builds, where row copies are plain, it checks
// what readers accept.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "native/kernels/rng.h"
#include "native/tape/gather.h"
#include "native/tape/nstep.h"
#include "native/tape/view.h"
#include "rows.h"

namespace {

using namespace contig;
using rows::fail;
using rows::Row;

constexpr double kTimeout = 120;

struct Shared {
  std::vector<uint64_t> control, data;  // words, for alignment
  uint64_t capacity;
  bool ids;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> written{0}, rows_seen{0}, slices{0}, linked{0}, complete{0}, entries{0},
      scans{0}, locked{0};

  Shared(uint64_t n, bool with_ids)
      : control(Tape::control_bytes(n) / 8), capacity(n), ids(with_ids) {
    Tape::format(bytes(control), n);
    Tape tape(bytes(control), -1);
    Hold hold(tape, kTimeout);
    if (!tape.publish("{}", 2, rows::kBytes)) fail("publish");
    data.resize(tape.data_bytes() / 8);
  }
  static uint8_t* bytes(std::vector<uint64_t>& v) { return reinterpret_cast<uint8_t*>(v.data()); }
  std::unique_ptr<Tape> attach() {
    auto tape = std::make_unique<Tape>(bytes(control), -1);
    tape->attach_data(bytes(data));
    return tape;
  }
};

void write(Shared* shared, uint64_t number) {
  const auto tape = shared->attach();
  Writer writer(*tape, number);
  rows::Script script(number, shared->ids, shared->capacity + 2, number * 977);
  rows::Random random(number);
  std::vector<Row> records;
  std::vector<Column> columns;
  uint64_t last = 0;
  for (uint64_t n = 0; !shared->stop.load(); ++n) {
    const uint64_t lanes = script.next(&records);
    const Rows given =
        random.below(2) != 0 ? rows::as_rows(records) : rows::as_columns(records, &columns);
    writer.start(given);
    writer.add_lanes(0, given.n, lanes, rows::marks(records, shared->ids), Continue::if_open);
    uint64_t first;
    {
      Hold hold(*tape, kTimeout);
      first = writer.commit();
      if (number == 1 && n % 4096 == 4095) tape->clear();
    }
    if (n > 0 && first < last) fail("seqs that go back");
    const uint64_t kept = std::min<uint64_t>(records.size(), shared->capacity);
    last = first + kept;
    shared->written += kept;
  }
}

class Reader {
 public:
  Reader(Shared* shared, uint64_t number)
      : shared_(shared), tape_(shared->attach()), view_(*tape_), random_(number + 1000) {
    for (uint64_t& s : state_) s = random_.next();
  }

  void run() {
    while (!shared_->stop.load()) {
      view_.refresh();
      draw_rows();
      SliceSpec spec;
      spec.length = 1 + random_.below(6);
      spec.strict = random_.below(4) == 0;
      spec.over_steps = random_.below(2) == 0;
      spec.burn_in = random_.below(3);
      spec.span_left = random_.below(6) == 0 ? 2 : 0;
      spec.span_right = random_.below(6) == 0 ? 2 : 0;
      draw_slices(spec, false);
      SliceSpec whole;
      whole.length = rows::kLongest;
      whole.complete_only = true;
      draw_slices(whole, true);
      others();
    }
  }

  // The index entry by entry, and the tape row by row.
  void run_index() {
    while (!shared_->stop.load()) {
      const Snapshot s = tape_->snapshot();
      for (uint64_t n = s.index_tail; n < s.index_head; ++n) entry(n, s.head);
      scan();
    }
  }

 private:
  uint64_t gather(const std::vector<int64_t>& seqs) {
    out_.resize(seqs.size());
    return gather_records(*tape_, seqs.data(), seqs.size(),
                          reinterpret_cast<uint8_t*>(out_.data()));
  }

  void draw_rows() {
    std::vector<int64_t> seqs(16);
    if (!view_.draw_rows(Rng(state_), Window{}, seqs.data(), seqs.size())) return;
    const uint64_t tail = gather(seqs);
    for (size_t i = 0; i < seqs.size(); ++i) {
      if (static_cast<uint64_t>(seqs[i]) < tail) continue;
      if (!rows::good(out_[i])) fail("a torn row", &out_[i]);
      ++shared_->rows_seen;
    }
  }

  // Slices none of whose rows was evicted meanwhile must be right.
  void check(const Slices& slices, uint64_t tail, bool whole, bool all) {
    size_t at = 0;
    for (const int64_t signed_length : slices.lengths) {
      const auto length = static_cast<size_t>(signed_length);
      bool lost = false;
      for (size_t i = at; i < at + length; ++i)
        lost = lost || static_cast<uint64_t>(slices.seqs[i]) < tail;
      if (lost && all) fail("a row lost under the lock");
      if (!lost) {
        rows::check_slice(&out_[at], length);
        ++shared_->slices;
        for (size_t i = at + 1; i < at + length; ++i)
          if (slices.seqs[i] != slices.seqs[i - 1] + 1) ++shared_->linked;
        if (whole) {
          if (out_[at].word[rows::step] != 0 || out_[at + length - 1].word[rows::done] == 0)
            fail("complete_only: a part of a trajectory", &out_[at], &out_[at + length - 1]);
          ++shared_->complete;
        }
      }
      at += length;
    }
  }

  void draw_slices(const SliceSpec& spec, bool whole) {
    Slices slices;
    if (view_.draw_slices(Rng(state_), Window{}, spec, 6, &slices)) {
      check(slices, gather(slices.seqs), whole, false);
      return;
    }
    if (random_.below(8) != 0) return;
    // The reader's last resort: with the lock nothing can be lost.
    Slices again;
    Hold hold(*tape_, kTimeout);
    view_.refresh();
    ++shared_->locked;
    if (view_.draw_slices(Rng(state_), Window{}, spec, 6, &again)) {
      check(again, gather(again.seqs), whole, true);
    } else if (!whole && !spec.strict && view_.at().head > view_.at().tail) {
      fail("rows under the lock, but none to draw");
    }
  }

  void others() {
    const Snapshot& s = view_.at();
    if (s.tail >= s.head) return;
    std::vector<int64_t> seqs(8);
    for (int64_t& seq : seqs) seq = static_cast<int64_t>(s.tail + random_.below(s.head - s.tail));
    Slices slices;
    view_.follow(seqs.data(), seqs.size(), 4, &slices);
    check(slices, gather(slices.seqs), false, false);
    fold(slices);
    SliceSpec spec;
    spec.length = 3;
    spec.strict = true;
    std::vector<uint8_t> valid(seqs.size());
    Slices from;
    view_.slices_from(seqs.data(), seqs.size(), Window{}, spec, valid.data(), &from);
    for (const int64_t length : from.lengths)
      if (length != 3) fail("strict slices of another length");
    check(from, gather(from.seqs), false, false);
    if (random_.below(16) == 0) {
      keep_starts(spec);
      std::vector<int64_t> ordinals;
      view_.ordinals(&ordinals, Window{}, spec);
      for (size_t i = 1; i < ordinals.size(); ++i)
        if (ordinals[i] <= ordinals[i - 1]) fail("trajectories out of order");
      Slices each;
      for (const int64_t ordinal : ordinals)
        view_.slice_of(Rng(state_), Window{}, spec, static_cast<uint64_t>(ordinal), &each);
      check(each, gather(each.seqs), false, false);
    }
  }

  // Keeps the set of valid starts by what changed; with the lock, it must be the rows that are.
  void keep_starts(const SliceSpec& spec) {
    Changes c;
    view_.changed_rows(Window{}, spec, token_, &c);
    token_ = c.token;
    if (c.all) starts_.clear();
    for (const int64_t seq : c.off) starts_.erase(seq);
    starts_.insert(c.on.begin(), c.on.end());
    starts_.erase(starts_.begin(), starts_.lower_bound(static_cast<int64_t>(view_.at().tail)));
    if (held_ || random_.below(4) != 0) return;
    Hold hold(*tape_, kTimeout);
    held_ = true;
    view_.refresh();
    keep_starts(spec);
    held_ = false;
    const Snapshot& s = view_.at();
    std::vector<int64_t> seqs;
    for (uint64_t seq = s.tail; seq < s.head; ++seq) seqs.push_back(static_cast<int64_t>(seq));
    std::vector<uint8_t> valid(seqs.size());
    Slices from;
    view_.slices_from(seqs.data(), seqs.size(), Window{}, spec, valid.data(), &from);
    for (size_t i = 0; i < seqs.size(); ++i)
      if ((valid[i] != 0) != (starts_.count(seqs[i]) != 0)) fail("starts kept wrongly");
  }

  // Groups of rows that follow one another, folded: the sum of their step numbers.
  void fold(const Slices& groups) {
    Fold fold;
    fold.discount.assign(4, 1.0);
    fold.reward = {'u', rows::step * sizeof(uint64_t), sizeof(uint64_t), 1};
    fold.done = {'u', rows::done * sizeof(uint64_t), sizeof(uint64_t)};
    const size_t n = groups.lengths.size();
    std::vector<int64_t> steps(n), firsts;
    std::vector<float> sums(n);
    std::vector<uint64_t> last(n);
    Folded out;
    out.steps = steps.data();
    out.rewards = reinterpret_cast<uint8_t*>(sums.data());
    out.last = {Target{reinterpret_cast<uint8_t*>(last.data()), rows::step * sizeof(uint64_t),
                       sizeof(uint64_t)}};
    const uint64_t folded_tail =
        fold_rows(*tape_, fold, groups.seqs.data(), groups.lengths.data(), n, out);
    for (size_t i = 0, at = 0; i < n; at += static_cast<size_t>(groups.lengths[i++]))
      firsts.push_back(groups.seqs[at]);
    const uint64_t tail = gather(firsts);
    if (folded_tail > tail) fail("a tail that goes back");
    for (size_t i = 0; i < n; ++i) {
      if (static_cast<uint64_t>(firsts[i]) < tail) continue;
      float want = 0;
      for (int64_t k = 0; k < steps[i]; ++k)
        want += static_cast<float>(out_[i].word[rows::step] + static_cast<uint64_t>(k));
      const uint64_t end = out_[i].word[rows::step] + static_cast<uint64_t>(steps[i]) - 1;
      if (steps[i] < 1 || steps[i] > groups.lengths[i] || sums[i] != want || last[i] != end)
        fail("n steps of other rows", &out_[i]);
    }
  }

  void entry(uint64_t number, uint64_t head) {
    using W = EntryWords;
    uint64_t w[W::count];
    switch (tape_->read_entry_words(number, head, w)) {
      case Tape::Read::gone:
        return;
      case Tape::Read::unsettled: {
        Hold hold(*tape_, kTimeout);
        if (tape_->read_entry_words(number, head, w) == Tape::Read::unsettled)
          fail("an entry that is unsettled under the lock");
        return;
      }
      case Tape::Read::ok:
      case Tape::Read::grew:
        break;
    }
    ++shared_->entries;
    const uint64_t first = w[W::first], steps = run_rows(w[W::steps_flags]), before = w[W::before];
    double ret;
    std::memcpy(&ret, &w[W::ret], 8);
    if (steps == 0) fail("an entry without rows");
    if (ret != static_cast<double>(before + steps)) fail("an entry whose return is not its steps");
    if (first + steps > tape_->snapshot().head) fail("an entry beyond the head");
    std::vector<int64_t> seqs;
    for (uint64_t i = 0; i < steps; ++i) seqs.push_back(static_cast<int64_t>(first + i));
    const uint64_t tail = gather(seqs);
    for (uint64_t i = 0; i < steps; ++i) {
      if (first + i < tail) continue;
      const Row& r = out_[i];
      if (!rows::good(r)) fail("a torn row", &r);
      if (r.word[rows::step] != before + i || r.word[rows::writer] != w[W::writer])
        fail("an entry of other rows", &r);
      const bool ended = (w[W::steps_flags] & (kTerminated | kTruncated)) != 0;
      if (i + 1 == steps && ended != (r.word[rows::done] != 0))
        fail("an entry that ends where its rows do not", &r);
    }
  }

  void scan() {
    const Snapshot s = tape_->snapshot();
    if (s.tail >= s.head) return;
    std::vector<int64_t> seqs;
    for (uint64_t seq = s.tail; seq < s.head; ++seq) seqs.push_back(static_cast<int64_t>(seq));
    if (seqs.size() > shared_->capacity) fail("more rows than the capacity");
    const uint64_t tail = std::max(gather(seqs), s.tail);
    if (tail >= s.head) return;
    const size_t lost = tail - s.tail;
    rows::check_appends(&out_[lost], seqs.size() - lost, shared_->capacity);
    ++shared_->scans;
  }

  Shared* shared_;
  std::unique_ptr<Tape> tape_;
  View view_;
  rows::Random random_;
  std::set<int64_t> starts_;  // valid ones, kept by their changes
  uint64_t token_ = 0;
  bool held_ = false;
  uint64_t state_[4];
  std::vector<Row> out_;
};

void round(uint64_t capacity, bool ids, double seconds) {
  Shared shared(capacity, ids);
  std::vector<std::thread> threads;
  for (uint64_t w = 1; w <= 3; ++w) threads.emplace_back(write, &shared, w);
  for (uint64_t r = 0; r < 2; ++r) threads.emplace_back([&shared, r] { Reader(&shared, r).run(); });
  threads.emplace_back([&shared] { Reader(&shared, 2).run_index(); });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const auto void_yet = [&] {
    return capacity >= 64 && (shared.slices == 0 || shared.linked == 0 || shared.complete == 0 ||
                              shared.entries == 0 || shared.scans == 0 || shared.rows_seen == 0);
  };
  for (int i = 0; i < 1000 && void_yet(); ++i)  // a busy machine
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  shared.stop = true;
  for (std::thread& t : threads) t.join();
  const Snapshot s = shared.attach()->snapshot();
  if (s.head != shared.written.load()) fail("appends were lost");
  std::printf(
      "capacity %4llu %-5s: %8llu rows written; read %llu rows, %llu slices (%llu links, %llu "
      "complete), %llu entries, %llu scans, %llu times with the lock\n",
      (unsigned long long)capacity, ids ? "ids" : "lanes", (unsigned long long)shared.written,
      (unsigned long long)shared.rows_seen, (unsigned long long)shared.slices,
      (unsigned long long)shared.linked, (unsigned long long)shared.complete,
      (unsigned long long)shared.entries, (unsigned long long)shared.scans,
      (unsigned long long)shared.locked);
  std::fflush(stdout);
  if (void_yet()) fail("the readers saw nothing: the test is void");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;
  for (const bool ids : {false, true})
    for (const uint64_t capacity : {5, 64, 300}) round(capacity, ids, 1.5 * scale);
  return 0;
}
