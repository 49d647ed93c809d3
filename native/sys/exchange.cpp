#include "native/sys/exchange.h"

#include <cerrno>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <stdio.h>
#endif

namespace contig {

int exchange_paths(const char* one, const char* other) {
#if defined(__linux__) && defined(SYS_renameat2)
  constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE; older C libraries do not name it
  return syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, kExchange) == 0 ? 0 : errno;
#elif defined(__APPLE__)
  return renamex_np(one, other, RENAME_SWAP) == 0 ? 0 : errno;
#else
  (void)one;
  (void)other;
  return ENOSYS;
#endif
}

}  // namespace contig
