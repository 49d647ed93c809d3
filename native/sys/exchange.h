// Two paths whose files or directories change places, in one step.
#pragma once

namespace contig {

// 0, or what `errno` says. ENOSYS where the system has no such call; a file system without it says
// EINVAL or ENOTSUP.
int exchange_paths(const char* one, const char* other);

}  // namespace contig
