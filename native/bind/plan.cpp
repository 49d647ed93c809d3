#include "plan.h"

#include <cmath>
#include <cstring>

#include "blob_values.h"
#include "handles.h"
#include "native/kernels/crc32c.h"
#include "native/wire/items.h"

namespace contig {

namespace {
// Values of a row are copied with the GIL. Larger ones are Python's, which makes columns of them:
// those are held, and copied without it.
constexpr uint64_t kMostPacked = 4u << 20;

// float64 to float32; false if a finite value would become infinite.
bool narrow(double wide, uint8_t* to) {
  const auto x = static_cast<float>(wide);
  std::memcpy(to, &x, 4);
  return std::isfinite(x) || !std::isfinite(wide);
}

// A view of other bytes may have bools that are neither 0 nor 1; what is stored has none.
void copy_bools(uint8_t* to, const uint8_t* from, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = from[i] != 0;
}

// False if flags that were given disagree.
bool complete(const DualSpec& d, uint8_t* to, const uint8_t* a, const uint8_t* b) {
  const auto is_set = [](const uint8_t* p, size_t bytes) {
    for (size_t i = 0; i + 1 < bytes; ++i)
      if (p[i] != 0) return true;
    // A float's negative zero is not set; no integer flag has only its highest bit.
    return (p[bytes - 1] & (bytes > 1 ? 0x7F : 0xFF)) != 0;
  };
  const bool x = d.op != DualSpec::zero && is_set(a, d.a.bytes);
  const bool two = d.op != DualSpec::zero && d.op != DualSpec::copy;
  const bool y = two && is_set(b, d.b.bytes);
  if (d.op == DualSpec::check) return is_set(to, d.to.bytes) == (x || y);
  const bool value = d.op == DualSpec::either ? x || y : x && !y;
  if (value)
    std::memcpy(to, d.one.data(), d.to.bytes);
  else
    std::memset(to, 0, d.to.bytes);
  return true;
}

// The same of flags of one byte each, one behind the other: without a branch for each row.
bool complete_bytes(const DualSpec& d, uint8_t* to, const uint8_t* a, const uint8_t* b, size_t n) {
  const auto one = static_cast<uint8_t>(d.one.empty() ? 0 : d.one[0]);
  uint8_t differs = 0;
  switch (d.op) {
    case DualSpec::zero:
      std::memset(to, 0, n);
      break;
    case DualSpec::copy:
      for (size_t i = 0; i < n; ++i) to[i] = a[i] != 0 ? one : 0;
      break;
    case DualSpec::either:
      for (size_t i = 0; i < n; ++i) to[i] = (a[i] | b[i]) != 0 ? one : 0;
      break;
    case DualSpec::and_not:
      for (size_t i = 0; i < n; ++i) to[i] = a[i] != 0 && b[i] == 0 ? one : 0;
      break;
    case DualSpec::check:
      for (size_t i = 0; i < n; ++i) differs |= (to[i] != 0) != ((a[i] | b[i]) != 0);
      break;
  }
  return differs == 0;
}

// `to` is written, unless it is only checked.
bool complete_rows(const DualSpec& d, const Column& to, const Column* a, const Column* b,
                   uint64_t n) {
  const auto dense = [](const Column* c) {
    return c == nullptr || (c->bytes == 1 && c->stride == 1);
  };
  auto* out = const_cast<uint8_t*>(to.data);
  const uint8_t *x = a ? a->data : nullptr, *y = b ? b->data : nullptr;
  if (dense(&to) && dense(a) && dense(b)) return complete_bytes(d, out, x, y, n);
  for (uint64_t i = 0; i < n; ++i)
    if (!complete(d, out + i * to.stride, a ? x + i * a->stride : nullptr,
                  b ? y + i * b->stride : nullptr))
      return false;
  return true;
}
}  // namespace

Plan::Plan(nb::object tree, std::vector<LeafSpec> leaves, std::vector<DualSpec> duals,
           size_t record_size)
    : root_(build(tree, leaves.size())),
      leaves_(std::move(leaves)),
      duals_(std::move(duals)),
      record_size_(record_size) {}

Plan::Node Plan::build(nb::handle tree, size_t n_leaves) {
  Node node;
  node.type = nb::borrow(tree.type());
  if (tree.is_none()) return node;  // no children, and its own type
  if (nb::isinstance<nb::dict>(tree)) {
    node.mapping = true;
    for (auto item : nb::borrow<nb::dict>(tree)) {
      nb::object key = nb::borrow(item.first);
      node.children.emplace_back(key, build(item.second, n_leaves));
    }
  } else if (nb::isinstance<nb::tuple>(tree) || nb::isinstance<nb::list>(tree)) {
    for (nb::handle child : tree) node.children.emplace_back(nb::none(), build(child, n_leaves));
  } else if (tree.is(nb::ellipsis())) {
    node.type = nb::object();  // a container that only Python can walk: no value has this type
  } else {
    node.leaf = nb::cast<int>(tree);
    if (node.leaf < 0 || static_cast<size_t>(node.leaf) >= n_leaves)
      throw std::invalid_argument("Plan: no leaf " + std::to_string(node.leaf));
  }
  return node;
}

template <class F>
bool Plan::each_child(const Node& node, PyObject* value, F f) {
  if (node.mapping) {
    if (!PyDict_Check(value)) value = dict_of_tensordict(value);
    if (value == nullptr || PyDict_GET_SIZE(value) != (Py_ssize_t)node.children.size())
      return false;
    for (const auto& child : node.children) {
      PyObject* item = PyDict_GetItemWithError(value, child.first.ptr());
      if (item == nullptr) {
        PyErr_Clear();
        return false;
      }
      if (!f(child.second, item)) return false;
    }
    return true;
  }
  // Of a namedtuple the very class: another one may have its fields in another order.
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != node.type.ptr()) return false;
  if (value == Py_None) return true;
  const bool tuple = PyTuple_Check(value);
  const Py_ssize_t n = tuple ? PyTuple_GET_SIZE(value) : PyList_GET_SIZE(value);
  if (n != (Py_ssize_t)node.children.size()) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = tuple ? PyTuple_GET_ITEM(value, i) : PyList_GET_ITEM(value, i);
    if (!f(node.children[i].second, item)) return false;
  }
  return true;
}

bool Plan::pack(PyObject* tree, uint8_t* record, LeafSums* sums,
                std::vector<uint8_t>* blobs) const {
  size_t batch_ndim = 0;
  if (!PyDict_Check(tree)) dict_of_tensordict(tree, &batch_ndim);
  if (batch_ndim != 0) return false;  // rows, not a row
  Packing to{record, sums, blobs};
  if (!pack_node(root_, tree, to)) return false;
  for (const DualSpec& d : duals_)
    if (!complete(d, record + d.to.offset, record + d.a.offset, record + d.b.offset)) return false;
  return true;
}

bool Plan::pack_node(const Node& node, PyObject* value, Packing& to) const {
  if (node.leaf >= 0) {
    const LeafSpec& leaf = leaves_[node.leaf];
    return leaf.variable == LeafSpec::fixed ? pack_leaf(leaf, value, to.record, to.sums)
                                            : pack_place(node.leaf, value, to);
  }
  return each_child(node, value,
                    [&](const Node& child, PyObject* item) { return pack_node(child, item, to); });
}

bool Plan::pack_place(int number, PyObject* value, Packing& to) const {
  // Bytes are in the record's order, which a tree that is no mapping need not have.
  if (to.blobs == nullptr || number < to.last_blob) return false;
  to.last_blob = number;
  const uint64_t before = to.blobs->size();
  if (!pack_blob(leaves_[number], value, kMostPacked, to.blobs)) return false;
  store_place(to.record + leaves_[number].offset, BlobPlace{before, to.blobs->size() - before});
  return true;
}

bool Plan::pack_leaf(const LeafSpec& leaf, PyObject* value, uint8_t* record, LeafSums* sums) const {
  uint8_t* to = record + leaf.offset;
  if (leaf.bytes > kMostPacked) return false;
  if (leaf.shape.empty()) {
    if (PyFloat_CheckExact(value)) {
      const double x = PyFloat_AS_DOUBLE(value);
      if (leaf.kind == 'f' && leaf.itemsize == 4) return narrow(x, to);
      if (leaf.kind == 'f' && leaf.itemsize == 8) {
        std::memcpy(to, &x, 8);
        return true;
      }
      return false;
    }
    if (PyBool_Check(value)) {
      if (leaf.kind != 'b') return false;
      *to = value == Py_True ? 1 : 0;
      return true;
    }
    if (PyLong_CheckExact(value)) {
      if (leaf.kind != 'i' || leaf.itemsize != 8) return false;
      const long long x = PyLong_AsLongLong(value);
      if (x == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
      }
      std::memcpy(to, &x, 8);
      return true;
    }
  }
  if (PyBytes_Check(value) || PyByteArray_Check(value) || PyMemoryView_Check(value)) return false;
  ArrayHold hold;
  LeafArray v;
  if (!hold.take(value, ArrayHold::Keep::borrowed, &v) || !v.tail_is(leaf.shape, 0)) return false;
  if (v.kind == 'b' && leaf.kind == 'b') {
    copy_bools(to, v.data, leaf.bytes);
    return true;
  }
  if (v.kind == leaf.kind && v.itemsize == leaf.itemsize) {
    if (sums != nullptr && sums->wants(leaf.bytes))
      sums->add({leaf.offset, leaf.bytes, crc32c_copy(0, to, v.data, leaf.bytes)});
    else if (leaf.bytes > 0)
      std::memcpy(to, v.data, leaf.bytes);
    return true;
  }
  if (v.kind == 'f' && v.itemsize == 8 && leaf.kind == 'f' && leaf.itemsize == 4) {
    const size_t n = leaf.bytes / 4;
    for (size_t i = 0; i < n; ++i) {
      double wide;
      std::memcpy(&wide, v.data + i * 8, 8);
      if (!narrow(wide, to + i * 4)) return false;
    }
    return true;
  }
  return false;
}

bool Plan::columns(PyObject* tree, size_t batch_ndim, ColumnSet* out) const {
  if (!column_node(root_, tree, batch_ndim, out)) return false;
  for (const auto& [leaf, value] : out->any_size)
    if (!blob_column(*leaf, value.ptr(), out)) return false;
  if (out->columns.empty()) {  // of leaves of any size only: a column of them is flat
    if (out->blobs.empty() || batch_ndim != 1) return false;
    out->batch = {static_cast<Py_ssize_t>(out->blobs[0].spans.size())};
  }
  out->rows = 1;
  for (const Py_ssize_t n : out->batch) out->rows *= static_cast<uint64_t>(n);
  for (size_t i = 0; i < out->blobs.size(); ++i)
    if (out->blobs[i].spans.size() != out->rows ||
        (i > 0 && out->blobs[i].offset < out->blobs[i - 1].offset))
      return false;
  const NoGil no_gil(out->rows * record_size_ >= kKeepGil);
  return complete_columns(out);
}

// Makes bools 0 or 1, and adds the flags that the data lacks.
bool Plan::complete_columns(ColumnSet* out) const {
  for (const size_t i : out->bools) {
    Column& column = out->columns[i];
    const uint64_t bytes = out->rows * column.bytes;
    if (are_bools(column.data, 1, bytes, Bools{0, bytes})) continue;
    out->owned.push_back(std::make_unique<uint8_t[]>(bytes));
    copy_bools(out->owned.back().get(), column.data, bytes);
    column.data = out->owned.back().get();
  }
  const auto at = [&](size_t offset) -> const Column* {
    for (const Column& c : out->columns)
      if (c.offset == offset && c.bytes > 0) return &c;
    return nullptr;
  };
  for (const DualSpec& d : duals_) {
    const Column *a = at(d.a.offset), *b = at(d.b.offset), *given = at(d.to.offset);
    const bool two = d.op != DualSpec::zero && d.op != DualSpec::copy;
    if ((d.op != DualSpec::zero && a == nullptr) || (two && b == nullptr)) return false;
    std::unique_ptr<uint8_t[]> made;
    if (d.op != DualSpec::check) made = std::make_unique<uint8_t[]>(out->rows * d.to.bytes + 1);
    const Column to = made ? Column{made.get(), d.to.offset, d.to.bytes, d.to.bytes} : *given;
    if (!complete_rows(d, to, a, b, out->rows)) return false;
    if (!made) continue;
    out->columns.push_back(to);
    out->owned.push_back(std::move(made));
  }
  return true;
}

bool Plan::column_node(const Node& node, PyObject* value, size_t batch_ndim, ColumnSet* out) const {
  if (node.leaf < 0)
    return each_child(node, value, [&](const Node& child, PyObject* item) {
      return column_node(child, item, batch_ndim, out);
    });
  const LeafSpec& leaf = leaves_[node.leaf];
  if (leaf.variable != LeafSpec::fixed) {
    out->any_size.emplace_back(&leaf, nb::borrow(value));
    return true;
  }
  LeafArray v;
  out->holds.emplace_back();
  if (!out->holds.back().take(value, ArrayHold::Keep::owned, &v)) return false;
  if (!v.tail_is(leaf.shape, batch_ndim) || v.kind != leaf.kind || v.itemsize != leaf.itemsize)
    return false;
  const bool first = out->columns.empty();
  if (first) out->batch.resize(batch_ndim);
  for (size_t i = 0; i < batch_ndim; ++i) {
    if (first) out->batch[i] = static_cast<Py_ssize_t>(v.dim(i));
    if (v.dim(i) != out->batch[i]) return false;
  }
  if (leaf.kind == 'b') out->bools.push_back(out->columns.size());
  out->columns.push_back(Column{v.data, leaf.offset, leaf.bytes, leaf.bytes});
  return true;
}

}  // namespace contig
