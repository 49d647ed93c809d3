// Kill points: runs work in a child, one machine instruction after another under ptrace, and keeps
// every state that the shared memory goes through. Each is what a SIGKILL at that instant leaves
// (x86 stores in program order; elsewhere a child sees its own stores in that order, too).
#pragma once

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <utility>

#include "native/kernels/rng.h"
#include "native/tape/gather.h"
#include "native/tape/view.h"
#include "rows.h"

namespace killpoints {

using namespace contig;
using rows::fail;
using rows::Row;

using Image = std::vector<uint8_t>;

// ---- memory that is shared with the child ------------------------------------------------------

// Rows with leaves of any size, and a ring for their bytes; or with leaves that are stored once;
// else rows::Row.
struct Blobs {
  size_t record = rows::kBytes;
  std::vector<BlobLeaf> leaves;
  uint64_t ring = 0;
  SharedForm form = {};
};

class Memory {
 public:
  static constexpr uint64_t kLogged = 64;  // changes of fields that a test may make

  explicit Memory(uint64_t capacity, bool fields = false, Blobs blobs = {})
      : control_(Tape::control_bytes(capacity)), blobs_(std::move(blobs)) {
    map(control_ + (1 << 17));
    Tape::format(base_, capacity);
    Tape tape(base_, -1);
    tape.publish("{}", 2, blobs_.record, fields ? sizeof(rows::Fields) : 0, blobs_.leaves.size(),
                 blobs_.ring, blobs_.form);
    ring_ = control_ + tape.data_bytes();
    const Header& h = tape.header();
    fields_ = (ring_ + blobs_.ring + 63) / 64 * 64;
    slots_ = (fields_ + h.fields_bytes + 63) / 64 * 64;
    if (slots_ + h.slots_bytes > bytes_) fail("the test's memory is too small");
    // What changes: the header and the first producers, the index, the rows. Not the rest of the
    // producer table, which is most of it.
    parts_ = {{0, h.producers_offset + 4 * sizeof(Producer)},
              {h.index_offset, ring_ + blobs_.ring}};
    if (fields) {  // the start of the log and of evicted ones: there are few changes
      const uint64_t log = Fields::log_bytes(h.chunk_shift, h.map_length);
      const uint64_t slots = Fields::slots_offset(h.fields_size, h.chunk_shift, h.map_length);
      const uint64_t evicted = 2 * kLogged * Fields::evicted_bytes(h.fields_size);
      parts_.insert(parts_.end(), {{fields_, fields_ + kLogged * sizeof(Word)},
                                   {fields_ + log, fields_ + log + evicted},
                                   {fields_ + slots, fields_ + h.fields_bytes}});
    }
    if (h.slots_bytes != 0) parts_.emplace_back(slots_, slots_ + h.slots_bytes);
  }
  ~Memory() { munmap(base_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::unique_ptr<Tape> attach() const {
    auto tape = std::make_unique<Tape>(base_, -1);
    tape->attach_data(base_ + control_);
    if (blobs_.form) tape->attach_slots(base_ + slots_, blobs_.form);
    if (!blobs_.leaves.empty()) tape->attach_blobs(base_ + ring_, blobs_.leaves);
    if (tape->header().fields_size != 0) {
      tape->attach_fields(base_ + fields_);
      tape->set_field_leaves(rows::field_leaves());
    }
    return tape;
  }

  Image image() const {
    Image out;
    for (const auto& p : parts_) out.insert(out.end(), base_ + p.first, base_ + p.second);
    return out;
  }
  bool is(const Image& image) const {
    const uint8_t* at = image.data();
    for (const auto& p : parts_) {
      if (std::memcmp(base_ + p.first, at, p.second - p.first) != 0) return false;
      at += p.second - p.first;
    }
    return true;
  }
  void load(const Image& image) const {
    const uint8_t* at = image.data();
    for (const auto& p : parts_) {
      std::memcpy(base_ + p.first, at, p.second - p.first);
      at += p.second - p.first;
    }
  }
  // Memory as the next process finds it when the lock's holder is dead and the kernel has told.
  void load_unlocked(const Image& image) const {
    load(image);
    lock_init(reinterpret_cast<Header*>(base_)->lock);
  }
  const Producer* producers() const {
    return reinterpret_cast<Producer*>(base_ + reinterpret_cast<Header*>(base_)->producers_offset);
  }

 private:
  void map(uint64_t bytes) {
    bytes_ = bytes;
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    base_ = static_cast<uint8_t*>(p);
  }

  uint64_t control_, bytes_ = 0, ring_ = 0, fields_ = 0, slots_ = 0;
  Blobs blobs_;
  uint8_t* base_ = nullptr;
  std::vector<std::pair<uint64_t, uint64_t>> parts_;
};

// ---- the child ---------------------------------------------------------------------------------

// Starts a child that stops, does `work` when it is stepped, and stops again.
inline pid_t start(const std::function<void()>& work) {
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) std::_Exit(77);
    raise(SIGSTOP);
    work();
    raise(SIGSTOP);
    std::_Exit(0);
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  if (!WIFSTOPPED(status)) fail("ptrace is not allowed here");
  return pid;
}

// One instruction; false when the work is done.
inline bool step(pid_t pid) {
  int status = 0;
  if (ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr) != 0) fail("singlestep");
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  if (!WIFSTOPPED(status)) fail("the child died by itself");
  if (WSTOPSIG(status) == SIGSTOP) return false;
  if (WSTOPSIG(status) != SIGTRAP) fail("the child got a signal");
  return true;
}

inline void finish(pid_t pid) {
  kill(pid, SIGKILL);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
}

// All states the memory goes through, the first and the last one included.
inline std::vector<Image> trace(const Memory& memory, const std::function<void()>& work,
                                uint64_t* instructions) {
  std::vector<Image> states{memory.image()};
  const pid_t pid = start(work);
  *instructions = 0;
  while (step(pid)) {
    ++*instructions;
    if (!memory.is(states.back())) states.push_back(memory.image());
  }
  finish(pid);
  return states;
}

// ---- what a tape holds -------------------------------------------------------------------------

using W = EntryWords;

struct RunWords {
  uint64_t w[W::count];
};

// Everything that counts, read by somebody who has the lock.
struct Content {
  uint64_t head, tail, index_head, index_tail, trajectories;
  std::vector<RunWords> runs;  // [index_tail, index_head)
  std::vector<Row> rows;       // [tail, head)
  uint64_t producer_seq[2];
  std::vector<rows::Fields> fields;  // of each run, if there are any
};

inline Content read(const Memory& memory, const Tape& tape) {
  Content c{};
  const Header& h = tape.header();
  c.head = h.head;
  c.tail = h.tail;
  c.index_head = h.index_head;
  c.index_tail = h.index_tail;
  c.trajectories = h.trajectories;
  for (uint64_t n = c.index_tail; n < c.index_head; ++n) {
    RunWords run;
    if (tape.read_entry_words(n, c.head, run.w) != Tape::Read::ok)
      fail("an entry that cannot be read under the lock");
    c.runs.push_back(run);
    if (tape.fields_size() == 0) continue;
    rows::Fields fields;
    if (!tape.read_fields(n, reinterpret_cast<uint8_t*>(&fields)))
      fail("fields that cannot be read under the lock");
    c.fields.push_back(fields);
  }
  std::vector<int64_t> seqs;
  if (c.tail > c.head) fail("tail > head");
  for (uint64_t s = c.tail; s < c.head; ++s) seqs.push_back(static_cast<int64_t>(s));
  c.rows.resize(seqs.size());
  gather_records(tape, seqs.data(), seqs.size(), reinterpret_cast<uint8_t*>(c.rows.data()));
  for (int i = 0; i < 2; ++i) c.producer_seq[i] = memory.producers()[i].seq;
  return c;
}

// What must hold of any tape at rest: the runs cover the rows, one after another, each run is steps
// of one trajectory, and a run's flags are those of its rows.
inline void check_consistent(const Content& c, uint64_t capacity) {
  if (c.head - c.tail > capacity) fail("more rows than the capacity");
  rows::check_appends(c.rows.data(), c.rows.size(), capacity);
  uint64_t at = c.tail;
  for (size_t i = 0; i < c.runs.size(); ++i) {
    const uint64_t* w = c.runs[i].w;
    const uint64_t first = w[W::first], steps = run_rows(w[W::steps_flags]), end = first + steps;
    double ret;
    std::memcpy(&ret, &w[W::ret], 8);
    if (ret != static_cast<double>(w[W::before] + steps))
      fail("a run whose return is not its steps");
    if (end <= c.tail) continue;  // the tail was advanced, the index not yet
    if (first > at || end <= at) fail("runs that do not cover the rows");
    const Row* run = &c.rows[at - c.tail];
    rows::check_slice(run, end - at);
    for (uint64_t s = at; s < end; ++s)
      if (run[s - at].word[rows::step] != w[W::before] + (s - first))
        fail("a run of other rows", run);
    const bool ended = (w[W::steps_flags] & kEnded) != 0;
    if (ended != (run[end - at - 1].word[rows::done] != 0)) fail("a run that ends elsewhere", run);
    if (!c.fields.empty()) rows::check_fields(c.fields[i], run[0]);
    at = end;
    // Its previous run is of the same trajectory and stops where it starts.
    if (w[W::prev] != kNone && w[W::prev] >= c.index_tail) {
      if (w[W::prev] >= c.index_tail + i) fail("a run linked to a later one");
      const uint64_t* p = c.runs[w[W::prev] - c.index_tail].w;
      if (p[W::ordinal] != w[W::ordinal] ||
          p[W::before] + run_rows(p[W::steps_flags]) != w[W::before])
        fail("a run linked to another one");
    }
    if (w[W::ordinal] >= c.trajectories) fail("a trajectory's number that may be given again");
  }
  if (at != c.head) fail("rows without a run");
}

// Of a trajectory's newest run, as readers find it; and its newest row.
inline void check_field_readers(const Tape& tape, const View& view) {
  const Snapshot& s = view.at();
  if (s.tail >= s.head) return;
  std::vector<int64_t> seqs, ordinals(s.head - s.tail);
  for (uint64_t seq = s.tail; seq < s.head; ++seq) seqs.push_back(static_cast<int64_t>(seq));
  view.trajectories_of(seqs.data(), seqs.size(), ordinals.data());
  std::vector<Row> rows(seqs.size());
  gather_records(tape, seqs.data(), seqs.size(), reinterpret_cast<uint8_t*>(rows.data()));
  for (size_t i = 0; i < seqs.size(); ++i) {
    const uint64_t number = view.last_run(static_cast<uint64_t>(ordinals[i]));
    rows::Fields fields;
    if (ordinals[i] < 0 || number == kNone ||
        !tape.read_fields(number, reinterpret_cast<uint8_t*>(&fields)))
      fail("a row's trajectory has no fields though nobody writes", &rows[i]);
    rows::check_fields(fields, rows[i]);
  }
}

// What a reader draws from the tape as it is, with no lock.
inline void check_readers(const Tape& tape, View* view, uint64_t* rng) {
  view->refresh();
  const Snapshot& s = view->at();
  std::vector<Row> out;
  const auto gather = [&](const std::vector<int64_t>& seqs) {
    out.resize(seqs.size());
    const uint64_t tail =
        gather_records(tape, seqs.data(), seqs.size(), reinterpret_cast<uint8_t*>(out.data()));
    for (const int64_t seq : seqs)
      if (static_cast<uint64_t>(seq) < tail) fail("a row was lost though nobody writes");
  };
  std::vector<int64_t> all;
  for (uint64_t seq = s.tail; seq < s.head; ++seq) all.push_back(static_cast<int64_t>(seq));
  if (tape.fields_size() != 0) check_field_readers(tape, *view);
  gather(all);
  rows::check_appends(out.data(), out.size(), tape.header().capacity);
  for (const bool complete : {false, true})
    for (const bool over_steps : {false, true}) {
      SliceSpec spec;
      spec.length = complete ? rows::kLongest : 4;
      spec.complete_only = complete;
      spec.over_steps = over_steps;
      Slices slices;
      if (!view->draw_slices(Rng(rng), Window{}, spec, 4, &slices)) {
        if (!complete && s.head > s.tail) fail("rows, but none to draw");
        continue;
      }
      gather(slices.seqs);
      size_t at = 0;
      for (const int64_t length : slices.lengths) {
        const size_t last = at + static_cast<size_t>(length) - 1;
        rows::check_slice(&out[at], static_cast<size_t>(length));
        if (complete && (out[at].word[rows::step] != 0 || out[last].word[rows::done] == 0))
          fail("complete_only: a part of a trajectory", &out[at], &out[last]);
        at = last + 1;
      }
    }
}

}  // namespace killpoints
