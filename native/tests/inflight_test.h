// A client's way to a server, in threads: one adds items, one sends them and hears acks
// (`Inflight::run`), one takes frames in and acks them (`take_in`), one reads. Connections are cut
// in the middle of frames.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "native/sys/process.h"
#include "native/sys/wait.h"
#include "native/wire/inflight.h"
#include "native/wire/receive_loop.h"
#include "native/wire/tape_intake.h"
#include "rows.h"

namespace {

using namespace contig;
using rows::fail;

constexpr uint64_t kProducer = 7;
constexpr double kForever = 60;

struct Pair {
  int ours = -1, theirs = -1;
  Pair() {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) fail("no socket");
    ours = fds[0];
    theirs = fds[1];
  }
  ~Pair() {
    close(ours);
    close(theirs);
  }
};

// Word i of item n.
uint64_t word(uint64_t n, uint64_t i) { return rows::mix(n * 1315423911 + i); }

// What a queue and a tape have in common.
struct Test {
  const char* name;
  uint64_t words, count;
  Inflight flight;
  std::atomic<uint64_t> taken{0}, cuts{0}, waits{0}, came{0};  // the last in bytes

  static constexpr double kBeat = 30;  // so long that silence is not what ends a connection

  Test(const char* name, uint64_t words, uint64_t count)
      : name(name), words(words), count(count), flight(words * 8, false, 0, 3 * words * 8 + 64, 6) {
    flight.limit(8 * words * 8 + 1000, true);
    flight.heartbeat(kBeat);
  }
  virtual ~Test() = default;

  virtual void pack(uint64_t n) = 0;    // an item, into the open frame
  virtual void commit(uint64_t n) = 0;  // it counts
  // A connection: until it is cut, after so many bytes, or all items are in.
  virtual void serve(int socket, uint64_t upto) = 0;
  virtual void consume() = 0;   // all items, in order
  virtual uint64_t seen() = 0;  // how many are in

  bool ack(int socket, uint64_t next) {
    Frame ack{};
    ack.type = static_cast<uint8_t>(FrameType::ack);
    ack.number = next;
    uint8_t header[kFrameHeader];
    write_header(ack, header);
    return send(socket, header, sizeof header, MSG_NOSIGNAL) >= 0;
  }

  void add(int wake) {
    for (uint64_t n = 0; n < count; ++n) {
      for (;;) {
        const uint64_t seen = flight.changes();
        if (flight.room() == Inflight::Room::some) break;
        ++waits;
        flight.wait(seen, ~uint64_t{0}, 0.05);
      }
      pack(n);
      if (n % 7 == 3) {  // not after all, and then it is
        flight.builder.cancel();
        pack(n);
      }
      commit(n);
      if (flight.rouse()) send(wake, "", 1, MSG_DONTWAIT);
    }
    if (words % 2 == 0) {  // it goes, and what it had is sent without it
      flight.leave(kForever);
    } else {
      while (flight.acked() < count) {
        const uint64_t seen = flight.changes();
        if (flight.rouse()) send(wake, "", 1, MSG_DONTWAIT);
        if (flight.acked() < count) flight.wait(seen, count, 0.05);
      }
      flight.stop();
    }
    send(wake, "", 1, MSG_DONTWAIT);
  }

  void run() {
    Pair wake;
    std::thread adding([&] { add(wake.ours); });
    std::thread consuming([&] { consume(); });
    rows::Random random(words);
    for (bool over = false; !over;) {
      Pair pair;
      const uint64_t upto = random.below(40 * words * 8) + 1;
      std::thread serving([&] {
        serve(pair.theirs, upto);
        shutdown(pair.theirs, SHUT_RDWR);
      });
      Receiver in(64, 1 << 20);
      int error = 0;
      const Inflight::Event event = flight.run(pair.ours, wake.theirs, in, &error);
      shutdown(pair.ours, SHUT_RDWR);
      serving.join();
      over = event == Inflight::Event::stopped || event == Inflight::Event::drained;
      if (event == Inflight::Event::silent) fail("nobody was silent");
      if (event == Inflight::Event::frame || event == Inflight::Event::refused)
        fail("the client got what is no ack");
      flight.heartbeat(kBeat);
      flight.resume(seen(), {});
      ++cuts;
    }
    adding.join();
    consuming.join();
    if (taken != count || flight.frames() != 0 || flight.bytes() != 0) fail("items are missing");
    std::printf("%s: %llu items of %llu words, %llu connections, waited %llu times for room\n",
                name, (unsigned long long)count, (unsigned long long)words,
                (unsigned long long)cuts, (unsigned long long)waits);
    if (cuts < 5 || waits == 0) fail("too few cuts or waits: the test is void");
  }
};

// Items of one to three rows, each a trajectory. A rate limiter lets the sender be only so far
// ahead of the reader, and another writer appends to the same tape.
struct TapeTest : Test {
  static constexpr uint64_t kAhead = 40, kOther = ~uint64_t{0};
  std::vector<uint64_t> control, data;
  std::unique_ptr<Tape> tape;      // the server's
  std::unique_ptr<Writer> writer;  // of the producer, whatever the connection
  std::atomic<uint64_t> read{0}, left{0};

  TapeTest(uint64_t words, uint64_t count) : Test("tape", words, count) {
    const uint64_t capacity = 4 * count;
    control.resize(Tape::control_bytes(capacity) / 8);
    Tape::format(bytes(control), capacity);
    tape = std::make_unique<Tape>(bytes(control), -1);
    {
      Hold hold(*tape, kForever);
      if (!tape->publish("{}", 2, words * 8)) fail("publish");
    }
    data.resize(tape->data_bytes() / 8);
    tape->attach_data(bytes(data));
    writer = std::make_unique<Writer>(*tape, 1);
  }
  static uint8_t* bytes(std::vector<uint64_t>& v) { return reinterpret_cast<uint8_t*>(v.data()); }
  static uint64_t rows_of(uint64_t n) { return 1 + n % 3; }
  uint64_t seen() override {
    Hold hold(*tape, kForever);
    return tape->seen(kProducer, 0);
  }
  void pack(uint64_t n) override {
    auto* record = reinterpret_cast<uint64_t*>(flight.builder.room(rows_of(n)));
    for (uint64_t row = 0; row < rows_of(n); ++row)
      for (uint64_t i = 0; i < words; ++i) *record++ = word(4 * n + row, i);
  }
  void commit(uint64_t n) override {
    WireRun run{};
    run.rows = static_cast<uint32_t>(rows_of(n));
    run.flags = kBegins | kTerminated;
    run.traj_id = static_cast<int64_t>(n);
    flight.builder.commit_run(run);
  }

  virtual void shape(Receiver&) {}  // what items look like, beyond their records' size

  void serve(int socket, uint64_t upto) override {
    Receiver in(1 << 20, 1 << 20);
    uint64_t received = 0, next = seen();
    const MarksOf no_marks = [](const Rows&) { return Marks{}; };
    shape(in);
    while (received < upto && next < count) {
      pollfd fd{socket, POLLIN, 0};
      if (in.held() == 0) poll(&fd, 1, 50);
      const uint64_t head = tape->header().head.load(), bound = read.load() + kAhead;
      const uint64_t most = bound > head ? bound - head : 0;
      TapeIntake intake(*tape, *writer, no_marks, kProducer, {most, head, 1 << 20, 0.1});
      const TakenIn got = take_in(intake, in, socket, next, 0);
      received += got.bytes;
      came += got.bytes;
      if (got.partial > 0) fail("a part of a frame");
      if (got.items > 0) {
        next = got.seen;
        if (!ack(socket, next)) return;
      } else if (got.bytes == 0) {
        ++left;
        std::this_thread::yield();
        if (in.held() == 0 && recv(socket, header_, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return;
      }
    }
  }

  // Row `row` of item n.
  virtual void check(const Tape& own, uint64_t seq, uint64_t n, uint64_t row) {
    const auto* values = reinterpret_cast<const uint64_t*>(own.row(seq));
    for (uint64_t i = 0; i < words; ++i)
      if (values[i] != word(4 * n + row, i)) fail("another item, or a torn one");
  }
  virtual bool is_others(const Tape& own, uint64_t seq) {
    return *reinterpret_cast<const uint64_t*>(own.row(seq)) == kOther;
  }
  virtual void attach(Tape& own) { own.attach_data(bytes(data)); }
  // What somebody else appends.
  virtual Rows others() {
    record_.assign(words, kOther);
    Rows rows;
    rows.n = 1;
    rows.records = bytes(record_);
    return rows;
  }

  void consume() override {
    Tape own(bytes(control), -1);
    attach(own);
    Writer other(own, 2);
    uint64_t n = 0, row = 0, seq = 0;
    while (n < count) {
      const uint64_t head = own.snapshot().head;
      for (; seq < head && n < count; ++seq) {
        if (is_others(own, seq)) continue;
        check(own, seq, n, row);
        if (++row == rows_of(n)) {
          row = 0;
          ++n;
        }
      }
      read = seq;
      if (n % 16 == 5 && own.snapshot().head < 3 * count) {
        const Rows rows = others();
        other.start(rows);
        other.add_lanes(0, 1, 1, Marks{}, Continue::if_open);
        Hold hold(own, kForever);
        other.commit();
      } else if (seq == own.snapshot().head) {
        std::this_thread::yield();
      }
    }
    taken = n;
  }

 protected:
  TapeTest(const char* name, uint64_t words, uint64_t count) : Test(name, words, count) {}

 private:
  uint8_t header_[1];
  std::vector<uint64_t> record_;
};

}  // namespace
