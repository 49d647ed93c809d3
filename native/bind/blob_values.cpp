#include "blob_values.h"

#include "handles.h"

namespace contig {

namespace {

// An array [n, *inner] of the leaf's own dtype. Bools may have to be made 0 or 1: not here.
bool fits(const LeafSpec& leaf, const LeafArray& v) {
  return leaf.kind != 'b' && v.kind == leaf.kind && v.itemsize == leaf.itemsize &&
         v.tail_is(leaf.shape, 1);
}

bool bytes_of(const LeafSpec& leaf, PyObject* value, Span* out) {
  Py_ssize_t n = 0;
  const void* data = nullptr;
  if (leaf.variable == LeafSpec::blob && PyBytes_CheckExact(value)) {
    data = PyBytes_AS_STRING(value);
    n = PyBytes_GET_SIZE(value);
  } else if (leaf.variable == LeafSpec::text && PyUnicode_CheckExact(value)) {
    data = PyUnicode_AsUTF8AndSize(value, &n);  // kept in the string
    if (data == nullptr) PyErr_Clear();
  }
  *out = Span{static_cast<const uint8_t*>(data), static_cast<uint64_t>(n)};
  return data != nullptr;
}

bool is_sequence(PyObject* value) { return PyList_CheckExact(value) || PyTuple_CheckExact(value); }

bool list_column(const LeafSpec& leaf, PyObject* list, ColumnSet* set) {
  constexpr Py_ssize_t kAtOnce = 4096;  // items, before other threads may run
  const bool tuple = PyTuple_CheckExact(list);
  const Py_ssize_t n = tuple ? PyTuple_GET_SIZE(list) : PyList_GET_SIZE(list);
  std::vector<Span>& spans = set->blobs.back().spans;
  spans.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (i % kAtOnce == kAtOnce - 1) {
      {
        const NoGil no_gil;
      }
      if (!tuple && PyList_GET_SIZE(list) != n) return false;  // somebody has changed it
    }
    PyObject* item = tuple ? PyTuple_GET_ITEM(list, i) : PyList_GET_ITEM(list, i);
    Span span;
    if (leaf.variable != LeafSpec::ragged) {
      if (!bytes_of(leaf, item, &span)) return false;
      set->kept.push_back(nb::borrow(item));
    } else {
      LeafArray v;
      set->holds.emplace_back();
      if (!set->holds.back().take(item, ArrayHold::Keep::owned, &v) || !fits(leaf, v)) return false;
      span = Span{v.data, static_cast<uint64_t>(v.dim(0)) * leaf.element()};
    }
    spans.push_back(span);
  }
  return true;
}

// A column of bytes that are wanted as such: text may have to be checked.
bool is_plain_blob(const LeafSpec& leaf, PyObject* value) {
  if (leaf.variable != LeafSpec::blob) return false;
  PyObject* text = PyObject_GetAttrString(value, "text");
  if (text == nullptr) PyErr_Clear();
  Py_XDECREF(text);
  return text == Py_False;
}

// Of an object with `values` [sum, *inner] and `offsets` [n + 1].
bool ragged_column(const LeafSpec& leaf, PyObject* value, ColumnSet* set) {
  static PyObject* const values = PyUnicode_InternFromString("values");
  static PyObject* const offsets = PyUnicode_InternFromString("offsets");
  if (leaf.variable != LeafSpec::ragged && !is_plain_blob(leaf, value)) return false;
  LeafArray found[2];
  PyObject* const names[] = {values, offsets};
  for (int i = 0; i < 2; ++i) {
    PyObject* array = PyObject_GetAttr(value, names[i]);
    if (array == nullptr) {
      PyErr_Clear();
      return false;
    }
    set->kept.push_back(nb::steal(array));
    set->holds.emplace_back();
    if (!set->holds.back().take(array, ArrayHold::Keep::owned, &found[i])) return false;
  }
  const LeafArray &v = found[0], &o = found[1];
  if (!fits(leaf, v) || o.kind != 'i' || o.itemsize != 8 || o.ndim != 1 || o.dim(0) < 1)
    return false;
  const auto* at = reinterpret_cast<const int64_t*>(o.data);
  std::vector<Span>& spans = set->blobs.back().spans;
  const int64_t n = o.dim(0) - 1, most = v.dim(0);
  const NoGil no_gil(static_cast<uint64_t>(n) * sizeof(Span) >= kKeepGil);
  spans.reserve(static_cast<size_t>(n));
  int64_t from = at[0];
  if (from < 0) return false;
  for (int64_t i = 1; i <= n; ++i) {
    const int64_t to = at[i];  // read once: another thread may write there
    if (to < from || to > most) return false;
    spans.push_back(Span{v.data + static_cast<uint64_t>(from) * leaf.element(),
                         static_cast<uint64_t>(to - from) * leaf.element()});
    from = to;
  }
  return true;
}
}  // namespace

bool pack_blob(const LeafSpec& leaf, PyObject* value, uint64_t most, std::vector<uint8_t>* out) {
  Span span;
  if (leaf.variable != LeafSpec::ragged) {
    if (!bytes_of(leaf, value, &span) || span.bytes > most) return false;
    out->insert(out->end(), span.data, span.data + span.bytes);
    return true;
  }
  ArrayHold hold;
  LeafArray v;
  if (!hold.take(value, ArrayHold::Keep::borrowed, &v) || !fits(leaf, v)) return false;
  const uint64_t bytes = static_cast<uint64_t>(v.dim(0)) * leaf.element();
  if (bytes > most) return false;
  out->insert(out->end(), v.data, v.data + bytes);
  return true;
}

bool blob_column(const LeafSpec& leaf, PyObject* value, ColumnSet* set) {
  if (leaf.variable == LeafSpec::ragged && PyTuple_CheckExact(value))
    return false;  // it may be values and offsets: not here
  set->blobs.push_back(BlobColumn{leaf.offset, {}});
  return is_sequence(value) ? list_column(leaf, value, set) : ragged_column(leaf, value, set);
}

Rows pack_rows(const std::vector<BlobColumn>& blobs, uint64_t n, std::vector<Column>* columns,
               PackedColumns* packed) {
  Rows rows;
  rows.n = n;
  if (!blobs.empty()) {
    for (const BlobColumn& column : blobs)
      for (const Span& span : column.spans) packed->bytes += span.bytes + sizeof(Span);
    const NoGil no_gil(packed->bytes >= kKeepGil);
    packed->blobs.pack(blobs, columns, &rows);
  }
  rows.columns = columns->data();
  rows.n_columns = columns->size();
  return rows;
}

std::vector<BlobColumn> blob_columns_from(const nb::list& blobs, uint64_t n, uint64_t record_size) {
  std::vector<BlobColumn> list;
  for (nb::handle h : blobs) {
    const auto t = nb::borrow<nb::tuple>(h);
    const auto values = nb::cast<Record>(t[0], false);
    const auto offsets = nb::cast<Seqs>(t[1], false);
    const auto element = nb::cast<uint64_t>(t[2]);
    BlobColumn column{nb::cast<size_t>(t[3]), {}};
    check_place(column.offset, kPlaceBytes, record_size, "columns");
    if (offsets.shape(0) != n + 1 || element == 0)
      throw std::invalid_argument("columns: expected one offset more than rows");
    const uint64_t most = values.shape(0) / element;
    for (uint64_t i = 0; i < n; ++i) {
      const auto from = static_cast<uint64_t>(offsets.data()[i]);
      const auto to = static_cast<uint64_t>(offsets.data()[i + 1]);
      if (from > to || to > most) throw std::invalid_argument("columns: offsets past the values");
      column.spans.push_back(Span{values.data() + from * element, (to - from) * element});
    }
    list.push_back(std::move(column));
  }
  return list;
}

}  // namespace contig
