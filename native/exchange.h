// Sending to a socket while listening to it, without going back to the caller in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

struct Span {
  const uint8_t* data;
  size_t bytes;
};

struct Exchanged {
  uint64_t sent;
  bool readable;  // something came, or the connection ended
  bool woken;     // something came to `wake`
  int error;      // errno, or 0
};

// Whether there is an `exchange` on this system.
bool can_exchange();

// Sends `parts`, waiting for room where there is none; returns when all is sent, or as soon as one
// of the sockets can be read. With nothing to send it waits for that, or for `timeout_s` (negative:
// for ever). Both sockets are non-blocking.
Exchanged exchange(int socket, int wake, const std::vector<Span>& parts, double timeout_s);

}  // namespace contig
