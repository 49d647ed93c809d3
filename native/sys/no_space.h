// There is no memory, or no disk, for more: StorageFull in Python.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace contig {

struct NoSpace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What to throw after an mmap that failed.
inline NoSpace cannot_map(const char* what, uint64_t bytes, int error) {
  std::string text = std::string("cannot map ") + std::to_string(bytes) + " bytes of " + what +
                     ": " + std::strerror(error);
  if (error == ENOMEM)
    text += "; the process has no addresses left: raise `ulimit -v`, or use a smaller capacity";
  return NoSpace(text);
}

}  // namespace contig
