#include "native/sys/wait.h"

#include <chrono>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#endif

namespace contig {

void wake(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters) {
  word.fetch_add(1, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) == 0) return;
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

bool wait_change(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t seen,
                 double timeout_s) {
  timeout_s = countable(timeout_s);
  if (word.load(std::memory_order_acquire) != seen) return true;
#if defined(__linux__)
  // A killed waiter leaves `waiters` too high: a wasted syscall per append, never a lost wake-up.
  waiters.fetch_add(1, std::memory_order_seq_cst);
  timespec ts;
  ts.tv_sec = static_cast<time_t>(timeout_s);
  ts.tv_nsec = static_cast<long>((timeout_s - static_cast<double>(ts.tv_sec)) * 1e9);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &ts, nullptr, 0);
  waiters.fetch_sub(1, std::memory_order_seq_cst);
#else
  (void)waiters;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  while (word.load(std::memory_order_acquire) == seen &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
#endif
  return word.load(std::memory_order_acquire) != seen;
}

}  // namespace contig
