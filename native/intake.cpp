#include "intake.h"

#include <thread>

namespace contig {

namespace {
constexpr uint64_t kTurn = 4 << 20;
constexpr double kPatience = 0.1;

// Takes in the frame at the front, if it is an ordinary one. `summed`: its checksum was compared;
// else that is done on the way.
bool accept(Queue& queue, Receiver& in, uint64_t producer, bool summed) {
  const Frame& frame = in.frame();
  if (frame.type != static_cast<uint8_t>(FrameType::items)) return false;
  if (check_items(frame, in.body(), queue.spec().record_size, false) != Refusal::none) return false;
  Lock& lock = queue.header().lock;
  if (!lock_try(lock) && !lock_until(lock, kPatience)) return false;
  queue.repair();
  bool accepted = queue.seen(producer, frame.number) == frame.number && queue.has_room(frame.rows);
  if (accepted && summed)
    queue.accept(producer, frame.number, in.body(), frame.rows);
  else if (accepted)
    accepted = queue.accept_summed(producer, frame.number, in.body(), frame.rows, frame.body_crc);
  lock_release(lock);
  if (accepted) in.settle();
  return accepted;
}
}  // namespace

Intake take_in(Queue& queue, Receiver& in, int socket, uint64_t producer) {
  Intake out{};
  while (out.bytes < kTurn) {
    const Receiver::State state = queue.sums() ? in.next_unsummed() : in.next();
    if (state == Receiver::State::ready) {
      if (!accept(queue, in, producer, in.ready())) break;
      ++out.frames;
      out.items += in.frame().rows;
      out.seen = in.frame().number + in.frame().rows;
      in.pop();
      continue;
    }
    if (state != Receiver::State::more) break;
    uint64_t bytes = in.receive(socket, !queue.sums());
    if (bytes == 0 && out.frames > 0) {
      // A client of this machine that waits for a processor may be in the middle of sending: what
      // it sends now need not go through the event loop.
      std::this_thread::yield();
      bytes = in.receive(socket, !queue.sums());
    }
    if (bytes == 0) break;
    out.bytes += bytes;
  }
  return out;
}

}  // namespace contig
