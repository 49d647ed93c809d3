#include "native/sys/process.h"

#if defined(__linux__) || defined(__APPLE__)
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#else
#include <process.h>
#define getpid _getpid
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#endif

namespace contig {

namespace {
constexpr int kPidBits = 32;

uint64_t pid_namespace() {
#if defined(__linux__)
  struct stat s{};
  if (stat("/proc/self/ns/pid", &s) == 0) return static_cast<uint64_t>(s.st_ino) << kPidBits;
#endif
  return 0;
}
}  // namespace

uint64_t process_id() {
  static const uint64_t space = pid_namespace();
  return space | static_cast<uint32_t>(getpid());
}

bool process_gone(uint64_t id) {
  const auto pid = static_cast<uint32_t>(id);
  if (pid == 0 || (id ^ process_id()) >> kPidBits != 0) return false;
#if defined(__linux__) && defined(SYS_pidfd_open)
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd >= 0) {
    pollfd ended{fd, POLLIN, 0};
    const bool gone = poll(&ended, 1, 0) == 1;
    close(fd);
    return gone;
  }
#endif
#if defined(__linux__) || defined(__APPLE__)
  return kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
#else
  return false;
#endif
}

}  // namespace contig
