// Rows with two leaves of any size for the native tests. Every byte follows from whose it is, so
// that any other one shows.
#pragma once

#include <cstddef>

#include "native/kernels/rng.h"
#include "native/tape/gather.h"
#include "native/tape/view.h"
#include "rows.h"

namespace blob_rows {

using contig::BlobLeaf;
using contig::BlobPlace;

struct Row {
  uint64_t writer, number, size, pos;  // the append's rows, and this one's place among them
  double reward;
  uint64_t done;
  BlobPlace bytes, words;
};
constexpr size_t kBytes = sizeof(Row);

inline const std::vector<BlobLeaf>& leaves() {
  static const auto* all =
      new std::vector<BlobLeaf>{{offsetof(Row, bytes), 1}, {offsetof(Row, words), 4}};
  return *all;
}

inline uint64_t key(const Row& r, int leaf) {
  return rows::mix(r.writer * 1000003 + r.number * 2 + static_cast<uint64_t>(leaf));
}
inline uint8_t byte(uint64_t key, uint64_t k) {
  return static_cast<uint8_t>(rows::mix(key + k / 8) >> (k % 8 * 8));
}

// What one writer appends, endlessly: rows of up to `most` bytes in all.
class Script {
 public:
  Script(uint64_t number, uint64_t longest, uint64_t most, uint64_t seed)
      : number_(number), longest_(longest), most_(most), random_(seed) {}

  void next() {
    records_.clear();
    bytes_.clear();
    const uint64_t n = 1 + random_.below(longest_);
    for (uint64_t i = 0; i < n; ++i) {
      Row r{number_, rows_++, n, i, 1, random_.below(5) == 0, {}, {}};
      const uint64_t words = random_.below(most_ / 4 + 1) * 4;
      const uint64_t sizes[] = {random_.below(most_ - words + 1), words};
      for (int leaf = 0; leaf < 2; ++leaf) {
        (leaf == 0 ? r.bytes : r.words) = BlobPlace{bytes_.size(), sizes[leaf]};
        for (uint64_t k = 0; k < sizes[leaf]; ++k) bytes_.push_back(byte(key(r, leaf), k));
      }
      records_.push_back(r);
    }
  }

  contig::Rows rows() const {
    contig::Rows r;
    r.n = records_.size();
    r.records = reinterpret_cast<const uint8_t*>(records_.data());
    r.blobs = bytes_.data();
    r.blob_bytes = bytes_.size();
    return r;
  }

  // Prepares an append of them.
  void give(contig::Writer* writer) const {
    contig::Marks m;
    m.done.kind = contig::Mark::u64;
    m.done.data = reinterpret_cast<const uint8_t*>(&records_[0].done);
    m.done.stride = kBytes;
    m.terminated = m.done;
    writer->start(rows());
    writer->add_lanes(0, records_.size(), 1, m, contig::Continue::if_open);
  }
  size_t size() const { return records_.size(); }

 private:
  uint64_t number_, longest_, most_;
  rows::Random random_;
  uint64_t rows_ = 0;
  std::vector<Row> records_;
  std::vector<uint8_t> bytes_;
};

// Gathers rows with their bytes, as a Batch is made; those that are not lost must be whole. Returns
// the tail, and counts bytes.
inline uint64_t check(const contig::Tape& tape, const std::vector<int64_t>& seqs, uint64_t* bytes) {
  const size_t n = seqs.size();
  std::vector<Row> records(n);
  contig::BlobGather gather;
  for (const BlobLeaf& leaf : leaves()) gather.measure(tape, leaf, seqs.data(), n);
  contig::gather_records(tape, seqs.data(), n, reinterpret_cast<uint8_t*>(records.data()));
  std::vector<uint8_t> values[2];
  std::vector<int64_t> offsets[2];
  for (int leaf = 0; leaf < 2; ++leaf) {
    values[leaf].resize(gather.bytes(static_cast<size_t>(leaf)) + 1);
    offsets[leaf].resize(n + 1);
    gather.copy(tape, static_cast<size_t>(leaf), offsets[leaf].data(), values[leaf].data());
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t tail = tape.header().tail.load(std::memory_order_relaxed);
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<uint64_t>(seqs[i]) < tail) continue;
    const Row& r = records[i];
    for (int leaf = 0; leaf < 2; ++leaf) {
      const uint64_t element = leaves()[static_cast<size_t>(leaf)].element;
      const uint64_t from = static_cast<uint64_t>(offsets[leaf][i]) * element;
      const uint64_t size = static_cast<uint64_t>(offsets[leaf][i + 1]) * element - from;
      if (size != (leaf == 0 ? r.bytes : r.words).bytes) rows::fail("bytes of another length");
      for (uint64_t k = 0; k < size; ++k)
        if (values[leaf][from + k] != byte(key(r, leaf), k)) rows::fail("bytes of another row");
      *bytes += size;
    }
  }
  return tail;
}

// All rows that are there, their bytes included.
inline void check_all(const contig::Tape& tape, uint64_t* bytes) {
  const contig::Snapshot s = tape.snapshot();
  std::vector<int64_t> seqs;
  for (uint64_t seq = s.tail; seq < s.head; ++seq) seqs.push_back(static_cast<int64_t>(seq));
  check(tape, seqs, bytes);
}

}  // namespace blob_rows
