// An array of zeros that costs memory only where it is written to. The system does not promise the
// rest either (MAP_NORESERVE): else a process that has a few large ones could not be forked.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>

#ifndef _WIN32
#include <sys/mman.h>
#endif

#include "native/sys/errors.h"

namespace contig {

template <typename T>
class SparseArray {
  static_assert(std::is_trivial_v<T>, "it begins as zeros, and is never destroyed");

 public:
  explicit SparseArray(uint64_t n) : bytes_(n * sizeof(T)) {
#ifdef _WIN32
    data_ = static_cast<T*>(std::calloc(n, sizeof(T)));
    if (data_ == nullptr) throw std::bad_alloc();
#else
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void* p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) throw_cannot_map("memory", bytes_, errno);
    data_ = static_cast<T*>(p);
#endif
  }
  ~SparseArray() {
#ifdef _WIN32
    std::free(data_);
#else
    ::munmap(data_, bytes_);
#endif
  }
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;

  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }

 private:
  uint64_t bytes_;
  T* data_;
};

}  // namespace contig
