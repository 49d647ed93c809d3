// "Killed at any store" of an append: of every state that the memory goes through, readers must get
// rows with their own bytes, before the repair, after it, and after the next appends, which go over
// what was left.
//
// `Kind` says what rows there are:
//   Kind(seed, random)              capacity(), blobs(): of the tape
//   kind.script(number, n, seed)    what a writer appends, at most n rows at once
//   kind.check_all(tape)            of all rows that there are
//   kind.between(random)            how many appends come before one that is killed
//   kind.appended(tape, random)     with the lock, after each
//   kind.done(tape)                 at the end
#pragma once

#include <chrono>

#include "killpoints.h"

namespace kill_appends {

using namespace killpoints;

struct Counts {
  uint64_t appends = 0, states = 0, undone = 0;
};

template <class Kind>
class Stage {
 public:
  Stage(uint64_t seed, Counts* counts)
      : counts_(counts),
        random_(seed),
        kind_(seed, &random_),
        memory_(kind_.capacity(), false, kind_.blobs()),
        tape_(memory_.attach()),
        writer_(*tape_, 1),
        script_(kind_.script(1, 5, seed * 7)) {}

  void run(int appends) {
    for (int i = 0; i < appends; ++i) {
      for (uint64_t k = kind_.between(&random_); k > 0; --k) append();
      attack();
    }
    Hold hold(*tape_, 10);
    kind_.done(*tape_);
  }

 private:
  void append() {
    script_.next();
    script_.give(&writer_);
    Hold hold(*tape_, 10);
    writer_.commit();
    kind_.appended(tape_.get(), &random_);
  }

  void attack() {
    const Image start = memory_.image();
    const Snapshot before = tape_->snapshot();
    script_.next();
    script_.give(&writer_);
    uint64_t instructions = 0;
    const std::vector<Image> states = trace(
        memory_,
        [this] {
          Hold hold(*tape_, 10);
          writer_.commit();
        },
        &instructions);
    const uint64_t after = tape_->snapshot().head;
    ++counts_->appends;
    for (const Image& state : states) check_state(state, before.head, after);
    memory_.load(start);
    Hold hold(*tape_, 10);
    writer_.commit();  // the history goes on
  }

  void check_state(const Image& state, uint64_t before, uint64_t after) {
    ++counts_->states;
    memory_.load_unlocked(state);
    kind_.check_all(*tape_);
    {
      Hold hold(*tape_, 5);
      const uint64_t head = tape_->snapshot().head;
      if (head != before && head != after) fail("a head that nobody stored");
      counts_->undone += head == before;
      kind_.check_all(*tape_);
    }
    // Others go on where it was killed, over what it left.
    Writer next(*tape_, 2);
    auto script = kind_.script(2, 3, counts_->states);
    for (int i = 0; i < 3; ++i) {
      script.next();
      script.give(&next);
      Hold hold(*tape_, 5);
      next.commit();
      kind_.check_all(*tape_);
    }
  }

  Counts* counts_;
  rows::Random random_;
  Kind kind_;
  Memory memory_;
  std::unique_ptr<Tape> tape_;
  Writer writer_;
  decltype(std::declval<Kind&>().script(1, 1, 1)) script_;
};

// For so many seconds, three histories at least.
template <class Kind>
void run(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  Counts counts;
  for (uint64_t seed = 1; seed <= 3 || Clock::now() < deadline; ++seed)
    Stage<Kind>(seed, &counts).run(4);
  std::printf("%llu appends, %llu states checked, %llu of them undone\n",
              (unsigned long long)counts.appends, (unsigned long long)counts.states,
              (unsigned long long)counts.undone);
  if (counts.undone == 0) fail("too few appends: the test is void");
}

}  // namespace kill_appends
