// Work in parts: what a thread throws arrives where the work was asked for, when all have ended.
#include <atomic>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "native/sys/threads.h"

using namespace contig;

#define CHECK(x)                                                   \
  do {                                                             \
    if (!(x)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
      return 1;                                                    \
    }                                                              \
  } while (false)

int main() {
  for (size_t n : {0, 1, 2, 7, 64}) {
    std::vector<int> done(n, 0);
    run_parts(n, [&](size_t i) { ++done[i]; });
    for (const int times : done) CHECK(times == 1);
  }
  for (size_t bad : {0, 1, 5}) {
    std::atomic<int> others{0};
    bool caught = false;
    try {
      run_parts(6, [&](size_t i) {
        if (i == bad) throw std::bad_alloc();
        ++others;
      });
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    CHECK(caught && others == 5);
  }
  try {
    run_parts(8, [](size_t) { throw std::runtime_error("each of them"); });
    return 1;
  } catch (const std::runtime_error&) {
  }
  return 0;
}
