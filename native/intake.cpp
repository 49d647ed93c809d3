#include "intake.h"

namespace contig {

namespace {
constexpr uint64_t kTurn = 4 << 20;
constexpr double kPatience = 0.1;

bool accept(Queue& queue, const Receiver& in, uint64_t producer) {
  const Frame& frame = in.frame();
  if (frame.type != static_cast<uint8_t>(FrameType::items)) return false;
  if (check_items(frame, in.body(), queue.spec().record_size, false) != Refusal::none) return false;
  Lock& lock = queue.header().lock;
  if (!lock_try(lock) && !lock_until(lock, kPatience)) return false;
  queue.repair();
  const bool ordinary =
      queue.seen(producer, frame.number) == frame.number && queue.has_room(frame.rows);
  if (ordinary) queue.accept(producer, frame.number, in.body(), frame.rows);
  lock_release(lock);
  return ordinary;
}
}  // namespace

Intake take_in(Queue& queue, Receiver& in, int socket, uint64_t producer) {
  Intake out{};
  while (out.bytes < kTurn) {
    const Receiver::State state = in.next();
    if (state == Receiver::State::ready) {
      if (!accept(queue, in, producer)) break;
      ++out.frames;
      out.items += in.frame().rows;
      out.seen = in.frame().number + in.frame().rows;
      in.pop();
      continue;
    }
    if (state != Receiver::State::more) break;
    const uint64_t bytes = in.receive(socket);
    if (bytes == 0) break;
    out.bytes += bytes;
  }
  return out;
}

}  // namespace contig
