// Frames on their way from a connection's socket into a table, without the interpreter: as long as
// each is the ordinary case. Whatever is not, is left at the receiver's front for its caller.
#pragma once

#include <cstdint>

#include "native/queue/queue.h"
#include "native/wire/receiver.h"

namespace contig {

// What was taken in of a frame, or of several.
struct TakenIn {
  uint64_t bytes = 0;    // received
  uint64_t frames = 0;   // taken in whole
  uint64_t items = 0;    // taken in
  uint64_t rows = 0;     // of them
  uint64_t partial = 0;  // items, in the frame that is at the front now
  uint64_t seen = 0;     // of the producer's items, if any were taken in
};

// Where frames of one producer go.
class Intake {
 public:
  virtual ~Intake() = default;
  // Whether it takes in frames whose checksums nobody has looked at yet.
  virtual bool sums() const { return false; }
  // Items of a frame of this table.
  virtual uint64_t items_of(const Frame& frame) const = 0;
  // Takes in the frame at the front if it is ordinary: items from `next` of the producer on, for
  // which there is room before `deadline` (by `steady_now`). How many of its items are in now.
  virtual uint64_t accept(Receiver& in, uint64_t next, double deadline) = 0;
};

double steady_now();

// All waits for room together last no longer than `patience_s`. Returns when the socket has nothing
// more, when something comes that is not ordinary, when the table's lock is not to be had, or after
// a good part, so that other connections have their turn.
TakenIn take_in(Intake& table, Receiver& in, int socket, uint64_t next, double patience_s);

// Into a batch queue: items are rows. More than there is room for goes in by and by.
class QueueIntake : public Intake {
 public:
  QueueIntake(Queue& queue, uint64_t producer, double lock_s)
      : queue_(queue), producer_(producer), lock_s_(lock_s) {}
  bool sums() const override { return queue_.sums(); }
  uint64_t items_of(const Frame& frame) const override { return frame.rows; }
  uint64_t accept(Receiver& in, uint64_t next, double deadline) override;

 private:
  Queue& queue_;
  const uint64_t producer_;
  const double lock_s_;
};

}  // namespace contig
