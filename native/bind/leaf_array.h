// A leaf's value as plain memory: an array of whatever library, through the buffer protocol or, for
// torch, through DLPack. Torch and tensordict are never imported here: if somebody has a tensor,
// somebody else has imported them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

namespace contig {

namespace nb = nanobind;

// C-contiguous memory on the host. `kind` is numpy's (b i u f c), or 0: none of them.
struct LeafArray {
  const uint8_t* data = nullptr;
  char kind = 0;
  size_t itemsize = 0;
  int ndim = 0;
  // One of the two is set: Py_ssize_t need not be int64_t.
  const Py_ssize_t* shape = nullptr;
  const int64_t* shape64 = nullptr;

  int64_t dim(size_t i) const { return shape != nullptr ? shape[i] : shape64[i]; }
  // Whether it is [skipped dims..., shape...].
  bool tail_is(const std::vector<Py_ssize_t>& want, size_t skip) const;
};

// Keeps what a LeafArray points to: with `Keep::owned` for as long as it lives, whoever else
// changes the value; with `Keep::borrowed` only until Python code runs again. The shape is to be
// read before the hold is moved.
class ArrayHold {
 public:
  ArrayHold() = default;
  ~ArrayHold();
  ArrayHold(ArrayHold&& o) noexcept;
  ArrayHold(const ArrayHold&) = delete;
  ArrayHold& operator=(const ArrayHold&) = delete;

  enum class Keep { borrowed, owned };
  // False: no such memory (another device, strided, a dtype that numpy lacks). No error is set.
  bool take(PyObject* value, Keep keep, LeafArray* out);

 private:
  bool take_tensor(PyObject* value, Keep keep, LeafArray* out);

  Py_buffer buffer_{};       // held if it has an object
  void* managed_ = nullptr;  // a DLManagedTensorVersioned
  PyObject* capsule_ = nullptr;
};

// The dict inside a plain TensorDict, borrowed; null if `value` is none. With `batch_ndim`, also
// how many batch dims it has.
PyObject* dict_of_tensordict(PyObject* value, size_t* batch_ndim = nullptr);

}  // namespace contig
