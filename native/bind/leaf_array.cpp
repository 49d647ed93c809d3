#include "leaf_array.h"

#include <cstring>

namespace contig {

namespace {
using DlTensor = nb::dlpack::dltensor;

// DLPack's C interface, as far as it is used (dlpack.h, since version 1.2). It costs a tenth of a
// capsule, and a hundredth of `tensor.numpy()` through Python.
struct DlVersion {
  uint32_t major, minor;
};
struct DlManaged {
  DlVersion version;
  void* context;
  void (*release)(DlManaged*);
  uint64_t flags;
  DlTensor tensor;
};
struct DlExchange {
  DlVersion version;
  DlExchange* older;
  void* allocate;
  int (*owned)(void* object, DlManaged** out);
  void* to_python;
  int (*borrowed)(void* object, DlTensor* out);
  void* stream;
};
struct DlCapsule {  // what a capsule "dltensor" points to
  DlTensor tensor;
  void* context;
  void (*release)(DlCapsule*);
};
constexpr int kHost = 1;  // kDLCPU
enum DlCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kComplex = 5, kBool = 6 };

// An attribute of a module that is imported already; null if it is not.
PyObject* loaded(const char* module, const char* name) {
  PyObject* key = PyUnicode_FromString(module);
  PyObject* found = key != nullptr ? PyImport_GetModule(key) : nullptr;
  Py_XDECREF(key);
  PyObject* out = found != nullptr ? PyObject_GetAttrString(found, name) : nullptr;
  Py_XDECREF(found);
  PyErr_Clear();
  return out;
}

// What is needed of torch, looked up when the first value comes that is no buffer. Never freed: it
// lives as long as the interpreter.
struct Torch {
  PyObject *tensor = nullptr, *parameter = nullptr, *to_dlpack = nullptr;
  PyObject *is_neg = nullptr, *is_conj = nullptr;
  const DlExchange* exchange = nullptr;

  bool is_tensor(PyObject* value) const {
    // The very classes: of a subclass, the memory need not be all.
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
    return type == tensor || type == parameter;
  }
};

const Torch* torch() {
  static Torch found;
  if (found.tensor != nullptr) return &found;
  Torch t;
  t.tensor = loaded("torch", "Tensor");
  if (t.tensor == nullptr) return nullptr;
  t.parameter = loaded("torch.nn", "Parameter");
  t.to_dlpack = loaded("torch.utils.dlpack", "to_dlpack");
  t.is_neg = PyObject_GetAttrString(t.tensor, "is_neg");
  t.is_conj = PyObject_GetAttrString(t.tensor, "is_conj");
  PyErr_Clear();
  if (t.to_dlpack == nullptr || t.is_neg == nullptr || t.is_conj == nullptr) return nullptr;
  PyObject* capsule = PyObject_GetAttrString(t.tensor, "__dlpack_c_exchange_api__");
  PyErr_Clear();
  if (capsule != nullptr && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    const auto* api =
        static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    while (api != nullptr && api->version.major != 1) api = api->older;
    if (api != nullptr && api->borrowed != nullptr && api->owned != nullptr) t.exchange = api;
  }
  Py_XDECREF(capsule);
  found = t;
  return &found;
}

char kind_of(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1 || dtype.bits % 8 != 0) return 0;
  switch (dtype.code) {
    case kInt:
      return 'i';
    case kUInt:
      return 'u';
    case kFloat:
      return 'f';
    case kComplex:
      return 'c';
    case kBool:
      return dtype.bits == 8 ? 'b' : 0;
    default:
      return 0;
  }
}

bool contiguous(const DlTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] == 0) return true;
    if (t.shape[i] != 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

bool describe(const DlTensor& t, LeafArray* out) {
  if (t.device.device_type != kHost || !contiguous(t)) return false;
  out->kind = kind_of(t.dtype);
  out->itemsize = t.dtype.bits / 8u;
  out->ndim = t.ndim;
  out->shape64 = t.shape;
  out->data = static_cast<const uint8_t*>(t.data) + t.byte_offset;
  if (out->kind == 0) return false;
  if (t.data != nullptr) return true;
  for (int i = 0; i < t.ndim; ++i)  // only what is empty needs no memory
    if (t.shape[i] == 0) return true;
  return false;
}

// Whether a method without arguments says no; an error is a yes.
bool says_no(PyObject* method, PyObject* value) {
  PyObject* answer = PyObject_CallOneArg(method, value);
  PyErr_Clear();
  const bool no = answer == Py_False;
  Py_XDECREF(answer);
  return no;
}

// Whether it is one of numpy's masked arrays.
bool is_masked(PyObject* value) {
  static auto* array = reinterpret_cast<PyTypeObject*>(loaded("numpy", "ndarray"));
  PyTypeObject* type = Py_TYPE(value);
  if (type == array || array == nullptr || PyType_IsSubtype(type, array) == 0) return false;
  static auto* masked = reinterpret_cast<PyTypeObject*>(loaded("numpy.ma", "MaskedArray"));
  return masked == nullptr || PyType_IsSubtype(type, masked) != 0;
}

// numpy's kind of a buffer's format, or 0.
char kind_of(const char* format) {
  if (format == nullptr) return 'u';
  if (*format == '<' || *format == '=' || *format == '@' || *format == '|') ++format;
  if (format[0] == 'Z' && format[1] != 0 && format[2] == 0) return 'c';
  if (format[0] == 0 || format[1] != 0) return 0;
  switch (*format) {
    case '?':
      return 'b';
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return 'i';
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return 'u';
    case 'e':
    case 'f':
    case 'd':
    case 'g':
      return 'f';
    default:
      return 0;
  }
}
}  // namespace

bool LeafArray::tail_is(const std::vector<Py_ssize_t>& want, size_t skip) const {
  if (ndim != static_cast<int>(want.size() + skip)) return false;
  for (size_t i = 0; i < want.size(); ++i)
    if (dim(skip + i) != want[i]) return false;
  return true;
}

ArrayHold::ArrayHold(ArrayHold&& o) noexcept
    : buffer_(o.buffer_), managed_(o.managed_), capsule_(o.capsule_) {
  o.buffer_.obj = nullptr;
  o.managed_ = nullptr;
  o.capsule_ = nullptr;
}

ArrayHold::~ArrayHold() {
  PyBuffer_Release(&buffer_);  // nothing, if it has no object
  if (managed_ != nullptr) {
    auto* managed = static_cast<DlManaged*>(managed_);
    managed->release(managed);
  }
  Py_XDECREF(capsule_);  // which lets go of the tensor
}

bool ArrayHold::take(PyObject* value, Keep keep, LeafArray* out) {
  if (!PyObject_CheckBuffer(value)) return take_tensor(value, keep, out);
  if (is_masked(value)) return false;  // its memory is not its value
  if (PyObject_GetBuffer(value, &buffer_, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    buffer_.obj = nullptr;
    return false;
  }
  if (!PyBuffer_IsContiguous(&buffer_, 'C')) return false;
  out->data = static_cast<const uint8_t*>(buffer_.buf);
  out->kind = kind_of(buffer_.format);
  out->itemsize = static_cast<size_t>(buffer_.itemsize);
  out->ndim = buffer_.ndim;
  out->shape = buffer_.shape;
  return out->kind != 0;
}

bool ArrayHold::take_tensor(PyObject* value, Keep keep, LeafArray* out) {
  const Torch* t = torch();
  if (t == nullptr || !t->is_tensor(value)) return false;
  bool taken;
  if (t->exchange != nullptr && keep == Keep::borrowed) {
    DlTensor view;
    taken = t->exchange->borrowed(value, &view) == 0 && describe(view, out);
  } else if (t->exchange != nullptr) {
    DlManaged* managed = nullptr;
    taken = t->exchange->owned(value, &managed) == 0;
    managed_ = managed;
    taken = taken && describe(managed->tensor, out);
  } else {
    capsule_ = PyObject_CallOneArg(t->to_dlpack, value);
    auto* held = capsule_ != nullptr
                     ? static_cast<DlCapsule*>(PyCapsule_GetPointer(capsule_, "dltensor"))
                     : nullptr;
    taken = held != nullptr && describe(held->tensor, out);
  }
  PyErr_Clear();
  if (!taken) return false;
  // A view that is to be negated or conjugated when it is read: its memory is not its value.
  const bool real = out->kind == 'f', complex = out->kind == 'c';
  if ((real || complex) && !says_no(t->is_neg, value)) return false;
  return !complex || says_no(t->is_conj, value);
}

PyObject* dict_of_tensordict(PyObject* value, size_t* batch_ndim) {
  static PyObject *type = nullptr, *inside = nullptr, *batch = nullptr;
  if (type == nullptr) {
    type = loaded("tensordict", "TensorDict");
    if (type == nullptr) return nullptr;
    inside = PyUnicode_InternFromString("_tensordict");
    batch = PyUnicode_InternFromString("_batch_size");
  }
  // The very class: others stack lazily, or read from files.
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != type) return nullptr;
  PyObject* dict = PyObject_GetAttr(value, inside);
  PyObject* size = batch_ndim != nullptr ? PyObject_GetAttr(value, batch) : nullptr;
  PyErr_Clear();
  const bool sized = batch_ndim == nullptr || (size != nullptr && PyTuple_Check(size));
  if (batch_ndim != nullptr && sized) *batch_ndim = static_cast<size_t>(PyTuple_GET_SIZE(size));
  Py_XDECREF(size);
  Py_XDECREF(dict);  // the TensorDict has it
  return dict != nullptr && PyDict_Check(dict) && sized ? dict : nullptr;
}

}  // namespace contig
