#include "native/tape/gather.h"

#include <algorithm>
#include <cstring>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include "native/kernels/copy.h"
#include "native/sys/bus_guard.h"
#include "native/tape/gather_slots.h"
#include "native/tape/stored_rows.h"
#include "native/tape/stored_slots.h"

namespace contig {

namespace {
constexpr size_t kGroup = 8;   // rows in flight
constexpr size_t kAhead = 16;  // of files: their pages' places are not in the cache either

#if defined(__GNUC__) || defined(__clang__)
void prefetch(const uint8_t* p, size_t bytes) {
  const size_t upto = bytes < 512 ? bytes : 512;
  for (size_t i = 0; i < upto; i += 64) __builtin_prefetch(p + i, 0, 1);
  __builtin_prefetch(p + upto - 1, 0, 1);  // rows do not start at cache lines: one more of them
}
#else
void prefetch(const uint8_t*, size_t) {}
#endif
}  // namespace

uint64_t gather_columns(const Tape& tape, const int64_t* seqs, size_t n, const Target* targets,
                        size_t n_targets) {
  // In groups of rows: while one is copied leaf by leaf, the next one is on its way from memory.
  const size_t size = tape.row_bytes();
  const uint8_t *now[kGroup], *next[kGroup];
  RowFinder find(tape);
  const auto fetch = [&](size_t at, const uint8_t** rows) {
    const size_t count = at < n ? std::min(kGroup, n - at) : 0;
    for (size_t i = 0; i < count; ++i) {
      rows[i] = find(static_cast<uint64_t>(seqs[at + i]));
      prefetch(rows[i], size);
    }
    return count;
  };
  size_t count = fetch(0, now);
  for (size_t at = 0; at < n; at += kGroup) {
    const size_t upcoming = fetch(at + kGroup, next);
    for (size_t c = 0; c < n_targets; ++c) {
      const Target& t = targets[c];
      copy_leaf(t.column + at * t.bytes, now, t.offset, t.bytes, count);
    }
    std::copy(next, next + upcoming, now);
    count = upcoming;
  }
  return tail_after(tape);
}

void read_ahead(const Tape& tape, const int64_t* seqs, size_t n) {
#if defined(__linux__) || defined(__APPLE__)
  constexpr uintptr_t page = 4096;
  for (size_t i = 0; i < n; ++i) {
    const auto row = reinterpret_cast<uintptr_t>(tape.row(static_cast<uint64_t>(seqs[i])));
    const uintptr_t first = row / page * page;
    madvise(reinterpret_cast<void*>(first), row + tape.stride() - first, MADV_WILLNEED);
  }
  if (!tape.blob_leaves().empty()) read_bytes_ahead(tape, seqs, n);
#else
  (void)tape, (void)seqs, (void)n;
#endif
}

void find_damaged(const Tape& tape, const int64_t* seqs, size_t n, std::vector<int64_t>* out) {
  const size_t size = tape.stored_size();
  const bool any_size = !tape.blob_leaves().empty();
  const auto row = [&](size_t i) { return tape.row(static_cast<uint64_t>(seqs[i])); };
  volatile size_t at = 0;  // the row that is being read, for when its file was cut
  const auto check = [&] {
    for (size_t i = at; i < std::min(n, at + kAhead); ++i) prefetch(row(i), size + 4);
    for (size_t i = at; i < n; ++i) {
      at = i;
      if (i + kAhead < n) prefetch(row(i + kAhead), size + 4);
      const auto seq = static_cast<uint64_t>(seqs[i]);
      // What it says of its bytes is not checked yet, but leads into the ring wherever it is.
      if (tape.form() && i + kGroup < n) {
        ask_for_slots(tape, static_cast<uint64_t>(seqs[i + kGroup]));
      } else if (any_size && i + kGroup < n) {
        const BlobPlace ahead = load_place(row(i + kGroup) + tape.blob_leaves().front().offset);
        tape.blobs().prefetch(ahead.position, ahead.bytes);
      }
      if (!(any_size ? stored_whole(tape, seq) : tape.sums().whole(seq, row(i), size)))
        out->push_back(static_cast<int64_t>(i));
    }
  };
  while (!unless_cut(check)) {
    out->push_back(static_cast<int64_t>(at));
    at = at + 1;
  }
}

void find_damaged(const Tape& tape, uint64_t low, uint64_t high, std::vector<int64_t>* out) {
  const bool any_size = !tape.blob_leaves().empty();
  volatile uint64_t at = low;
  const auto check = [&] {
    for (uint64_t seq = at; seq < high; ++seq) {
      at = seq;
      if (!(any_size ? stored_whole(tape, seq)
                     : tape.sums().whole(seq, tape.row(seq), tape.record_size())))
        out->push_back(static_cast<int64_t>(seq));
    }
  };
  while (!unless_cut(check)) {
    out->push_back(static_cast<int64_t>(at));
    at = at + 1;
  }
}

void decode_rows(const uint8_t* stored, size_t n, size_t size, size_t stride, const RowSums& sums,
                 uint64_t first, uint8_t* out, std::vector<int64_t>* damaged) {
  for (size_t i = 0; i < n; ++i, stored += stride, out += size) {
    if (!sums.whole(first + i, stored, size)) damaged->push_back(static_cast<int64_t>(i));
    std::memcpy(out, stored, size);
  }
}

uint64_t gather_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out) {
  if (tape.form())
    return tape.checked() ? gather_stored_records(tape, seqs, n, out)
                          : gather_whole_records(tape, seqs, n, out);
  const size_t size = tape.record_size();
  for (size_t i = 0; i < n; ++i) {
    if (i + kGroup < n) prefetch(tape.row(static_cast<uint64_t>(seqs[i + kGroup])), size);
    copy_bytes(out + i * size, tape.row(static_cast<uint64_t>(seqs[i])), size);
  }
  return tail_after(tape);
}

void split_records(const uint8_t* records, size_t n, size_t record_size, const Target* targets,
                   size_t n_targets) {
  for (size_t i = 0; i < n; ++i, records += record_size)
    for (size_t c = 0; c < n_targets; ++c) {
      const Target& t = targets[c];
      copy_bytes(t.column + i * t.bytes, records + t.offset, t.bytes);
    }
}

void join_columns(const Rows& rows, size_t record_size, uint8_t* out) {
  for (uint64_t i = 0; i < rows.n; ++i, out += record_size)
    for (size_t c = 0; c < rows.n_columns; ++c) {
      const Column& col = rows.columns[c];
      copy_bytes(out + col.offset, col.data + i * col.stride, col.bytes);
    }
}

void encode_rows(const Rows& rows, uint64_t skip, size_t size, size_t stride, const RowSums& sums,
                 uint64_t first, uint8_t* out, const std::vector<BlobLeaf>& leaves, uint64_t base) {
  for (uint64_t i = skip; i < rows.n; ++i, out += stride) {
    std::memset(out, 0, stride);
    if (rows.records != nullptr) {
      std::memcpy(out, rows.records + i * size, size);
    } else {
      for (size_t c = 0; c < rows.n_columns; ++c) {
        const Column& col = rows.columns[c];
        std::memcpy(out + col.offset, col.data + i * col.stride, col.bytes);
      }
    }
    if (!leaves.empty()) {
      for (const BlobLeaf& leaf : leaves) {
        if (rows.blob_first == 0) break;
        BlobPlace place = load_place(out + leaf.offset);
        place.position -= rows.blob_first;
        store_place(out + leaf.offset, place);
      }
      seal_row(out, size, leaves, sums, first + (i - skip), rows.blobs, base);
      continue;
    }
    const uint32_t crc = sums.of(first + (i - skip), out, size);
    std::memcpy(out + size, &crc, sizeof crc);
  }
}

}  // namespace contig
