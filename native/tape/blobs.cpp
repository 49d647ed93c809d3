#include "native/tape/blobs.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "native/kernels/prefetch.h"
#include "native/sys/bus_guard.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr size_t kAhead = 8;  // rows in flight
}  // namespace

void BlobRing::read(uint64_t position, uint64_t bytes, uint8_t* to) const {
  const uint64_t at = position % size, first = std::min(bytes, size - at);
  copy_bytes(to, data + at, first);
  if (first < bytes) copy_bytes(to + first, data, bytes - first);
}

void BlobRing::write(uint64_t position, uint64_t bytes, const uint8_t* from) const {
  const uint64_t at = position % size, first = std::min(bytes, size - at);
  store_bytes(data + at, from, first);
  if (first < bytes) store_bytes(data, from + first, bytes - first);
}

BlobRows::BlobRows(const Rows& rows, const std::vector<BlobLeaf>& leaves, size_t record_size)
    : rows_(rows), leaves_(leaves) {
  for (const BlobLeaf& leaf : leaves) {
    if (rows.records != nullptr) {
      data_.push_back(rows.records + leaf.offset);
      stride_.push_back(record_size);
      continue;
    }
    const Column* end = rows.columns + rows.n_columns;
    const Column* found = std::find_if(rows.columns, end, [&](const Column& c) {
      return c.offset == leaf.offset && c.bytes == kPlaceBytes;
    });
    if (found == end) throw std::invalid_argument("append: a leaf of any size has no column");
    data_.push_back(found->data);
    stride_.push_back(found->stride);
  }
}

BlobPlace BlobRows::at(uint64_t row, size_t leaf) const {
  const BlobPlace place = load_place(data_[leaf] + row * stride_[leaf]);
  return BlobPlace{place.position - rows_.blob_first, place.bytes};
}

void BlobRows::check(uint64_t most, const std::vector<std::string>& names) const {
  uint64_t at = 0;
  for (uint64_t row = 0; row < rows_.n; ++row) {
    const uint64_t began = at;
    for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
      const BlobPlace place = this->at(row, leaf);
      if (place.position != at || place.bytes > rows_.blob_bytes - at ||
          place.bytes % leaves_[leaf].element != 0)
        throw std::invalid_argument("append: bytes of row " + std::to_string(row) +
                                    " are not where they should be");
      at += place.bytes;
    }
    if (at - began > most) {
      size_t largest = 0;
      for (size_t leaf = 1; leaf < leaves_.size(); ++leaf)
        if (this->at(row, leaf).bytes > this->at(row, largest).bytes) largest = leaf;
      const std::string name = largest < names.size() ? names[largest] + ": " : "";
      throw std::invalid_argument(
          name + "row " + std::to_string(row) + " has " +
          std::to_string(this->at(row, largest).bytes) + " bytes in it, " +
          std::to_string(at - began) +
          " in all leaves of any size, and the storage's ring has room for " +
          std::to_string(most) + "; nothing was written. Raise blob_bytes=, or store smaller rows");
    }
  }
  if (at != rows_.blob_bytes) throw std::invalid_argument("append: bytes that belong to no row");
}

uint64_t BlobRows::begin(uint64_t row) const {
  return row < rows_.n ? at(row, 0).position : rows_.blob_bytes;
}

void PackedBlobs::pack(const std::vector<BlobColumn>& columns, std::vector<Column>* out,
                       Rows* rows) {
  const uint64_t n = rows->n;
  places_ = std::make_unique<uint8_t[]>(columns.size() * n * kPlaceBytes);
  uint64_t at = 0;
  bool adjacent = columns.size() == 1;
  const uint8_t* next = nullptr;
  for (uint64_t i = 0; i < n; ++i)
    for (size_t c = 0; c < columns.size(); ++c) {
      const Span& span = columns[c].spans[i];
      store_place(places_.get() + (c * n + i) * kPlaceBytes, BlobPlace{at, span.bytes});
      adjacent = adjacent && (span.bytes == 0 || next == nullptr || span.data == next);
      if (span.bytes > 0) next = span.data + span.bytes;
      at += span.bytes;
    }
  rows->blob_bytes = at;
  if (adjacent && at > 0) {
    rows->blobs = next - at;
  } else if (at > 0) {
    bytes_ = std::unique_ptr<uint8_t[]>(new uint8_t[at]);
    uint8_t* to = bytes_.get();
    for (uint64_t i = 0; i < n; ++i)
      for (const BlobColumn& column : columns) {
        copy_bytes(to, column.spans[i].data, column.spans[i].bytes);
        to += column.spans[i].bytes;
      }
    rows->blobs = bytes_.get();
  }
  for (size_t c = 0; c < columns.size(); ++c)
    out->push_back(
        Column{places_.get() + c * n * kPlaceBytes, columns[c].offset, kPlaceBytes, kPlaceBytes});
}

uint64_t BlobGather::measure(const Tape& tape, const BlobLeaf& leaf, const int64_t* seqs,
                             size_t n) {
  std::vector<BlobPlace> places(n);
  const auto at = [&](size_t i) { return tape.row(static_cast<uint64_t>(seqs[i])) + leaf.offset; };
  for (size_t i = 0; i < std::min(n, kAhead); ++i) ask_for(at(i), kPlaceBytes);
  volatile size_t next = 0;  // for when the file of a row was cut
  const auto load = [&] {
    for (size_t i = next; i < n; ++i) {
      next = i;
      if (i + kAhead < n) ask_for(at(i + kAhead), kPlaceBytes);
      places[i] = load_place(at(i));
    }
  };
  if (tape.checked()) {
    while (!unless_cut(load)) next = next + 1;  // its bytes cannot be copied either
  } else {
    load();
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t tail = tape.header().tail.load(std::memory_order_relaxed);
  uint64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    // A row that was never written may have anything there, too.
    if (static_cast<uint64_t>(seqs[i]) < tail || places[i].bytes > tape.blobs().size ||
        places[i].bytes % leaf.element != 0)
      places[i].bytes = 0;
    total += places[i].bytes;
  }
  places_.push_back(std::move(places));
  totals_.push_back(total);
  elements_.push_back(leaf.element);
  return tail;
}

void BlobGather::copy(const Tape& tape, size_t leaf, int64_t* offsets, uint8_t* values) const {
  const std::vector<BlobPlace>& places = places_[leaf];
  const BlobRing& ring = tape.blobs();
  const size_t n = places.size();
  for (size_t i = 0; i < std::min(n, kAhead); ++i)
    ring.prefetch(places[i].position, places[i].bytes);
  uint64_t at = 0;
  offsets[0] = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) ring.prefetch(places[i + kAhead].position, places[i + kAhead].bytes);
    ring.read(places[i].position, places[i].bytes, values + at);
    at += places[i].bytes;
    offsets[i + 1] = static_cast<int64_t>(at / elements_[leaf]);
  }
}

}  // namespace contig
