#include "native/sys/descriptor.h"

#include <utility>

#include "native/sys/errors.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace contig {

#if defined(__linux__)

Descriptor::Descriptor(int fd) {
  if (fd < 0) return;
  fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) throw_system_error("cannot keep a file open");
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

#else

Descriptor::Descriptor(int) {}  // files in memory are not supported on this platform
Descriptor::~Descriptor() = default;

#endif

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

}  // namespace contig
