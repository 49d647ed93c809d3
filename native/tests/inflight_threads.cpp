// Items of a fixed size to a queue and to a tape, in threads (inflight_test.h). Run under
// ThreadSanitizer; each item must come once, in order.
#include "inflight_test.h"

namespace {

struct QueueTest : Test {
  std::vector<uint64_t> memory;
  Queue::Spec spec;
  static constexpr uint64_t kBatch = 4, kSlots = 3;

  QueueTest(uint64_t words, uint64_t count) : Test("queue", words, count) {
    spec = {words * 8, kBatch, kSlots, kBatch * words * 8, 2, {{0, words * 8, 0}}};
    memory.resize(Queue::bytes_for(spec) / 8 + 16);
    Queue::format(base(), spec, "{}");
  }
  uint8_t* base() {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  }
  uint64_t seen() override {
    Queue queue(base(), Queue::bytes_for(spec));
    return queue.seen(kProducer, 0);
  }
  void pack(uint64_t n) override {
    auto* record = reinterpret_cast<uint64_t*>(flight.builder.room(1));
    for (uint64_t i = 0; i < words; ++i) record[i] = word(n, i);
  }
  void commit(uint64_t) override { flight.builder.commit_records(1); }

  void serve(int socket, uint64_t upto) override {
    Queue queue(base(), Queue::bytes_for(spec));
    Receiver in(1 << 20, 1 << 20);
    uint64_t bytes = 0, next = queue.seen(kProducer, 0);
    while (bytes < upto && next < count) {
      pollfd fd{socket, POLLIN, 0};
      poll(&fd, 1, 50);
      QueueIntake intake(queue, kProducer, 0.1);
      const TakenIn got = take_in(intake, in, socket, next, 0.01);
      bytes += got.bytes;
      if (got.items > 0) {
        next = got.seen;
        if (!ack(socket, next)) return;
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

  void consume() override {
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
};

}  // namespace

int main(int argc, char** argv) {
  const uint64_t scale = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  // The last has leaves that are summed while they are stored.
  std::make_unique<QueueTest>(1, 20000 * scale)->run();
  std::make_unique<QueueTest>(40, 6000 * scale)->run();
  std::make_unique<QueueTest>(2500, 700 * scale)->run();
  std::make_unique<TapeTest>(1, 10000 * scale)->run();
  std::make_unique<TapeTest>(40, 3000 * scale)->run();
  std::make_unique<TapeTest>(2500, 300 * scale)->run();
  return 0;
}
