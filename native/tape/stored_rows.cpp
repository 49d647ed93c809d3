#include "native/tape/stored_rows.h"

#include <algorithm>
#include <cstring>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include "native/kernels/crc32c.h"
#include "native/sys/bus_guard.h"
#include "native/tape/stored_slots.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// The checksum of bytes in the ring, behind `crc`.
uint32_t sum_of(const BlobRing& ring, const BlobPlace& span, uint32_t crc) {
  const uint64_t at = span.position % ring.size, first = std::min(span.bytes, ring.size - at);
  crc = crc32c(crc, ring.data + at, first);
  return first < span.bytes ? crc32c(crc, ring.data, span.bytes - first) : crc;
}

// The first row of [tail, head) that is not too early; `early` ascends with rows, and is asked with
// a row and where the bytes of the next one begin that can be read. Mostly it is one of the next
// rows: steps that double, then halves.
template <class Early>
uint64_t first_not(const Tape& tape, uint64_t tail, uint64_t head, const Early& early) {
  const auto before = [&](uint64_t seq) {
    BlobPlace span{0, 0};
    uint64_t next = seq;
    while (next < head && !stored_span(tape, next, &span)) ++next;
    return next < head && early(seq, span.position);
  };
  if (tail >= head || !before(tail)) return tail;
  uint64_t low = tail, step = 1;
  while (step < head - low && before(low + step)) {
    low += step;
    step *= 2;
  }
  uint64_t high = std::min(low + step, head);
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (before(middle) ? low : high) = middle;
  }
  return high;
}
}  // namespace

bool span_of(const uint8_t* record, const std::vector<BlobLeaf>& leaves, BlobPlace* out) {
  *out = BlobPlace{load_place(record + leaves.front().offset).position, 0};
  for (const BlobLeaf& leaf : leaves) {
    const BlobPlace place = load_place(record + leaf.offset);
    const uint64_t end = out->position + out->bytes;
    if (place.position != end || end + place.bytes < end) return false;
    out->bytes += place.bytes;
  }
  return true;
}

bool stored_whole(const Tape& tape, uint64_t seq) {
  if (tape.form()) return slots_whole(tape, seq);
  const uint8_t* row = tape.row(seq);
  const size_t size = tape.record_size();
  const uint32_t crc = tape.sums().of(seq, row, size);
  BlobPlace span;
  return crc == word_at(row + size) && span_of(row, tape.blob_leaves(), &span) &&
         span.bytes <= tape.blobs().size &&
         sum_of(tape.blobs(), span, crc) == word_at(row + size + 4);
}

bool stored_span(const Tape& tape, uint64_t seq, BlobPlace* span) {
  bool whole = false;
  const bool there = unless_cut([&] {
    const uint8_t* row = tape.row(seq);
    whole =
        tape.sums().whole(seq, row, tape.stored_size()) && span_of(row, tape.blob_leaves(), span);
  });
  return there && whole;
}

uint64_t stored_beyond(const Tape& tape, uint64_t position, uint64_t tail, uint64_t head) {
  return first_not(tape, tail, head, [&](uint64_t, uint64_t begin) { return begin < position; });
}

uint64_t stored_within(const Tape& tape, uint64_t stride, uint64_t bytes, uint64_t tail,
                       uint64_t head) {
  const uint64_t end = tape.header().blob_head.load(std::memory_order_relaxed);
  return first_not(tape, tail, head, [&](uint64_t seq, uint64_t begin) {
    return (head - seq) * stride + (end - std::min(begin, end)) > bytes;
  });
}

void read_bytes_ahead(const Tape& tape, const int64_t* seqs, size_t n) {
#if defined(__linux__) || defined(__APPLE__)
  constexpr uintptr_t page = 4096;
  const BlobRing& ring = tape.blobs();
  for (size_t i = 0; i < n; ++i) {
    if (tape.form()) {
      read_slots_ahead(tape, static_cast<uint64_t>(seqs[i]));
      continue;
    }
    BlobPlace span{0, 0};
    // It is not checked here: what it says of too many bytes is not believed.
    const bool there = unless_cut([&] {
      if (!span_of(tape.row(static_cast<uint64_t>(seqs[i])), tape.blob_leaves(), &span))
        span.bytes = 0;
    });
    if (!there || span.bytes == 0 || span.bytes > ring.size) continue;
    const uint64_t at = span.position % ring.size, first = at / page * page;
    madvise(ring.data + first, std::min(span.bytes, ring.size - at) + at - first, MADV_WILLNEED);
  }
#else
  (void)tape, (void)seqs, (void)n;
#endif
}

void seal_row(uint8_t* row, size_t size, const std::vector<BlobLeaf>& leaves, const RowSums& sums,
              uint64_t seq, const uint8_t* bytes, uint64_t base) {
  BlobPlace span;
  span_of(row, leaves, &span);
  for (const BlobLeaf& leaf : leaves) {
    BlobPlace place = load_place(row + leaf.offset);
    place.position += base;
    store_place(row + leaf.offset, place);
  }
  uint32_t crc = sums.of(seq, row, size);
  std::memcpy(row + size, &crc, sizeof crc);
  crc = crc32c(crc, bytes + span.position, span.bytes);
  std::memcpy(row + size + 4, &crc, sizeof crc);
}

void check_rows(const uint8_t* stored, size_t n, size_t size, size_t stride,
                const std::vector<BlobLeaf>& leaves, const RowSums& sums, uint64_t first,
                const uint8_t* bytes, uint64_t count, uint64_t base,
                std::vector<int64_t>* damaged) {
  for (size_t i = 0; i < n; ++i, stored += stride) {
    const uint32_t crc = sums.of(first + i, stored, size);
    BlobPlace span;
    const bool whole =
        crc == word_at(stored + size) && span_of(stored, leaves, &span) && span.position >= base &&
        span.position - base <= count && span.bytes <= count - (span.position - base) &&
        crc32c(crc, bytes + (span.position - base), span.bytes) == word_at(stored + size + 4);
    if (!whole) damaged->push_back(static_cast<int64_t>(i));
  }
}

}  // namespace contig
