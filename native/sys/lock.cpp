#include "native/sys/lock.h"

#include <cerrno>
#include <chrono>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "native/sys/wait.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(_WIN32)
#include <process.h>
#define CONTIG_GETPID _getpid
#else
#include <unistd.h>
#define CONTIG_GETPID getpid
#endif

namespace contig {

namespace {
void took(Lock& lock) {
  lock.holder.store(static_cast<uint64_t>(CONTIG_GETPID()), std::memory_order_relaxed);
}

#if CONTIG_ROBUST
void relax() {
#if defined(__SSE2__)
  for (int i = 0; i < 8; ++i) _mm_pause();
#endif
}

bool settle(Lock& lock, int rc) {
  if (rc == EOWNERDEAD) {
    // The holder was killed. The tape's undo record says what to put back; the mutex itself only
    // needs to be declared usable again.
    pthread_mutex_consistent(&lock.mutex);
    rc = 0;
  }
  if (rc == 0) took(lock);
  return rc == 0;
}
#endif
}  // namespace

uint64_t lock_holder(const Lock& lock) {
  const uint64_t pid = lock.holder.load(std::memory_order_relaxed);
#if CONTIG_ROBUST && defined(__GLIBC__)
  // Stopped between taking the mutex and noting its pid.
  if (pid == 0) return static_cast<uint64_t>(lock.mutex.__data.__owner);
#endif
  return pid;
}

#if CONTIG_ROBUST

void lock_init(Lock& lock) {
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&lock.mutex, &attr);
  pthread_mutexattr_destroy(&attr);
  lock.holder.store(0);
}

bool lock_is_sound(const Lock& lock) {
#if defined(__GLIBC__)
  // A mutex of another kind goes other ways, some of which end the process.
  static const int kind = [] {
    Lock sound;
    lock_init(sound);
    return sound.mutex.__data.__kind;
  }();
  return lock.mutex.__data.__kind == kind;
#else
  (void)lock;
  return true;
#endif
}

bool lock_try(Lock& lock) { return settle(lock, pthread_mutex_trylock(&lock.mutex)); }

bool lock_until(Lock& lock, double timeout_s) {
  timeout_s = countable(timeout_s);
  // Mostly it is held for the time of a copy: shorter than it takes to fall asleep.
  for (int attempt = 0; attempt < 40; ++attempt) {
    if (lock_try(lock)) return true;
    relax();
  }
  timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  const auto ns = static_cast<int64_t>(timeout_s * 1e9) + deadline.tv_nsec;
  deadline.tv_sec += static_cast<time_t>(ns / 1000000000);
  deadline.tv_nsec = static_cast<long>(ns % 1000000000);
  const int rc = pthread_mutex_timedlock(&lock.mutex, &deadline);
  if (rc == EDEADLK) throw std::logic_error("the tape's lock is already held by this thread");
  return settle(lock, rc);
}

bool lock_release(Lock& lock) {
  const uint64_t holder = lock.holder.exchange(0, std::memory_order_relaxed);
  if (pthread_mutex_unlock(&lock.mutex) == 0) return true;
  lock.holder.store(holder, std::memory_order_relaxed);
  return false;
}

#else

void lock_init(Lock& lock) {
  lock.word.store(0);
  lock.holder.store(0);
}

bool lock_is_sound(const Lock&) { return true; }

bool lock_try(Lock& lock) {
  uint32_t free_word = 0;
  if (!lock.word.compare_exchange_strong(free_word, 1, std::memory_order_acquire)) return false;
  took(lock);
  return true;
}

bool lock_until(Lock& lock, double timeout_s) {
  timeout_s = countable(timeout_s);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  while (!lock_try(lock)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

bool lock_release(Lock& lock) {
  lock.holder.store(0, std::memory_order_relaxed);
  return lock.word.exchange(0, std::memory_order_release) != 0;
}

#endif

}  // namespace contig
