// What native code throws besides the standard library's own exceptions; native/bind/errors.cpp
// says which Python exception each of them becomes.
#pragma once

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <system_error>

namespace contig {

// Something was used after it was closed.
struct Closed : std::runtime_error {
  using std::runtime_error::runtime_error;
  Closed() : std::runtime_error("this storage is closed") {}
};

// Words in shared memory that no writer can have left there.
struct Damaged : std::runtime_error {
  explicit Damaged(const std::string& what);
};

// More is connected, or in flight, than there is room for.
struct Overload : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory for rows cannot be had.
struct NoSpace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call of the system's that failed, by its number: `errno` unless another one is given.
[[noreturn]] inline void throw_system_error(const std::string& what, int number = errno) {
  throw std::system_error(number, std::generic_category(), what);
}

// A mapping of memory or of a file that failed; the remedy, where there are no addresses.
[[noreturn]] inline void throw_cannot_map(const char* what, uint64_t bytes, int number = errno) {
  std::string text = "cannot map " + std::to_string(bytes) + " bytes of " + what;
  if (number == ENOMEM) text += ": raise `ulimit -v`, or use a smaller capacity";
  throw_system_error(text, number);
}

}  // namespace contig
