// Running without the GIL, and taking it back even while the interpreter ends.
//
// A daemon thread that asks for the GIL after the interpreter began to end is ended by Python, by
// unwinding its stack: through C++ frames that is a call of std::terminate, and the whole program
// aborts at its last moment. So, once `end_no_gil` was called (at exit), such a thread sleeps until
// the process is gone instead.
#pragma once

#include <Python.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace contig {

struct NoGil {
  static inline std::atomic<bool> ending{false};
  static inline std::atomic<int> returning{0};

  NoGil() : state_(PyEval_SaveThread()) {}
  ~NoGil() {
    returning.fetch_add(1);
    if (ending.load() && std::this_thread::get_id() != main_) {
      returning.fetch_sub(1);
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    PyEval_RestoreThread(state_);
    returning.fetch_sub(1);
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

  // At exit, with the GIL: lets those that are on their way back get there, and nobody after them.
  static void end() {
    main_ = std::this_thread::get_id();
    ending.store(true);
    PyThreadState* state = PyEval_SaveThread();
    while (returning.load() > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    PyEval_RestoreThread(state);
  }

 private:
  static inline std::thread::id main_;
  PyThreadState* state_;
};

}  // namespace contig
