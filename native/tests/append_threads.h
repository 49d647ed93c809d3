// Two writers and two readers in threads over one tape. Run under ThreadSanitizer; in other builds,
// where copies are plain, it checks what readers accept.
//
// `Kind` says what rows there are:
//   kind.publish(tape)             fixes the layout; false: somebody else did
//   kind.more_bytes(tape)          of memory beside the rows
//   kind.attach(tape, memory)      says where that is
//   kind.script(number, capacity)  what a writer appends
//   Kind::Seen                     of a reader: check(tape, seqs), which returns the tail, and
//                                  check_all(tape)
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "native/kernels/rng.h"
#include "native/tape/view.h"
#include "rows.h"

namespace append_threads {

using namespace contig;

constexpr double kTimeout = 120;

template <class Kind>
class Shared {
 public:
  std::atomic<uint64_t> written{0}, seen{0}, lost{0};

  Shared(uint64_t n, const Kind& kind)
      : control_(Tape::control_bytes(n) / 8), capacity_(n), kind_(kind) {
    Tape::format(at(control_), n);
    Tape tape(at(control_), -1);
    Hold hold(tape, kTimeout);
    if (!kind_.publish(&tape)) rows::fail("publish");
    data_.resize(tape.data_bytes() / 8);
    more_.resize(kind_.more_bytes(tape) / 8 + 1);
  }
  std::unique_ptr<Tape> attach() {
    auto tape = std::make_unique<Tape>(at(control_), -1);
    tape->attach_data(at(data_));
    kind_.attach(tape.get(), at(more_));
    return tape;
  }

  // For so many seconds, or, on a busy machine, until readers saw something and so many rows were
  // written. What they saw.
  std::vector<typename Kind::Seen> run(double seconds, uint64_t rows = 0) {
    std::vector<typename Kind::Seen> readers(2);
    std::vector<std::thread> threads;
    for (uint64_t w = 1; w <= 2; ++w) threads.emplace_back([this, w] { write(w); });
    for (uint64_t r = 1; r <= 2; ++r)
      threads.emplace_back([this, r, &readers] { read(r, &readers[r - 1]); });
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    for (int i = 0; i < 1000 && (seen == 0 || written < rows); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop_ = true;
    for (std::thread& t : threads) t.join();
    if (attach()->snapshot().head != written.load()) rows::fail("appends were lost");
    std::printf("capacity %4llu: %8llu rows written, %llu read, %llu lost", count(capacity_),
                count(written), count(seen), count(lost));
    if (seen == 0) rows::fail("the readers saw nothing: the test is void");
    return readers;
  }
  static unsigned long long count(uint64_t n) { return n; }

 private:
  static uint8_t* at(std::vector<uint64_t>& v) { return reinterpret_cast<uint8_t*>(v.data()); }

  void write(uint64_t number) {
    const auto tape = attach();
    Writer writer(*tape, number);
    auto script = kind_.script(number, capacity_);
    for (uint64_t n = 0; !stop_.load(); ++n) {
      script.next();
      script.give(&writer);
      Hold hold(*tape, kTimeout);
      writer.commit();
      written += writer.kept();
      if (number == 1 && n % 1024 == 1023) tape->clear();
    }
  }

  void read(uint64_t number, typename Kind::Seen* reader) {
    const auto tape = attach();
    View view(*tape);
    uint64_t state[4] = {number, 2, 3, 4};
    for (int n = 0; !stop_.load(); ++n) {
      if (n % 64 == 63) {  // with the lock nothing can be lost
        Hold hold(*tape, kTimeout);
        reader->check_all(*tape);
        continue;
      }
      view.refresh();
      std::vector<int64_t> seqs(16);
      if (!view.draw_rows(Rng(state), Window{}, seqs.data(), seqs.size())) continue;
      const uint64_t tail = reader->check(*tape, seqs);
      for (const int64_t seq : seqs) ++(static_cast<uint64_t>(seq) < tail ? lost : seen);
    }
  }

  std::vector<uint64_t> control_, data_, more_;  // words, for alignment
  uint64_t capacity_;
  Kind kind_;
  std::atomic<bool> stop_{false};
};

}  // namespace append_threads
