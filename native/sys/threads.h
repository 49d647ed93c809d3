// Work in parts, by threads of its own.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace contig {

// Calls part(0) ... part(n - 1): the first one here, each other one in a thread where the process
// can have one. Returns when all have ended; what one of them threw is thrown then. (From a
// thread's own function it would end the process.)
template <class Part>
void run_parts(size_t n, const Part& part) {
  std::vector<std::exception_ptr> errors(n);
  const auto run = [&](size_t i) noexcept {
    try {
      part(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(n);
  for (size_t i = 1; i < n; ++i) {
    try {
      others.emplace_back(run, i);
    } catch (const std::system_error&) {  // no more threads for this process
      run(i);
    } catch (const std::bad_alloc&) {
      run(i);
    }
  }
  if (n > 0) run(0);
  for (std::thread& t : others) t.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace contig
