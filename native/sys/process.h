// Who holds something in shared memory, and whether that process is still there.
#pragma once

#include <cstdint>

namespace contig {

// This process as others can look it up: its pid, and above it the pid namespace it counts in.
uint64_t process_id();

// Whether a process has ended; a zombie has. False where that cannot be told, as for one of
// another pid namespace.
bool process_gone(uint64_t id);

}  // namespace contig
