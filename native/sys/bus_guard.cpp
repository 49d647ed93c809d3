#include "native/sys/bus_guard.h"

#if defined(__linux__) || defined(__APPLE__)

#include <csignal>
#include <mutex>

namespace contig {

thread_local sigjmp_buf* bus_return = nullptr;

namespace {
struct sigaction before;

void on_bus(int, siginfo_t*, void*) {
  if (bus_return != nullptr) siglongjmp(*bus_return, 1);
  sigaction(SIGBUS, &before, nullptr);  // not ours: it comes again when we return
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus;
}
}  // namespace

void install_bus_handler() {
  struct sigaction now;
  sigaction(SIGBUS, nullptr, &now);
  if (is_ours(now)) return;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  struct sigaction action = {};
  action.sa_sigaction = on_bus;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;  // the mask stays as it was
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &now);
  if (!is_ours(now)) before = now;  // or another thread was faster
}

}  // namespace contig

#endif
