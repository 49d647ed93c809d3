// Frames on their way from a connection's socket into a queue, without the interpreter: as long as
// each is the ordinary case. Whatever is not, is left at the receiver's front for its caller.
#pragma once

#include <cstdint>

#include "native/queue/queue.h"
#include "native/wire/receiver.h"

namespace contig {

struct ReceiveLoop {
  uint64_t bytes;    // received
  uint64_t frames;   // taken in whole
  uint64_t items;    // taken in
  uint64_t partial;  // of them, in the frame that is at the front now
  uint64_t seen;     // of the producer's items, if any were taken in
};

// Ordinary: items of this queue's records, from number `next` of their producer on, for which there
// is room soon: all waits together last no longer than `patience_s`. Returns when the socket has
// nothing more, when something else comes, when the queue's lock is not to be had, or after a good
// part, so that other connections have their turn.
ReceiveLoop take_in(Queue& queue, Receiver& in, int socket, uint64_t producer, uint64_t next,
                    double patience_s);

}  // namespace contig
