// One way to wait for another process: a futex on Linux, polling elsewhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace contig {

// Bumps the word and wakes everybody who waits on it. A load when nobody does.
void wake(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters);

// Seconds that clocks can add up: what is longer, infinity too, is some years.
inline double countable(double seconds) { return seconds > 0 ? std::min(seconds, 1e8) : 0; }

// Waits until the word differs from `seen` or `timeout_s` has passed; true if it differs.
// Callers wait in slices short enough for Ctrl-C.
bool wait_change(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t seen,
                 double timeout_s);

}  // namespace contig
