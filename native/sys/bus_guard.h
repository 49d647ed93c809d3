// Reading a mapped file that somebody cut is a signal, SIGBUS. Here it is an answer.
//
// Thread-safe: each thread has its own place to go back to. A signal that comes from elsewhere goes
// to whoever had the handler before.
#pragma once

#if defined(__linux__) || defined(__APPLE__)
#include <csetjmp>
#endif

namespace contig {

#if defined(__linux__) || defined(__APPLE__)

extern thread_local sigjmp_buf* bus_return;
// Also where others have put theirs in its place: Ray does, and faulthandler, whenever they begin.
void install_bus_handler();

// Calls `read`, which must own nothing that has to be destroyed; false if a page that it read is
// not there any more.
template <class Read>
bool unless_cut(const Read& read) {
  install_bus_handler();
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {
    bus_return = nullptr;
    return false;
  }
  bus_return = &here;
  read();
  bus_return = nullptr;
  return true;
}

#else

template <class Read>
bool unless_cut(const Read& read) {
  read();
  return true;
}

#endif

}  // namespace contig
