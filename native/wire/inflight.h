// What a client has on its way: frames that wait for their turn, frames that were sent and are not
// acked, and requests. Callers gather items in the frame builder; one thread sends them, and hears
// of acks, without the interpreter (`run`).
//
// Thread-safe: everything is guarded by the builder's mutex, which nobody holds while it waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/wire/frame_builder.h"
#include "native/wire/pulse.h"
#include "native/wire/receiver.h"
#include "native/wire/sent_slots.h"

namespace contig {

class Inflight {
 public:
  // At most `max_frames` may be unacked.
  Inflight(uint64_t record_size, bool padded, uint64_t first, uint64_t frame_bytes,
           uint64_t max_frames);

  FrameBuilder builder;

  // -- for callers --------------------------------------------------------------------------------

  enum class Room { some, frames, bytes };  // or too many of which
  // Whether another item may be added.
  Room room();
  // A request, to be sent before the items that wait.
  void ask(std::string frame);
  // Whether the sending thread waits for something to send, and has to be woken: once.
  bool rouse();
  bool idle() const { return idle_.load(std::memory_order_relaxed); }

  // Counts what callers may wait for: acks that make room or reach what somebody waits for, and
  // whatever `notify` was called for. `wait` returns when it differs from `seen`.
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  void wait(uint64_t seen, uint64_t upto, double timeout_s);
  void notify();

  uint64_t frames();      // not acked, complete
  uint64_t bytes();       // not acked, with those of the open frame
  uint64_t sent_bytes();  // of frames that were sent and are not acked
  uint64_t acked() const { return acked_.load(std::memory_order_acquire); }
  uint64_t most_bytes();

  // -- for the sending thread ---------------------------------------------------------------------

  // How many bytes the server wants in flight at most, and whether it is on this machine.
  void limit(uint64_t max_bytes, bool near);
  // A new connection, whose server keeps so many bytes of slots that came; 0: it keeps none.
  void carry(uint64_t bytes);
  // A new connection on which neither side is silent for so long, or it is lost; 0: no such thing.
  void heartbeat(double seconds);
  // A new connection, whose server has items below `seen`: everything else is sent again, after
  // these requests. How many frames had been sent before.
  uint64_t resume(uint64_t seen, std::vector<std::string> requests);
  // Behind `resume`, for a server that stores observations in another way than the one before:
  // frames that were made for that one are made anew, of whole records.
  void reshape(const SharedForm* form, uint64_t most);
  void close() { closing_.store(true, std::memory_order_relaxed); }  // nothing waits for more
  void stop() { stopped_.store(true, std::memory_order_release); }
  // Nobody adds anything any more: ends when everything is acked, or after so many seconds.
  void leave(double seconds);
  // The server has items below a number. Whether that is new.
  bool ack(uint64_t number);

  // What is to be sent next, in order. Holds on to it until it is let go of.
  struct Part {
    const uint8_t* data;
    size_t bytes;
    std::shared_ptr<const void> owner;
  };
  std::vector<Part> next_parts();
  // How long to wait for something to send: negative for ever, and then `idle`.
  double patience();

  enum class Event { stopped, frame, refused, closed, failed, silent, drained };
  // Whether it was told to end, and how: `stopped`, also for being late, or `drained`.
  std::optional<Event> ended();
  // Seconds until it is late; infinity: it was not told to leave.
  double time_left() const;
  // Sends and hears acks until something comes that is none: `frame` is at the receiver's front;
  // `refused` by it; the peer `closed`; the socket `failed` with `error`; the peer is `silent` for
  // longer than it should be; everything is acked and it was told to leave.
  Event run(int socket, int wake, Receiver& in, int* error);
  static bool can_run();

 private:
  Room too_much() const;
  uint64_t bound() const;
  void line_up(std::shared_ptr<OutFrame> frame);
  void line_up_full();
  void add_parts(const std::shared_ptr<OutFrame>& frame, std::vector<Part>* parts);
  void changed();
  std::optional<Event> hear(Receiver& in);
  std::optional<Event> send_some(int socket, int* error);
  std::optional<Event> wait_for_input(int socket, int wake, int* error, bool* readable);

  const uint64_t max_frames_;
  uint64_t max_bytes_ = std::numeric_limits<uint64_t>::max();
  bool near_ = false;
  std::deque<std::shared_ptr<OutFrame>> unacked_;  // oldest first
  uint64_t unsent_ = 0;                            // of them, from the end: not on their way yet
  uint64_t bytes_ = 0, sent_bytes_ = 0;            // of all of them, and of those on their way
  uint64_t largest_ = 0;                           // frame so far
  uint64_t carry_ = 0;
  SentSlots sent_;  // over this connection
  std::deque<std::string> asked_;
  double opened_at_ = -1;   // when an open frame was first seen that waits for more
  bool held_back_ = false;  // the next frame would be more than may be in flight
  std::atomic<uint64_t> acked_, changes_{0};
  std::atomic<bool> idle_{false}, closing_{false}, stopped_{false};
  std::condition_variable change_;
  uint64_t waiters_ = 0;
  uint64_t watched_ = std::numeric_limits<uint64_t>::max();  // the least that somebody waits for
  // Of the connection that `run` serves:
  std::vector<Part> sending_;
  size_t part_ = 0, offset_ = 0;
  Pulse pulse_;
  std::atomic<double> leave_at_{std::numeric_limits<double>::infinity()};
};

}  // namespace contig
