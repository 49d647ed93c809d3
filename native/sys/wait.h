// One way to wait for another process: a futex on Linux, polling elsewhere.
#pragma once

#include <atomic>
#include <cstdint>

namespace contig {

// Bumps the word and wakes everybody who waits on it. A load when nobody does.
void wake(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters);

// Waits until the word differs from `seen` or `timeout_s` has passed; true if it differs.
// Callers wait in slices short enough for Ctrl-C.
bool wait_change(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t seen,
                 double timeout_s);

}  // namespace contig
