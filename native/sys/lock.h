// The tape's one lock: a process-shared robust mutex where the platform has one. A killed holder
// hands it to the next taker; a stopped holder gives that taker a timeout and the holder's pid.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <pthread.h>
#define CONTIG_ROBUST 1
#else
#define CONTIG_ROBUST 0
#endif

namespace contig {

struct Lock {
#if CONTIG_ROBUST
  pthread_mutex_t mutex;
#else
  std::atomic<uint32_t> word;
#endif
  std::atomic<uint64_t> holder;  // pid, for the error message only
};

void lock_init(Lock& lock);
// Whether it is one that `lock_init` made, as far as can be seen.
bool lock_is_sound(const Lock& lock);
bool lock_try(Lock& lock);
// Waits up to `timeout_s`; false if the deadline passed.
bool lock_until(Lock& lock, double timeout_s);
// False, and nothing is changed, if this thread does not hold it.
bool lock_release(Lock& lock);
// The process, or at least the thread, that holds it: for messages.
uint64_t lock_holder(const Lock& lock);

}  // namespace contig
