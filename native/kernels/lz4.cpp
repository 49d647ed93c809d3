#include <cstring>

#include "native/kernels/decode.h"

namespace contig {

namespace {
// A length of 15 goes on in the bytes behind it, up to the first that is not 255.
bool longer(const uint8_t*& in, const uint8_t* end, size_t& length) {
  uint8_t more;
  do {
    if (in == end) return false;
    more = *in++;
    length += more;
  } while (more == 255);
  return true;
}

// Copies what was written `distance` bytes before, which may reach into what is being written.
void repeat(uint8_t* out, size_t distance, size_t length, size_t room) {
  const uint8_t* from = out - distance;
  if (distance >= 16 && room - length >= 16) {  // 16 at a time, some of them too many
    for (size_t i = 0; i < length; i += 16) std::memcpy(out + i, from + i, 16);
    return;
  }
  if (distance == 1) {
    std::memset(out, *from, length);
    return;
  }
  // What can be copied at once doubles each time.
  while (length > 0) {
    const size_t there = static_cast<size_t>(out - from);
    const size_t now = there < length ? there : length;
    std::memcpy(out, from, now);
    out += now;
    length -= now;
  }
}
}  // namespace

bool decode_lz4(const uint8_t* in, size_t n, uint8_t* out, size_t size) {
  const uint8_t* const end = in + n;
  uint8_t* const first = out;
  uint8_t* const last = out + size;
  while (in < end) {
    const uint8_t token = *in++;
    size_t literals = token >> 4;
    if (literals == 15 && !longer(in, end, literals)) return false;
    const size_t left = static_cast<size_t>(end - in), room = static_cast<size_t>(last - out);
    if (literals > left || literals > room) return false;
    if (literals <= 16 && left >= 16 && room >= 16)
      std::memcpy(out, in, 16);
    else if (literals > 0)
      std::memcpy(out, in, literals);
    in += literals;
    out += literals;
    if (in == end) return out == last;  // a block ends with literals
    if (end - in < 2) return false;
    const size_t distance = static_cast<size_t>(in[0]) | static_cast<size_t>(in[1]) << 8;
    in += 2;
    size_t length = token & 15;
    if (length == 15 && !longer(in, end, length)) return false;
    length += 4;
    if (distance == 0 || distance > static_cast<size_t>(out - first)) return false;
    if (length > static_cast<size_t>(last - out)) return false;
    repeat(out, distance, length, static_cast<size_t>(last - out));
    out += length;
  }
  return false;
}

}  // namespace contig
