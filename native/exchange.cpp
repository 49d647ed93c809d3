#include "exchange.h"

#include <algorithm>
#include <cerrno>
#include <cmath>

#if defined(__linux__) || defined(__APPLE__)
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#endif

namespace contig {

#if defined(__linux__) || defined(__APPLE__)

namespace {

constexpr size_t kParts = 64;  // per call of sendmsg
#ifdef MSG_NOSIGNAL
constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
constexpr int kFlags = MSG_DONTWAIT;
#endif

int milliseconds(double seconds) {
  if (seconds < 0) return -1;
  return static_cast<int>(std::min(std::ceil(seconds * 1000), 1e9));
}

}  // namespace

bool can_exchange() { return true; }

Exchanged exchange(int socket, int wake, const std::vector<Span>& parts, double timeout_s) {
  Exchanged out{};
  size_t at = 0, from = 0;  // the part, and how much of it is sent
  for (;;) {
    while (at < parts.size()) {
      iovec iov[kParts];
      size_t n = 0;
      for (size_t p = at; p < parts.size() && n < kParts; ++p, ++n) {
        const size_t skip = p == at ? from : 0;
        iov[n] = {const_cast<uint8_t*>(parts[p].data) + skip, parts[p].bytes - skip};
      }
      msghdr message{};
      message.msg_iov = iov;
      message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(n);
      const ssize_t sent = sendmsg(socket, &message, kFlags);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        out.error = errno;
        return out;
      }
      out.sent += static_cast<uint64_t>(sent);
      from += static_cast<size_t>(sent);
      while (at < parts.size() && from >= parts[at].bytes) from -= parts[at++].bytes;
    }
    const bool more = at < parts.size();
    const short wanted = static_cast<short>(POLLIN | (more ? POLLOUT : 0));
    pollfd fds[2] = {{socket, wanted, 0}, {wake, POLLIN, 0}};
    const int wait = more ? -1 : parts.empty() ? milliseconds(timeout_s) : 0;
    const int ready = poll(fds, 2, wait);
    if (ready < 0 && errno != EINTR) {
      out.error = errno;
      return out;
    }
    out.readable = ready > 0 && (fds[0].revents & ~POLLOUT) != 0;
    out.woken = ready > 0 && fds[1].revents != 0;
    if (out.readable || out.woken || !more) return out;
  }
}

#else

bool can_exchange() { return false; }

Exchanged exchange(int, int, const std::vector<Span>&, double) { return {0, false, false, ENOSYS}; }

#endif

}  // namespace contig
