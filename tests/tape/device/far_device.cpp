// A torch device for tests, whose memory the host cannot touch: pages are readable and writable
// only while a kernel of the device runs, so that whoever reads or writes one otherwise dies.
//
//   tensor.data_ptr() ──> pages without access ──(Open)──> kernel ──> pages without access
//
// Kernels are torch's own for the CPU: views and copies here, everything else by way of the host.
// Copies that a program asked for are counted.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>

namespace {

using at::IntArrayRef;
using at::Tensor;
constexpr auto kFar = c10::DeviceType::PrivateUse1;

std::mutex mutex;                          // guards the next two
std::map<void*, size_t> sizes;             // of allocations, by their first byte
std::map<void*, int> open;                 // kernels that use one now
std::atomic<int64_t> sent{0}, fetched{0};  // bytes that a program copied
thread_local bool in_fallback = false;     // whose copies are the device's own affair

void release(void* memory) {
  std::lock_guard<std::mutex> hold(mutex);
  munmap(memory, sizes[memory]);
  sizes.erase(memory);
}

struct Far final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kFar, 0);
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "the far device has too little memory for ", bytes);
    std::lock_guard<std::mutex> hold(mutex);
    sizes[memory] = bytes;
    return {memory, memory, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not used"); }
} far;

// While it lives, a tensor's memory can be used: by a tensor of the CPU over it.
class Open {
 public:
  explicit Open(const Tensor& tensor) : tensor_(tensor) {
    if (tensor.device().type() != kFar || !tensor.storage().nbytes()) return;
    memory_ = tensor.storage().mutable_data();
    std::lock_guard<std::mutex> hold(mutex);
    if (open[memory_]++ == 0) mprotect(memory_, sizes[memory_], PROT_READ | PROT_WRITE);
  }
  ~Open() {
    if (memory_ == nullptr) return;
    std::lock_guard<std::mutex> hold(mutex);
    if (--open[memory_] == 0) mprotect(memory_, sizes[memory_], PROT_NONE);
  }
  Open(const Open&) = delete;

  Tensor here() const {
    if (tensor_.device().type() != kFar) return tensor_;
    auto* at = static_cast<uint8_t*>(tensor_.storage().mutable_data());
    if (at != nullptr) at += tensor_.storage_offset() * tensor_.itemsize();
    Tensor out =
        at::from_blob(at, tensor_.sizes(), tensor_.strides(), tensor_.options().device(c10::kCPU));
    out._set_conj(tensor_.is_conj());
    out._set_neg(tensor_.is_neg());
    return out;
  }

 private:
  const Tensor& tensor_;
  void* memory_ = nullptr;
};

Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device>, std::optional<bool>,
             std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &far, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &far,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (!in_fallback && from.device() != to.device()) {
    (to.device().type() == kFar ? sent : fetched) += static_cast<int64_t>(from.nbytes());
  }
  Open source(from), target(to);
  target.here().copy_(source.here());
  return to;
}

const Tensor& resize(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat>) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(size)) * self.itemsize();
  if (bytes > self.storage().nbytes()) {  // only of what is empty: nothing is kept
    TORCH_CHECK(self.numel() == 0 && self.storage_offset() == 0, "resize_ of what has values");
    self.storage().set_data_ptr(far.allocate(bytes));
    self.storage().set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  fetched += static_cast<int64_t>(tensor.nbytes());
  Open source(tensor);
  return source.here().item();
}

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride,
                  std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor view(const Tensor& self, IntArrayRef size) { return at::native::view(self, size); }

Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

// As a real device does: indices may be the host's, and numbers without dims; nothing else.
void refuse_mixed(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name().rfind("aten::index", 0) == 0 && op.schema().name() != "aten::index_select")
    return;
  for (const auto& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const Tensor& tensor = value.toTensor();
    TORCH_CHECK(tensor.device().type() == kFar || tensor.dim() == 0, op.schema().name(),
                ": expected all tensors on the far device, got one of ", tensor.device());
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_mixed(op, *stack);
  const bool before = in_fallback;
  in_fallback = true;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    in_fallback = before;
    throw;
  }
  in_fallback = before;
}

// Random numbers are the host's, as kernels are.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }
} hooks;
const bool registered = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

std::vector<int64_t> moved() { return {sent.exchange(0), fetched.exchange(0)}; }

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<kFar>);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

// The copy itself minds the bits of conjugated and negated tensors.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY(far_device, m) { m.def("moved() -> int[]", moved); }
