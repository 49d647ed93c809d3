// Decoding of many rows by one call, by several threads where that pays.
#include "native/kernels/decode.h"

#include <algorithm>
#include <vector>

#include "handles.h"
#include "native/sys/threads.h"

namespace contig {

namespace {
// What is worth a thread. On a machine whose cores are busy, a new one may wait for milliseconds:
// 256 frames of 84x84 (1.8 MB) take 0.4 ms by one thread, and from 0.3 to 4 by two.
constexpr uint64_t kThreadBytes = 8u << 20;

// Rows in packed order: row i is bytes [offsets[i], offsets[i + 1]).
struct Packed {
  const uint8_t* values;
  const int64_t* offsets;
  int64_t rows;
  uint8_t* out;
  uint64_t row_bytes;
};

Packed checked(const Record& values, const Seqs& offsets, const Bytes& out, uint64_t row_bytes) {
  const size_t n = offsets.shape(0);
  if (n == 0) throw std::invalid_argument("decode: offsets need one more than rows");
  const uint64_t rows = n - 1, bytes = out.shape(0);
  if (row_bytes == 0 || bytes / row_bytes != rows || bytes % row_bytes != 0)
    throw std::invalid_argument("decode: the column has other bytes than its rows");
  const int64_t* at = offsets.data();
  const int64_t most = static_cast<int64_t>(values.shape(0));
  for (size_t i = 0; i < n; ++i)
    if (at[i] < (i ? at[i - 1] : 0) || at[i] > most)
      throw std::invalid_argument("decode: offsets that lead out of the bytes");
  return {values.data(), at, static_cast<int64_t>(n) - 1, out.data(), row_bytes};
}

// Each row in [from, to); the first bad one, or -1.
template <class F>
int64_t decode_part(const Packed& p, int64_t from, int64_t to, F decode) {
  for (int64_t i = from; i < to; ++i) {
    const size_t n = static_cast<size_t>(p.offsets[i + 1] - p.offsets[i]);
    if (!decode(p.values + p.offsets[i], n, p.out + static_cast<uint64_t>(i) * p.row_bytes))
      return i;
  }
  return -1;
}

template <class F>
int64_t decode_all(const Packed& p, uint64_t threads, F decode) {
  const uint64_t bytes = static_cast<uint64_t>(p.rows) * p.row_bytes;
  const int64_t most = static_cast<int64_t>(std::min<uint64_t>(threads, bytes / kThreadBytes + 1));
  const int64_t parts = std::max<int64_t>(1, std::min(most, p.rows));
  std::vector<int64_t> bad(static_cast<size_t>(parts), -1);
  run_parts(bad.size(), [&](size_t part) {
    const auto i = static_cast<int64_t>(part);
    bad[part] = decode_part(p, p.rows * i / parts, p.rows * (i + 1) / parts, decode);
  });
  for (int64_t row : bad)
    if (row >= 0) return row;
  return -1;
}

template <class F>
int64_t run(const Packed& p, uint64_t threads, F decode) {
  if (static_cast<uint64_t>(p.rows) * p.row_bytes < kKeepGil) return decode_all(p, 1, decode);
  NoGil no_gil;
  return decode_all(p, threads, decode);
}
}  // namespace

void bind_decode(nb::module_& m) {
  m.def(
      "decode_lz4",
      [](Record values, Seqs offsets, Bytes out, uint64_t row_bytes, uint64_t threads) {
        return run(checked(values, offsets, out, row_bytes), threads,
                   [=](const uint8_t* in, size_t n, uint8_t* to) {
                     return decode_lz4(in, n, to, row_bytes);
                   });
      },
      nb::arg("values"), nb::arg("offsets"), nb::arg("out").noconvert(), nb::arg("row_bytes"),
      nb::arg("threads"));
  m.def(
      "decode_qoi",
      [](Record values, Seqs offsets, Bytes out, uint32_t height, uint32_t width, uint32_t channels,
         uint64_t threads) {
        if (channels != 3 && channels != 4)
          throw std::invalid_argument("decode_qoi: 3 or 4 channels");
        const uint64_t row_bytes = qoi_bytes(height, width, channels);
        return run(checked(values, offsets, out, row_bytes), threads,
                   [=](const uint8_t* in, size_t n, uint8_t* to) {
                     return decode_qoi(in, n, to, row_bytes, height, width, channels);
                   });
      },
      nb::arg("values"), nb::arg("offsets"), nb::arg("out").noconvert(), nb::arg("height"),
      nb::arg("width"), nb::arg("channels"), nb::arg("threads"));
}

}  // namespace contig
