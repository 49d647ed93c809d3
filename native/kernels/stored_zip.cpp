#include "native/kernels/stored_zip.h"

#include <array>
#include <cstring>
#include <utility>

namespace contig {

namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // reflected
constexpr uint32_t kEndOfDirectory = 0x06054B50, kDirectoryEntry = 0x02014B50,
                   kLocalHeader = 0x04034B50;
constexpr size_t kEndSize = 22, kEntrySize = 46, kLocalSize = 30;
constexpr uint16_t kEncrypted = 1;

using Tables = std::array<std::array<uint32_t, 256>, 16>;

// Sixteen bytes at a time: row k is the checksum of a byte followed by k zero bytes.
const Tables& tables() {
  static const Tables out = [] {
    Tables t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? kPolynomial : 0);
      t[0][i] = c;
    }
    for (size_t k = 1; k < t.size(); ++k)
      for (uint32_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
    return t;
  }();
  return out;
}

// Little-endian numbers, wherever they are.
uint32_t number(const uint8_t* p, size_t bytes) {
  uint32_t out = 0;
  for (size_t i = 0; i < bytes; ++i) out |= static_cast<uint32_t>(p[i]) << (8 * i);
  return out;
}

}  // namespace

uint32_t crc32_zip(uint32_t before, const uint8_t* p, size_t n) {
  const Tables& t = tables();
  uint32_t c = ~before;
  for (; n >= 16; n -= 16, p += 16) {
    const uint32_t a = c ^ number(p, 4);
    c = t[15][a & 255] ^ t[14][a >> 8 & 255] ^ t[13][a >> 16 & 255] ^ t[12][a >> 24];
    for (size_t k = 4; k < 16; ++k) c ^= t[15 - k][p[k]];
  }
  for (; n > 0; --n, ++p) c = (c >> 8) ^ t[0][(c ^ *p) & 255];
  return ~c;
}

ZipState read_stored_zip(const uint8_t* data, size_t n, std::vector<ZipMember>& members,
                         std::string& damaged) {
  if (n < kEndSize) return ZipState::unfamiliar;
  const uint8_t* const end = data + n - kEndSize;
  if (number(end, 4) != kEndOfDirectory || number(end + 20, 2) != 0) return ZipState::unfamiliar;
  const size_t count = number(end + 10, 2), size = number(end + 12, 4), at = number(end + 16, 4);
  // All ones: the real numbers are elsewhere. Bytes before the first member would move offsets.
  if (count == 0xFFFF || size == 0xFFFFFFFF || at == 0xFFFFFFFF || at + size + kEndSize != n)
    return ZipState::unfamiliar;
  const uint8_t *entry = data + at, *const last = entry + size;
  size_t room = at;  // members that share bytes could take for ever to check
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<size_t>(last - entry) < kEntrySize || number(entry, 4) != kDirectoryEntry)
      return ZipState::unfamiliar;
    const size_t name = number(entry + 28, 2), extra = number(entry + 30, 2),
                 comment = number(entry + 32, 2);
    if (static_cast<size_t>(last - entry) < kEntrySize + name + extra + comment)
      return ZipState::unfamiliar;
    const size_t stored = number(entry + 20, 4), plain = number(entry + 24, 4),
                 header = number(entry + 42, 4);
    const bool encrypted = (number(entry + 8, 2) & kEncrypted) != 0;
    if (encrypted || number(entry + 10, 2) != 0 || stored != plain || plain == 0xFFFFFFFF)
      return ZipState::unfamiliar;
    ZipMember member;
    member.name.assign(reinterpret_cast<const char*>(entry + kEntrySize), name);
    if (header > at || at - header < kLocalSize || number(data + header, 4) != kLocalHeader) {
      damaged = member.name;
      return ZipState::damaged;
    }
    const uint8_t* const local = data + header;
    const size_t local_name = number(local + 26, 2);
    member.offset = header + kLocalSize + local_name + number(local + 28, 2);
    member.size = plain;
    if (member.offset > at || at - member.offset < plain || plain > room || local_name != name ||
        std::memcmp(local + kLocalSize, member.name.data(), name) != 0 ||
        crc32_zip(0, data + member.offset, plain) != number(entry + 16, 4)) {
      damaged = member.name;
      return ZipState::damaged;
    }
    room -= plain;
    members.push_back(std::move(member));
    entry += kEntrySize + name + extra + comment;
  }
  return ZipState::whole;
}

}  // namespace contig
