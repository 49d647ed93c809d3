#include <cstring>

#include "native/kernels/encode.h"

namespace contig {

namespace {
constexpr int kHashBits = 12;
constexpr size_t kLeast = 4;         // bytes of a match
constexpr size_t kLastLiterals = 5;  // a block ends with literals, at least so many
constexpr size_t kLastMatch = 12;    // and no match begins in so many of its last bytes
constexpr size_t kFarthest = (1 << 16) - 1;

uint32_t word_at(const uint8_t* p) {
  uint32_t w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

uint32_t hashed(uint32_t word) { return word * 2654435761u >> (32 - kHashBits); }

// How far two places agree.
size_t agree(const uint8_t* a, const uint8_t* b, const uint8_t* end) {
  const uint8_t* from = a;
  while (end - a >= 8) {
    uint64_t x, y;
    std::memcpy(&x, a, 8);
    std::memcpy(&y, b, 8);
    if (x != y) break;
    a += 8, b += 8;
  }
  while (a < end && *a == *b) ++a, ++b;
  return static_cast<size_t>(a - from);
}

void put_length(size_t rest, std::vector<uint8_t>* out) {
  for (; rest >= 255; rest -= 255) out->push_back(255);
  out->push_back(static_cast<uint8_t>(rest));
}

// Literals, then, unless they are the last ones, a match.
void put(const uint8_t* literals, size_t n, size_t distance, size_t length,
         std::vector<uint8_t>* out) {
  const size_t more = distance > 0 ? length - kLeast : 0;
  out->push_back(static_cast<uint8_t>((n < 15 ? n : 15) << 4 | (more < 15 ? more : 15)));
  if (n >= 15) put_length(n - 15, out);
  out->insert(out->end(), literals, literals + n);
  if (distance == 0) return;
  out->push_back(static_cast<uint8_t>(distance));
  out->push_back(static_cast<uint8_t>(distance >> 8));
  if (more >= 15) put_length(more - 15, out);
}
}  // namespace

size_t encode_lz4(const uint8_t* in, size_t n, std::vector<uint8_t>* out) {
  const size_t before = out->size();
  const uint8_t *literals = in, *at = in, *const end = in + n;
  if (n > kLastMatch) {
    uint32_t last[1 << kHashBits] = {};  // where a word was last, plus one
    const uint8_t* const stop = end - kLastMatch;
    size_t misses = 0;
    while (at < stop) {
      const uint32_t word = word_at(at);
      uint32_t& place = last[hashed(word)];
      const uint8_t* found = place != 0 ? in + place - 1 : nullptr;
      place = static_cast<uint32_t>(at - in) + 1;
      if (found == nullptr || static_cast<size_t>(at - found) > kFarthest ||
          word_at(found) != word) {
        at += 1 + (misses++ >> 6);  // what does not repeat is passed faster and faster
        continue;
      }
      misses = 0;
      const size_t length = kLeast + agree(at + kLeast, found + kLeast, end - kLastLiterals);
      put(literals, static_cast<size_t>(at - literals), static_cast<size_t>(at - found), length,
          out);
      at += length;
      literals = at;
      if (out->size() - before + static_cast<size_t>(end - literals) >= n + n / 8) break;
    }
  }
  put(literals, static_cast<size_t>(end - literals), 0, 0, out);
  if (out->size() - before < n) return out->size() - before;
  out->resize(before);
  return 0;
}

}  // namespace contig
