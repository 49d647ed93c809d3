#include "native/wire/receive_loop.h"

#include <chrono>
#include <thread>

#include "native/sys/wait.h"

namespace contig {

namespace {
constexpr uint64_t kTurn = 4 << 20;
}  // namespace

double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t QueueIntake::accept(Receiver& in, uint64_t next, double deadline) {
  const Frame& frame = in.frame();
  const uint64_t size = queue_.spec().record_size;
  if (frame.type != static_cast<uint8_t>(FrameType::items) || frame.number != next) return 0;
  ItemParts parts;
  if (in.refusal_of_items(size, false, &parts) != Refusal::none) return 0;
  // More than fits at a time goes in by and by, and is summed before.
  const uint64_t most = queue_.spec().batch_size * (queue_.spec().num_slots - 1);
  if (frame.rows > most && in.next() != Receiver::State::ready) return 0;
  QueueHeader& h = queue_.header();
  uint64_t done = 0;
  for (;;) {
    const uint32_t space = h.space_word.load();
    bool going = true;
    if (!lock_try(h.lock) && !lock_until(h.lock, lock_s_)) return done;
    {
      struct Release {
        Lock& lock;
        ~Release() { lock_release(lock); }
      } release{h.lock};
      queue_.repair();
      const uint64_t first = frame.number + done;
      going = queue_.seen(producer_, first) == first;
      if (going && in.ready()) {
        done += queue_.accept(producer_, first, in.body() + done * size, frame.rows - done).added;
      } else if (going && queue_.has_room(frame.rows)) {
        going = queue_.accept_summed(producer_, first, in.body(), frame.rows, frame.body_crc);
        if (going) done = frame.rows;
      }
    }
    const double left = deadline - steady_now();
    if (!going || done == frame.rows || left <= 0) return done;
    wait_change(h.space_word, h.space_waiters, space, left);
  }
}

TakenIn take_in(Intake& table, Receiver& in, int socket, uint64_t next, double patience_s) {
  const double deadline = steady_now() + patience_s;
  const bool sums = table.sums();
  TakenIn out;
  while (out.bytes < kTurn) {
    const Receiver::State state = sums ? in.next_unsummed() : in.next();
    if (state == Receiver::State::ready) {
      const uint64_t items = table.items_of(in.frame()), rows = in.frame().rows;
      const uint64_t done = table.accept(in, next, deadline);
      out.items += done;
      next += done;
      if (done > 0) out.seen = next;
      if (done == 0 || done < items) {
        out.rows += done;  // only a queue takes in a part: its items are rows
        out.partial = done;
        break;
      }
      out.rows += rows;
      ++out.frames;
      in.pop();
      continue;
    }
    if (state != Receiver::State::more) break;
    uint64_t bytes = in.receive(socket, !sums);
    if (bytes == 0 && out.frames > 0) {
      // A client of this machine that waits for a processor may be in the middle of sending: what
      // it sends now need not go through the event loop.
      std::this_thread::yield();
      bytes = in.receive(socket, !sums);
    }
    if (bytes == 0) break;
    out.bytes += bytes;
  }
  return out;
}

}  // namespace contig
