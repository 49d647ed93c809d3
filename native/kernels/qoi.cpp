#include <cstring>

#include "native/kernels/decode.h"

namespace contig {

namespace {
constexpr size_t kHeader = 14, kEnd = 8;
constexpr uint8_t kEndBytes[kEnd] = {0, 0, 0, 0, 0, 0, 0, 1};

struct Pixel {
  uint8_t r = 0, g = 0, b = 0, a = 255;
};

uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

size_t place_of(const Pixel& p) { return (p.r * 3u + p.g * 5u + p.b * 7u + p.a * 11u) % 64; }

// How many bytes follow an operation's first one.
size_t operands(uint8_t op) { return op == 0xFE ? 3 : op == 0xFF ? 4 : op >> 6 == 2 ? 1 : 0; }

// One operation that is no run.
void apply(uint8_t op, const uint8_t* in, const Pixel* seen, Pixel& pixel) {
  if (op == 0xFE || op == 0xFF) {
    pixel.r = in[0], pixel.g = in[1], pixel.b = in[2];
    if (op == 0xFF) pixel.a = in[3];
  } else if (op >> 6 == 0) {
    pixel = seen[op];
  } else if (op >> 6 == 1) {
    pixel.r += (op >> 4 & 3) - 2, pixel.g += (op >> 2 & 3) - 2, pixel.b += (op & 3) - 2;
  } else {
    const int green = (op & 63) - 32;
    pixel.r += green - 8 + (in[0] >> 4), pixel.g += green, pixel.b += green - 8 + (in[0] & 15);
  }
}
}  // namespace

bool decode_qoi(const uint8_t* in, size_t n, uint8_t* out, size_t size, uint32_t height,
                uint32_t width, uint32_t channels) {
  if ((channels != 3 && channels != 4) || size == 0 || size != qoi_bytes(height, width, channels))
    return false;
  if (n < kHeader + kEnd || std::memcmp(in, "qoif", 4) != 0) return false;
  if (big_endian(in + 4) != width || big_endian(in + 8) != height || in[12] != channels)
    return false;
  const uint8_t* const end = in + n - kEnd;
  if (std::memcmp(end, kEndBytes, kEnd) != 0) return false;
  in += kHeader;
  Pixel seen[64] = {}, pixel;
  for (Pixel& p : seen) p.a = 0;
  uint64_t left = uint64_t{height} * width;
  while (left > 0) {
    if (in == end) return false;
    const uint8_t op = *in++;
    uint64_t times = 1;
    if (op >> 6 == 3 && op < 0xFE) {
      times = (op & 63u) + 1;
    } else {
      const size_t more = operands(op);
      if (static_cast<size_t>(end - in) < more) return false;
      apply(op, in, seen, pixel);
      in += more;
    }
    seen[place_of(pixel)] = pixel;
    if (times > left) return false;
    left -= times;
    for (; times > 0; --times, out += channels) {
      out[0] = pixel.r, out[1] = pixel.g, out[2] = pixel.b;
      if (channels == 4) out[3] = pixel.a;
    }
  }
  return in == end;
}

}  // namespace contig
