// The columns of a block as numpy arrays. numpy's own C interface makes an array in a quarter of
// the time that a call of `numpy.ndarray` takes, and a batch is some ten of them.
#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <nanobind/stl/tuple.h>
#include <numpy/arrayobject.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "handles.h"

namespace contig {

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 62;

// Shapes, types and places of a block's columns; arrays over any block of that form.
class ColumnArrays {
 public:
  explicit ColumnArrays(nb::list views) {
    for (nb::handle view : views) {
      const auto [shape, dtype, offset] = nb::cast<std::tuple<nb::tuple, nb::object, size_t>>(view);
      if (!PyArray_DescrCheck(dtype.ptr()))
        throw nb::type_error("ColumnArrays: expected (shape, dtype, offset) of each column");
      Column column{dtype, {}, offset, 0, nb::cast<uint64_t>(dtype.attr("alignment"))};
      auto bytes = nb::cast<uint64_t>(dtype.attr("itemsize"));
      for (nb::handle n : shape) {
        const auto length = nb::cast<uint64_t>(n);
        if (length > kMostBytes || (length != 0 && bytes > kMostBytes / length))
          throw nb::value_error("ColumnArrays: a column larger than memory");
        bytes *= length;
        column.shape.push_back(static_cast<npy_intp>(length));
      }
      column.bytes = bytes;
      columns_.push_back(std::move(column));
    }
  }

  // The arrays keep the block alive, as those of `numpy.ndarray(buffer=block)` do.
  nb::list over(nb::handle block) const {
    Py_buffer held;
    const bool writable = PyObject_GetBuffer(block.ptr(), &held, PyBUF_WRITABLE) == 0;
    if (!writable) {
      PyErr_Clear();
      if (PyObject_GetBuffer(block.ptr(), &held, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    auto* const data = static_cast<uint8_t*>(held.buf);
    const auto size = static_cast<uint64_t>(held.len);
    PyBuffer_Release(&held);
    auto out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(columns_.size())));
    if (!out.is_valid()) throw nb::python_error();
    for (size_t i = 0; i < columns_.size(); ++i) {
      const Column& column = columns_[i];
      if (column.offset > size || column.bytes > size - column.offset)
        throw nb::value_error(("a block of " + std::to_string(size) + " bytes is too small for " +
                               std::to_string(column.bytes) + " at " +
                               std::to_string(column.offset))
                                  .c_str());
      PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i),
                      array(column, data + column.offset, writable, block));
    }
    return out;
  }

 private:
  struct Column {
    nb::object dtype;
    std::vector<npy_intp> shape;
    uint64_t offset, bytes, alignment;
  };

  static PyObject* array(const Column& column, uint8_t* data, bool writable, nb::handle block) {
    const bool aligned = reinterpret_cast<uintptr_t>(data) % column.alignment == 0;
    const int flags = NPY_ARRAY_C_CONTIGUOUS | (aligned ? NPY_ARRAY_ALIGNED : 0) |
                      (writable ? NPY_ARRAY_WRITEABLE : 0);
    auto* const descr = reinterpret_cast<PyArray_Descr*>(column.dtype.inc_ref().ptr());
    PyObject* const out = PyArray_NewFromDescr(
        &PyArray_Type, descr, static_cast<int>(column.shape.size()),
        const_cast<npy_intp*>(column.shape.data()), nullptr, data, flags, nullptr);
    if (out == nullptr) throw nb::python_error();
    if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(out), block.inc_ref().ptr()) != 0) {
      Py_DECREF(out);
      throw nb::python_error();
    }
    return out;
  }

  std::vector<Column> columns_;
};

int import_numpy() {
  import_array1(-1);
  return 0;
}

}  // namespace

void bind_columns(nb::module_& m) {
  if (import_numpy() != 0) throw nb::python_error();
  nb::class_<ColumnArrays>(m, "ColumnArrays")
      .def(nb::init<nb::list>(), nb::arg("views"))
      .def("over", &ColumnArrays::over, nb::arg("block"));
}

}  // namespace contig
