#include "native/tape/nstep.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "native/kernels/copy.h"
#include "native/kernels/prefetch.h"

namespace contig {

namespace {
template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

template <class T>
void store(uint8_t* p, T v) {
  std::memcpy(p, &v, sizeof(T));
}

double from_half(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const double mantissa = h & 1023;
  double x;
  if (exponent == 31)
    x = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                      : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    x = std::ldexp(mantissa, -24);
  else
    x = std::ldexp(mantissa + 1024, exponent - 25);
  return (h >> 15) != 0 ? -x : x;
}

uint16_t to_half(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7E00;
  if (x >= 65520) return sign | 0x7C00;  // rounds to infinity
  if (x < std::ldexp(1.0, -14))
    return static_cast<uint16_t>(sign + static_cast<int>(std::nearbyint(std::ldexp(x, 24))));
  int exponent;
  std::frexp(x, &exponent);  // x = [0.5, 1) * 2^exponent
  const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(x, 11 - exponent)));
  return static_cast<uint16_t>(sign + ((exponent + 14) << 10) + (mantissa - 1024));
}

double from_bfloat(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

uint16_t to_bfloat(double x) {
  const auto narrow = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  if (std::isnan(narrow)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to even
}

// Adds `scale` times the rewards at `p`.
template <class T, class F>
void add(const uint8_t* p, size_t n, double scale, double* to, F value) {
  for (size_t i = 0; i < n; ++i) to[i] += value(load<T>(p + i * sizeof(T))) * scale;
}

template <class T>
void add(const uint8_t* p, size_t n, double scale, double* to) {
  add<T>(p, n, scale, to, [](T v) { return static_cast<double>(v); });
}

void add_rewards(const Fold::Reward& r, const uint8_t* p, double scale, double* to) {
  const size_t n = r.count;
  switch (r.kind) {
    case 'f':
      if (r.itemsize == 4) return add<float>(p, n, scale, to);
      if (r.itemsize == 8) return add<double>(p, n, scale, to);
      return add<uint16_t>(p, n, scale, to, from_half);
    case 'w':
      return add<uint16_t>(p, n, scale, to, from_bfloat);
    case 'i':
      if (r.itemsize == 8) return add<int64_t>(p, n, scale, to);
      if (r.itemsize == 4) return add<int32_t>(p, n, scale, to);
      if (r.itemsize == 2) return add<int16_t>(p, n, scale, to);
      return add<int8_t>(p, n, scale, to);
    default:  // b, u
      if (r.itemsize == 8) return add<uint64_t>(p, n, scale, to);
      if (r.itemsize == 4) return add<uint32_t>(p, n, scale, to);
      if (r.itemsize == 2) return add<uint16_t>(p, n, scale, to);
      return add<uint8_t>(p, n, scale, to);
  }
}

void put_rewards(const Fold::Reward& r, const double* from, uint8_t* to) {
  for (size_t i = 0; i < r.count; ++i) {
    if (r.whole() || (r.kind == 'f' && r.itemsize == 4))
      store(to + i * 4, static_cast<float>(from[i]));
    else if (r.kind == 'f' && r.itemsize == 8)
      store(to + i * 8, from[i]);
    else
      store(to + i * 2, r.kind == 'w' ? to_bfloat(from[i]) : to_half(from[i]));
  }
}

// Whether a flag is anything but zero; a float's negative zero is zero.
bool is_set(const Fold::Done& d, const uint8_t* p) {
  uint8_t any = 0;
  for (size_t i = 0; i + 1 < d.bytes; ++i) any |= p[i];
  return (any | (p[d.bytes - 1] & (d.kind == 'f' || d.kind == 'w' ? 0x7F : 0xFF))) != 0;
}
}  // namespace

bool Fold::knows(char kind, size_t itemsize) {
  const bool power = itemsize == 1 || itemsize == 2 || itemsize == 4 || itemsize == 8;
  if (kind == 'b') return itemsize == 1;
  if (kind == 'w') return itemsize == 2;
  return power && (kind == 'i' || kind == 'u' || (kind == 'f' && itemsize > 1));
}

namespace {
constexpr size_t kAskedRows = 256, kAskedBytes = 256;  // as much as the nearest cache holds

// Rows of some groups at once: while they are folded, the next ones are on their way from memory.
class Folder {
 public:
  Folder(const Tape& tape, const Fold& fold, const Folded& out)
      : tape_(tape),
        fold_(fold),
        out_(out),
        sum_(fold.reward.count),
        bytes_(fold.reward.bytes() + fold.done.bytes) {
    const Fold::Reward& r = fold.reward;
    const Fold::Done& d = fold.done;
    simple_ = r.kind == 'f' && r.itemsize == 4 && r.count == 1 && d.bytes == 1;
    folded_ = {r.offset, r.offset + r.bytes()};
    if (d.bytes > 0) folded_.cover(d.offset, d.bytes);
    last_ = folded_;
    for (const Target& t : out.last) last_.cover(t.offset, t.bytes);
    first_ = folded_;
    for (const Target& t : out.first) first_.cover(t.offset, t.bytes);
  }

  // Asks for the rows of group `g`, of each what will be read; unless somebody has.
  CONTIG_INLINED void fetch(const int64_t* rows, size_t length, size_t g) const {
    const bool near = rows[length - 1] - rows[0] == static_cast<int64_t>(length) - 1;
    if (out_.asked && g < kAskedRows && near && length * tape_.stride() <= kAskedBytes) return;
    RowFinder find(tape_);
    for (size_t k = 0; k < length; ++k) {
      const uint8_t* row = find(static_cast<uint64_t>(rows[k]));
      first_.prefetch(row, k == 0);
      last_.prefetch(row, k > 0 && k + 1 == length);
      folded_.prefetch(row, k > 0 && k + 1 < length);
    }
  }

  // Folds group `g`; its row that counts last.
  const uint8_t* fold(const int64_t* rows, size_t length, size_t g) {
    const uint8_t* row = nullptr;
    size_t k = 0;
    if (simple_) {  // a float and a flag: what nearly all rows have
      RowFinder find(tape_);
      double total = 0;
      for (bool ended = false; k < length && !ended; ++k) {
        row = find(static_cast<uint64_t>(rows[k]));
        float reward;
        copy_fixed<4>(reinterpret_cast<uint8_t*>(&reward), row + fold_.reward.offset);
        uint8_t done;
        copy_fixed<1>(&done, row + fold_.done.offset);
        total += static_cast<double>(reward) * fold_.discount[k];
        ended = done != 0;
      }
      store(out_.rewards + g * 4, static_cast<float>(total));
    } else {
      row = sum_up(rows, length, &k);
      put_rewards(fold_.reward, sum_.data(), out_.rewards + g * fold_.reward.folded_bytes());
    }
    out_.steps[g] = static_cast<int64_t>(k);
    return row;
  }

 private:
  // Bytes [low, high) of a row.
  struct Part {
    size_t low = 0, high = 0;
    void cover(size_t offset, size_t bytes) {
      low = std::min(low, offset);
      high = std::max(high, offset + bytes);
    }
    CONTIG_INLINED void prefetch(const uint8_t* row, bool wanted) const {
      if (!wanted) return;
      const auto line = ~uintptr_t{63};  // each of them once: asking again costs as much
      const auto from = reinterpret_cast<uintptr_t>(row);
      const uintptr_t end = from + std::min(high, low + 512);
      for (uintptr_t at = (from + low) & line; at < end; at += 64)
        ask_for(reinterpret_cast<const void*>(at));
    }
  };

  const uint8_t* sum_up(const int64_t* rows, size_t length, size_t* k) {
    const Fold::Reward& r = fold_.reward;
    const Fold::Done& d = fold_.done;
    uint8_t *reward = bytes_.data(), *done = reward + r.bytes();  // copies: rows may be written to
    std::fill(sum_.begin(), sum_.end(), 0.0);
    const uint8_t* row = nullptr;
    for (bool ended = false; *k < length && !ended; ++*k) {
      row = tape_.row(static_cast<uint64_t>(rows[*k]));
      copy_bytes(reward, row + r.offset, r.bytes());
      add_rewards(r, reward, fold_.discount[*k], sum_.data());
      if (d.bytes > 0) {
        copy_bytes(done, row + d.offset, d.bytes);
        ended = is_set(d, done);
      }
    }
    return row;
  }

  const Tape& tape_;
  const Fold& fold_;
  const Folded& out_;
  std::vector<double> sum_;
  std::vector<uint8_t> bytes_;
  Part first_, last_, folded_;  // what is read of a group's first row, its last, and the others
  bool simple_ = false;
};
}  // namespace

void ask_for_folded(const Tape& tape, const Fold& fold, const int64_t* seqs, size_t n) {
  const size_t bytes = std::min(kAskedBytes, fold.discount.size() * tape.stride());
  for (size_t i = 0; i < std::min(n, kAskedRows); ++i)
    ask_for_all(tape.row(static_cast<uint64_t>(seqs[i])), bytes);
}

uint64_t fold_rows(const Tape& tape, const Fold& fold, const int64_t* rows, const int64_t* lengths,
                   size_t groups, const Folded& out, FoldedSlots* slots) {
  constexpr size_t kGroup = FoldedSlots::kMost;
  Folder folder(tape, fold, out);
  const uint8_t *first[kGroup], *last[kGroup];
  size_t ahead = 0;  // the rows that were asked for
  const int64_t* asked = rows;
  for (size_t at = 0; at < groups; at += kGroup) {
    for (; ahead < std::min(groups, at + 2 * kGroup); asked += lengths[ahead++])
      folder.fetch(asked, static_cast<size_t>(lengths[ahead]), ahead);
    const size_t count = std::min(kGroup, groups - at);
    for (size_t i = 0; i < count; rows += lengths[at + i++]) {
      first[i] = tape.row(static_cast<uint64_t>(rows[0]));
      last[i] = folder.fold(rows, static_cast<size_t>(lengths[at + i]), at + i);
    }
    for (const Target& t : out.first)
      copy_leaf(t.column + at * t.bytes, first, t.offset, t.bytes, count);
    for (const Target& t : out.last)
      copy_leaf(t.column + at * t.bytes, last, t.offset, t.bytes, count);
    if (slots != nullptr) slots->ask(at, count, first, last);
  }
  if (slots != nullptr && groups > 0) slots->copy();
  return tail_after(tape);
}

}  // namespace contig
