#include "native/sys/bus_guard.h"

#if defined(__linux__) || defined(__APPLE__)

#include <cerrno>
#include <csignal>
#include <mutex>

namespace contig {

thread_local sigjmp_buf* bus_return = nullptr;

namespace {
constexpr int kMostRepeats = 10000;

struct sigaction before;
// The signal that this thread is passing on to `before`, and how often it came in a row.
thread_local volatile std::sig_atomic_t passing = 0;
thread_local const void* volatile passed_address = nullptr;
thread_local volatile int repeats = 0;

// Ends the process by this signal: a fault comes again when its handler returns.
void end_by(int signal, const siginfo_t* info) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  if (info->si_code <= 0) raise(signal);  // somebody sent it
}

// Not ours. It is passed on by a call, with our handler in place: who had the signal before may
// have been switched off since, and return; or pass it on to us, who came before it once. Either
// must not go on for ever.
void pass_on(int signal, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0, same = !sent && info->si_addr == passed_address;
  repeats = same ? repeats + 1 : 0;
  const bool returned = passing != 0 && (sent || same);
  if (returned || repeats > kMostRepeats || before.sa_handler == SIG_DFL ||
      before.sa_handler == SIG_IGN)
    return end_by(signal, info);
  passing = 1;
  passed_address = sent ? nullptr : info->si_addr;
  if ((before.sa_flags & SA_SIGINFO) != 0)
    before.sa_sigaction(signal, info, context);
  else
    before.sa_handler(signal);
  passing = 0;
}

void on_bus(int signal, siginfo_t* info, void* context) {
  if (bus_return != nullptr) siglongjmp(*bus_return, 1);
  const int error = errno;
  pass_on(signal, info, context);
  errno = error;
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
