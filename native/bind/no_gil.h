// Running without the GIL, and taking it back even while the interpreter ends.
//
// A daemon thread that asks for the GIL after the interpreter began to end is ended by Python, by
// unwinding its stack: through C++ frames that is a call of std::terminate, and the whole program
// aborts at its last moment. So, once `end_no_gil` was called (at exit), such a thread sleeps until
// the process is gone instead.
//
// The same end waits for a thread that drops the last reference to a mapping from C++: to unmap it,
// Python gives the GIL away and takes it back. What is `Held` is not dropped then; it goes with the
// process.
#pragma once

#include <Python.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace contig {

// Inside another one, or where `release` is false, nothing happens.
struct NoGil {
  explicit NoGil(bool release = true)
      : state_(release && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~NoGil() {
    if (state_ == nullptr) return;
    while (!may_return()) std::this_thread::sleep_for(std::chrono::hours(1));
    PyEval_RestoreThread(state_);
    returned();
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

  // Whether this thread may still ask for the GIL; if so, `returned` must follow.
  static bool may_return() {
    returning.fetch_add(1);
    if (!ending.load() || std::this_thread::get_id() == main_) return true;
    returning.fetch_sub(1);
    return false;
  }
  static void returned() { returning.fetch_sub(1); }

  // At exit, with the GIL: lets those that are on their way back get there, and nobody after them.
  static void end() {
    main_ = std::this_thread::get_id();
    ending.store(true);
    PyThreadState* state = PyEval_SaveThread();
    while (returning.load() > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    PyEval_RestoreThread(state);
  }

 private:
  static inline std::atomic<bool> ending{false};
  static inline std::atomic<int> returning{0};
  static inline std::thread::id main_;
  PyThreadState* state_;
};

// A reference to memory of somebody else's, held by an object of ours.
template <class T>
class Held {
 public:
  explicit Held(T value) : value_(new T(std::move(value))) {}
  ~Held() {
    if (!NoGil::may_return()) return;
    delete value_;
    NoGil::returned();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  T& operator*() { return *value_; }

 private:
  T* value_;
};

}  // namespace contig
