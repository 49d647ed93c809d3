// A client's way to a server's queue, in threads: one adds items, one sends them and hears acks
// (`Inflight::run`), one takes frames in and acks them (`take_in`), one takes batches. Connections
// are cut in the middle of frames. Run under ThreadSanitizer; each item must come once, in order.
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

struct Test {
  uint64_t words, count;
  Inflight flight;
  std::vector<uint64_t> memory;
  Queue::Spec spec;
  std::atomic<uint64_t> taken{0}, cuts{0}, waits{0};

  static constexpr uint64_t kBatch = 4, kSlots = 3;
  static constexpr double kBeat = 30;  // so long that silence is not what ends a connection

  Test(uint64_t words, uint64_t count)
      : words(words), count(count), flight(words * 8, false, 0, 3 * words * 8 + 64, 6) {
    spec = {words * 8, kBatch, kSlots, kBatch * words * 8, 2, {{0, words * 8, 0}}};
    memory.resize(Queue::bytes_for(spec) / 8 + 16);
    Queue::format(base(), spec, "{}");
    flight.limit(8 * words * 8 + 1000, true);
    flight.heartbeat(kBeat);
  }
  uint8_t* base() {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  }

  void add(int wake) {
    std::vector<uint64_t> record(words);
    for (uint64_t n = 0; n < count; ++n) {
      for (uint64_t i = 0; i < words; ++i) record[i] = word(n, i);
      for (;;) {
        const uint64_t seen = flight.changes();
        if (flight.room() == Inflight::Room::some) break;
        ++waits;
        flight.wait(seen, ~uint64_t{0}, 0.05);
      }
      std::memcpy(flight.builder.room(1), record.data(), words * 8);
      if (n % 7 == 3) {  // not after all, and then it is
        flight.builder.cancel();
        std::memcpy(flight.builder.room(1), record.data(), words * 8);
      }
      flight.builder.commit_records(1);
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

  // A connection: until it is cut, after so many bytes, or all items are in.
  void serve(int socket, uint64_t upto) {
    Queue queue(base(), Queue::bytes_for(spec));
    Receiver in(1 << 20, 1 << 20);
    uint64_t bytes = 0, next = queue.seen(kProducer, 0);
    while (bytes < upto && next < count) {
      pollfd fd{socket, POLLIN, 0};
      poll(&fd, 1, 50);
      const ReceiveLoop got = take_in(queue, in, socket, kProducer, next, 0.01);
      bytes += got.bytes;
      if (got.items > 0) {
        next = got.seen;
        Frame ack{};
        ack.type = static_cast<uint8_t>(FrameType::ack);
        ack.number = next;
        uint8_t header[kFrameHeader];
        write_header(ack, header);
        if (send(socket, header, sizeof header, MSG_NOSIGNAL) < 0) return;
      }
      if (got.partial > 0) {  // the rest, as its caller does it
        const Frame& frame = in.frame();
        Lock& lock = queue.header().lock;
        for (bool full = true; full;) {
          const uint32_t space = queue.header().space_word.load();
          if (!lock_until(lock, kForever)) fail("the lock is not to be had");
          const Queue::Accepted a = queue.accept(kProducer, frame.number, in.body(), frame.rows);
          lock_release(lock);
          full = a.full;
          next = a.seen;
          if (full) wait_change(queue.header().space_word, queue.header().space_waiters, space, 1);
        }
        in.pop();
      }
    }
  }

  void consume() {
    Queue queue(base(), Queue::bytes_for(spec));
    uint64_t n = 0;
    while (n < count) {
      const uint32_t seen = queue.header().data_word.load();
      Queue::Taken t{};
      if (!lock_until(queue.header().lock, kForever)) fail("the lock is not to be had");
      const bool there = queue.take(n + kBatch > count, process_id(), &t);
      lock_release(queue.header().lock);
      if (!there) {
        wait_change(queue.header().data_word, queue.header().data_waiters, seen, 0.05);
        continue;
      }
      const auto* values = reinterpret_cast<const uint64_t*>(queue.block(t.slot));
      for (uint64_t row = 0; row < t.rows; ++row, ++n)
        for (uint64_t i = 0; i < words; ++i)
          if (values[row * words + i] != word(n, i)) fail("another item, or a torn one");
      queue.release(t.slot);
    }
    taken = n;
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
      Queue queue(base(), Queue::bytes_for(spec));
      flight.heartbeat(kBeat);
      flight.resume(queue.seen(kProducer, 0), {});
      ++cuts;
    }
    adding.join();
    consuming.join();
    if (taken != count || flight.frames() != 0 || flight.bytes() != 0) fail("items are missing");
    std::printf("%llu items of %llu words, %llu connections, waited %llu times for room\n",
                (unsigned long long)count, (unsigned long long)words, (unsigned long long)cuts,
                (unsigned long long)waits);
    if (cuts < 5 || waits == 0) fail("too few cuts or waits: the test is void");
  }
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t scale = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  // The last has leaves that are summed while they are stored.
  std::make_unique<Test>(1, 20000 * scale)->run();
  std::make_unique<Test>(40, 6000 * scale)->run();
  std::make_unique<Test>(2500, 700 * scale)->run();
  return 0;
}
