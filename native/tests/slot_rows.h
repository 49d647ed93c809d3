// Rows whose observations are stacks of two frames, stored once, for the native tests. A frame
// follows from whose it is, so that any other one shows.
#pragma once

#include <cstddef>

#include "native/kernels/rng.h"
#include "native/tape/gather_slots.h"
#include "native/tape/view.h"
#include "rows.h"

namespace slot_rows {

constexpr uint64_t kStack = 2, kFrame = 6;  // frames, and words of each
constexpr uint64_t kRepeated = 3;           // of which so many are the same, to be encoded

struct Row {
  uint64_t writer, traj, step, done;
  uint64_t now[kStack][kFrame];
  uint64_t alone;  // no leaf of the observation
  uint64_t next[kStack][kFrame];
};
constexpr size_t kBytes = sizeof(Row);

// An observation is a stack of two frames, as they are or encoded; or one slot.
enum class Form { stacks, encoded, whole };
inline const char* name_of(Form f) {
  return f == Form::stacks ? "of stacks" : f == Form::encoded ? "encoded" : "whole";
}
inline contig::SharedForm form(Form f) {
  const uint64_t bytes = kStack * kFrame * 8, frames = f == Form::whole ? 1 : kStack;
  std::vector<contig::SharedLeaf> leaves{
      {offsetof(Row, now), offsetof(Row, next), bytes, frames, bytes / frames}};
  std::vector<contig::KeptLeaf> kept{{offsetof(Row, writer), 32}, {offsetof(Row, alone), 8}};
  return contig::SharedForm(std::move(leaves), std::move(kept), kBytes, f == Form::encoded);
}

// Frame `i` of a trajectory. Some come twice; one that the next row does not begin with is odd.
inline void frame(uint64_t* out, const Row& r, uint64_t i, bool odd) {
  const uint64_t number = i % 5 == 4 ? i - 1 : i;
  for (uint64_t k = 0; k < kFrame; ++k)
    out[k] = rows::mix(r.writer * 1000003 + r.traj * 8191 + number * 2 + odd) + k / kRepeated;
}
// Every seventh step leads to what the next one does not begin with.
inline void fill(Row* r) {
  for (uint64_t j = 0; j < kStack; ++j) {  // a stack begins with its first frame, repeated
    const uint64_t now = r->step + j + 1 >= kStack ? r->step + j + 1 - kStack : 0;
    const uint64_t next = r->step + j + 2 >= kStack ? r->step + j + 2 - kStack : 0;
    frame(r->now[j], *r, now, false);
    frame(r->next[j], *r, next, r->step % 7 == 3);
  }
  r->alone = rows::mix(r->writer + r->traj * 31 + r->step * 7 + r->done);
}
inline bool good(const Row& r) {
  Row wanted = r;
  fill(&wanted);
  return std::memcmp(&wanted, &r, kBytes) == 0;
}

// What one writer appends, endlessly: runs of one lane, or a step of several.
class Script {
 public:
  Script(uint64_t number, uint64_t longest, uint64_t seed)
      : number_(number), longest_(longest), random_(seed) {}

  void next() {
    records_.clear();
    lanes_ = random_.below(2) == 0 ? 1 : 3;
    const uint64_t n = lanes_ == 1 ? 1 + random_.below(longest_) : 1;
    for (uint64_t lane = 0; lane < lanes_; ++lane)
      for (uint64_t i = 0; i < n; ++i) {
        Lane& at = at_[lanes_ == 1 ? 0 : 1 + lane];
        if (at.step == 0) at.traj = ++trajectories_;
        Row r{number_, at.traj, at.step, random_.below(6) == 0, {}, 0, {}};
        fill(&r);
        records_.push_back(r);
        at.step = r.done != 0 ? 0 : at.step + 1;
      }
  }

  // Prepares an append of them.
  void give(contig::Writer* writer) const {
    contig::Marks m;
    m.done.kind = contig::Mark::u64;
    m.done.data = reinterpret_cast<const uint8_t*>(&records_[0].done);
    m.done.stride = kBytes;
    m.terminated = m.done;
    contig::Rows rows;
    rows.n = records_.size();
    rows.records = reinterpret_cast<const uint8_t*>(records_.data());
    writer->start(rows);
    if (lanes_ == 1)
      writer->add_lanes(0, rows.n, 1, m, contig::Continue::if_open);
    else
      writer->add_rows(0, rows.n, nullptr, m, contig::Continue::if_open);
  }

 private:
  struct Lane {
    uint64_t traj = 0, step = 0;
  };
  uint64_t number_, longest_, lanes_ = 1, trajectories_ = 0;
  rows::Random random_;
  Lane at_[4];
  std::vector<Row> records_;
};

// Rows gathered leaf by leaf, as a batch has them, and put together again.
inline uint64_t gather_leaves(const contig::Tape& tape, const std::vector<int64_t>& seqs,
                              std::vector<Row>* out) {
  using Observation = uint64_t[kStack][kFrame];
  struct Head {
    uint64_t writer, traj, step, done;
  };
  const size_t n = seqs.size();
  std::vector<Head> heads(n);
  std::vector<uint64_t> alone(n);
  std::vector<uint64_t> now(n * kStack * kFrame), next(now.size());
  const auto column = [](auto& v) { return reinterpret_cast<uint8_t*>(v.data()); };
  const contig::SharedForm& f = tape.form();
  const uint64_t tail =
      contig::gather_shared(tape, seqs.data(), n,
                            {{column(heads), f.stored(offsetof(Row, writer)), sizeof(Head)},
                             {column(alone), f.stored(offsetof(Row, alone)), 8}},
                            {{column(now), 0, false}, {column(next), 0, true}});
  for (size_t i = 0; i < n; ++i) {
    Row& r = (*out)[i];
    std::memcpy(static_cast<void*>(&r), &heads[i], sizeof(Head));
    std::memcpy(r.now, now.data() + i * kStack * kFrame, sizeof(Observation));
    std::memcpy(r.next, next.data() + i * kStack * kFrame, sizeof(Observation));
    r.alone = alone[i];
  }
  return tail;
}

// Gathers rows, in two ways; those that are not lost must be whole. Returns the tail.
inline uint64_t check(const contig::Tape& tape, const std::vector<int64_t>& seqs) {
  std::vector<Row> records(seqs.size());
  uint64_t tail = 0;
  for (const bool leaves : {true, false}) {
    tail = leaves ? gather_leaves(tape, seqs, &records)
                  : contig::gather_records(tape, seqs.data(), seqs.size(),
                                           reinterpret_cast<uint8_t*>(records.data()));
    for (size_t i = 0; i < seqs.size(); ++i)
      if (static_cast<uint64_t>(seqs[i]) >= tail && !good(records[i]))
        rows::fail("a row with observations of others");
  }
  return tail;
}
// Rows that follow one of them, as those of a slice.
inline uint64_t check_run(const contig::Tape& tape, int64_t first, uint64_t n) {
  std::vector<int64_t> seqs(n);
  for (uint64_t i = 0; i < n; ++i) seqs[i] = first + static_cast<int64_t>(i);
  return check(tape, seqs);
}

inline void check_all(const contig::Tape& tape) {
  const contig::Snapshot s = tape.snapshot();
  std::vector<int64_t> seqs;
  for (uint64_t seq = s.tail; seq < s.head; ++seq) seqs.push_back(static_cast<int64_t>(seq));
  check(tape, seqs);
}

}  // namespace slot_rows
