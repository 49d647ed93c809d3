// A Layout compiled for speed: where each leaf sits in a tree and where it goes in the record.
// Pure reads of Python objects (dicts, TensorDicts, tuples of arrays and tensors); anything it does
// not understand makes it answer "no", and Python's slower path either converts the value or words
// the error.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "leaf_array.h"
#include "native/tape/tape.h"
#include "native/wire/frame_builder.h"

namespace contig {

namespace nb = nanobind;

// One leaf as the layout declares it. `kind` is numpy's: b i u f c.
struct LeafSpec {
  char kind;
  size_t itemsize, offset, bytes;
  std::vector<Py_ssize_t> shape;
  // Of any size: the record has its place, and the shape is that of one of its elements.
  enum Variable : char { fixed = 0, ragged = 'r', blob = 'b', text = 't' } variable = fixed;
  uint64_t element() const {
    uint64_t n = itemsize;
    for (const Py_ssize_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
};

// A flag leaf that the data lacks and that follows from its duals; or, where all three are given,
// the check that they agree.
struct DualSpec {
  enum Op { zero, copy, either, and_not, check } op;
  struct Place {
    size_t offset, bytes;
  } to, a, b;
  std::string one;  // what "true" looks like in `to`
};

// Columns of a tree of arrays, with what keeps them alive.
class ColumnSet {
 public:
  std::vector<ArrayHold> holds;
  std::vector<Column> columns;
  std::vector<std::unique_ptr<uint8_t[]>> owned;
  std::vector<BlobColumn> blobs;  // of leaves of any size
  std::vector<nb::object> kept;
  // What is left to do when the tree was walked, and all of it is held: leaves of any size, with
  // their values, and columns whose bools are to be checked. Both may let other threads run Python.
  std::vector<std::pair<const LeafSpec*, nb::object>> any_size;
  std::vector<size_t> bools;
  uint64_t rows = 0;
  std::vector<Py_ssize_t> batch;  // leading dims
};

class Plan {
 public:
  // `tree` mirrors the example: dict, list or tuple of leaf numbers, and `...` for any other
  // container.
  Plan(nb::object tree, std::vector<LeafSpec> leaves, std::vector<DualSpec> duals,
       size_t record_size);

  size_t record_size() const { return record_size_; }
  // Packs one row into `record`; false: not understood, `record` is then undefined. Checksums of
  // large leaves, taken on the way, are added to `sums` if it is given.
  // The bytes of leaves of any size go to `blobs`; without it such leaves are not understood.
  bool pack(PyObject* tree, uint8_t* record, LeafSums* sums = nullptr,
            std::vector<uint8_t>* blobs = nullptr) const;
  // Finds the columns of a tree of [batch..., leaf...] arrays; false: not understood.
  bool columns(PyObject* tree, size_t batch_ndim, ColumnSet* out) const;

 private:
  struct Node {
    int leaf = -1;
    bool mapping = false;
    nb::object type;  // of the container
    std::vector<std::pair<nb::object, Node>> children;
  };
  static Node build(nb::handle tree, size_t n_leaves);
  // What one row is packed into.
  struct Packing {
    uint8_t* record;
    LeafSums* sums;
    std::vector<uint8_t>* blobs;
    int last_blob = -1;  // leaf
  };
  bool pack_node(const Node& node, PyObject* value, Packing& to) const;
  bool pack_place(int leaf, PyObject* value, Packing& to) const;
  bool pack_leaf(const LeafSpec& leaf, PyObject* value, uint8_t* record, LeafSums* sums) const;
  bool column_node(const Node& node, PyObject* value, size_t batch_ndim, ColumnSet* out) const;
  bool complete_columns(ColumnSet* out) const;
  template <class F>
  static bool each_child(const Node& node, PyObject* value, F f);

  Node root_;
  std::vector<LeafSpec> leaves_;
  std::vector<DualSpec> duals_;
  size_t record_size_;
};

}  // namespace contig
