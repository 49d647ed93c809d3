// Rows for the native tests: 24 words each, the last of which says whether the others belong
// together. And what one writer appends, endlessly.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "native/tape/writer.h"

namespace rows {

constexpr size_t kWords = 24, kBytes = kWords * 8;
constexpr uint64_t kLongest = 12;  // rows of a trajectory
enum Field { writer, traj, step, append, size, pos, done, reward, filler, check = kWords - 1 };

struct Row {
  uint64_t word[kWords];
};

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline uint64_t sum(const Row& r) {
  uint64_t s = 0;
  for (size_t i = 0; i < check; ++i) s = mix(s + r.word[i] + i);
  return s;
}

inline void seal(Row* r) {
  const double one = 1;
  std::memcpy(&r->word[reward], &one, 8);
  for (size_t i = filler; i < check; ++i)
    r->word[i] = mix(r->word[writer] * 31 + r->word[append] * 7 + r->word[pos] + i);
  r->word[check] = sum(*r);
}

inline bool good(const Row& r) { return r.word[check] == sum(r); }

[[noreturn]] inline void fail(const char* what, const Row* a = nullptr, const Row* b = nullptr) {
  std::fprintf(stderr, "VIOLATION: %s\n", what);
  for (const Row* r : {a, b})
    if (r != nullptr)
      std::fprintf(stderr, "  writer %llu traj %llx step %llu append %llu size %llu pos %llu%s\n",
                   (unsigned long long)r->word[writer], (unsigned long long)r->word[traj],
                   (unsigned long long)r->word[step], (unsigned long long)r->word[append],
                   (unsigned long long)r->word[size], (unsigned long long)r->word[pos],
                   r->word[done] ? " done" : "");
  std::fflush(stderr);
  std::_Exit(1);
}

// xorshift, small enough to have one per thread.
struct Random {
  uint64_t s;
  explicit Random(uint64_t seed) : s(mix(seed + 1) | 1) {}
  uint64_t next() {
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return s * 0x2545F4914F6CDD1Dull;
  }
  uint64_t below(uint64_t n) { return (next() >> 33) % n; }
};

// A single lane is written by single rows and by stretches, which with ids interleave trajectories;
// several lanes, which are others, by steps of all of them.
class Script {
 public:
  static constexpr uint64_t kLanes = 3;

  Script(uint64_t number, bool ids, uint64_t longest_append, uint64_t seed)
      : number_(number), ids_(ids), longest_(longest_append), random_(seed) {
    for (Lane& lane : lanes_) start(&lane);
  }

  // Fills `records` and says how many lanes they are.
  uint64_t next(std::vector<Row>* records) {
    records->clear();
    uint64_t lanes = 1;
    const uint64_t kind = random_.below(4);
    if (kind == 0) {
      push(records, &lanes_[0]);
    } else if (kind == 1 && longest_ >= kLanes) {
      lanes = kLanes;
      for (uint64_t b = 0; b < kLanes; ++b) push(records, &lanes_[kLanes + b]);
    } else {
      const uint64_t n = 1 + random_.below(longest_);
      for (uint64_t i = 0; i < n; ++i) push(records, &lanes_[ids_ ? random_.below(kLanes) : 0]);
    }
    for (size_t i = 0; i < records->size(); ++i) {
      Row& r = (*records)[i];
      r.word[append] = appends_;
      r.word[size] = records->size();
      r.word[pos] = i;
      seal(&r);
    }
    ++appends_;
    return lanes;
  }

 private:
  struct Lane {
    uint64_t traj, step;
  };
  void start(Lane* lane) { *lane = Lane{number_ << 32 | ++trajectories_, 0}; }
  void push(std::vector<Row>* records, Lane* lane) {
    Row r{};
    r.word[writer] = number_;
    r.word[traj] = lane->traj;
    r.word[step] = lane->step++;
    r.word[done] = lane->step >= kLongest || random_.below(8) == 0;
    if (r.word[done] != 0) start(lane);
    records->push_back(r);
  }

  uint64_t number_;
  bool ids_;
  uint64_t longest_;
  Random random_;
  uint64_t appends_ = 0, trajectories_ = 0;
  Lane lanes_[2 * kLanes];
};

// The marks of packed rows, as the binding makes them from the schema.
inline contig::Marks marks(const std::vector<Row>& records, bool ids) {
  const auto* base = reinterpret_cast<const uint8_t*>(records.data());
  const auto mark = [base](Field field, contig::Mark::Kind kind) {
    contig::Mark m;
    m.kind = kind;
    m.data = base + field * 8;
    m.stride = kBytes;
    return m;
  };
  contig::Marks m;
  if (ids) m.id = mark(traj, contig::Mark::i64);
  m.done = mark(done, contig::Mark::u64);
  m.terminated = m.done;
  m.reward = mark(reward, contig::Mark::f64);
  return m;
}

inline contig::Rows as_rows(const std::vector<Row>& records) {
  contig::Rows r;
  r.n = records.size();
  r.records = reinterpret_cast<const uint8_t*>(records.data());
  return r;
}

// Columns instead of records: the same rows from one pointer per word.
inline contig::Rows as_columns(const std::vector<Row>& records, std::vector<contig::Column>* to) {
  to->clear();
  const auto* base = reinterpret_cast<const uint8_t*>(records.data());
  for (size_t i = 0; i < kWords; ++i) to->push_back(contig::Column{base + i * 8, i * 8, 8, kBytes});
  contig::Rows r;
  r.n = records.size();
  r.columns = to->data();
  r.n_columns = to->size();
  return r;
}

// Fields of a trajectory, three leaves: its writer; a number and what goes with it; and, put there
// later, the trajectory and what goes with it. Zeros are what nobody gave.
struct Fields {
  uint64_t writer, number, number_check, traj, traj_check;
};
constexpr uint64_t kGivenByWriter = 3, kGivenLater = 4;  // masks

inline contig::FieldLeaves field_leaves() { return {{0, 8}, {8, 16}, {24, 16}}; }
inline Fields fields_of(uint64_t writer, uint64_t number, uint64_t traj) {
  return Fields{writer, number, mix(number), traj, mix(traj)};
}
inline const uint8_t* bytes_of(const Fields& f) { return reinterpret_cast<const uint8_t*>(&f); }

// Whole, and of nobody else than this row's trajectory.
inline void check_fields(const Fields& f, const Row& row) {
  if (f.number_check != (f.number == 0 ? 0 : mix(f.number))) fail("torn fields", &row);
  if (f.traj_check != (f.traj == 0 ? 0 : mix(f.traj))) fail("torn fields", &row);
  if ((f.writer != 0) != (f.number != 0)) fail("fields of two appends", &row);
  if (f.writer != 0 && f.writer != row.word[writer]) fail("fields of another writer", &row);
  if (f.traj != 0 && f.traj != row.word[traj]) fail("fields of another trajectory", &row);
}

// Steps of one trajectory, one after another.
inline void check_slice(const Row* slice, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!good(slice[i])) fail("a torn row", &slice[i]);
    if (i == 0) continue;
    if (slice[i].word[traj] != slice[0].word[traj] ||
        slice[i].word[writer] != slice[0].word[writer])
      fail("a slice across trajectories", &slice[i - 1], &slice[i]);
    if (slice[i].word[step] != slice[i - 1].word[step] + 1)
      fail("steps that do not follow each other", &slice[i - 1], &slice[i]);
  }
}

// Neighbours on the tape: whole appends, but for the first one's start, and but for rows that the
// tape had no room for.
inline void check_appends(const Row* run, size_t n, uint64_t capacity) {
  for (size_t i = 0; i < n; ++i) {
    if (!good(run[i])) fail("a torn row", &run[i]);
    const bool first = i == 0 || run[i].word[append] != run[i - 1].word[append] ||
                       run[i].word[writer] != run[i - 1].word[writer];
    const uint64_t dropped = run[i].word[size] > capacity ? run[i].word[size] - capacity : 0;
    if (first && i > 0 && run[i].word[pos] != dropped) fail("an append without its start", &run[i]);
    if (!first && run[i].word[pos] != run[i - 1].word[pos] + 1)
      fail("an append with a gap", &run[i - 1], &run[i]);
    const bool last = i + 1 == n || run[i + 1].word[append] != run[i].word[append] ||
                      run[i + 1].word[writer] != run[i].word[writer];
    if (last && run[i].word[pos] + 1 != run[i].word[size])
      fail("an append without its end", &run[i]);
  }
}

}  // namespace rows
