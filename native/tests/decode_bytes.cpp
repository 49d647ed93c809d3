// Decoders, given bytes that may be damaged and dimensions that do not fit: in memory of exactly
// their size, for the address sanitizer.
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "native/kernels/decode.h"

using namespace contig;

namespace {

uint64_t state = 88172645463325252ull;
uint64_t chance(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % below;
}

std::unique_ptr<uint8_t[]> copy_of(const std::vector<uint8_t>& bytes) {
  auto out = std::make_unique<uint8_t[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(out.get(), bytes.data(), bytes.size());
  return out;
}

std::vector<uint8_t> image(uint32_t height, uint32_t width, uint32_t channels, size_t ops) {
  std::vector<uint8_t> out = {'q', 'o', 'i', 'f'};
  for (const uint32_t n : {width, height})
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<uint8_t>(n >> shift));
  out.push_back(static_cast<uint8_t>(channels));
  out.push_back(0);
  for (size_t i = 0; i < ops; ++i) out.push_back(static_cast<uint8_t>(chance(256)));
  for (int i = 0; i < 7; ++i) out.push_back(0);
  out.push_back(1);
  return out;
}

bool qoi(const std::vector<uint8_t>& bytes, size_t size, uint32_t height, uint32_t width,
         uint32_t channels) {
  const auto in = copy_of(bytes);
  const auto out = std::make_unique<uint8_t[]>(size);
  return decode_qoi(in.get(), bytes.size(), out.get(), size, height, width, channels);
}

}  // namespace

int main() {
  int whole = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto height = static_cast<uint32_t>(1 + chance(6)),
               width = static_cast<uint32_t>(1 + chance(6)),
               channels = static_cast<uint32_t>(3 + chance(2));
    std::vector<uint8_t> bytes = image(height, width, channels, chance(40));
    if (chance(3) == 0) bytes.resize(chance(bytes.size() + 1));
    whole += qoi(bytes, size_t{height} * width * channels, height, width, channels) ? 1 : 0;
  }
  if (whole == 0) return std::fprintf(stderr, "no image was whole\n"), 1;

  // Height x width x channels that come out as 4 bytes of 2^64 + 4; and room for other images.
  const uint32_t height = (1u << 31) - (1u << 16) + 1, width = (1u << 31) + (1u << 16) + 1;
  std::vector<uint8_t> runs = image(height, width, 4, 0);
  runs.insert(runs.begin() + 14, 4096, 0xFD);
  if (qoi_bytes(height, width, 4) != 0 || qoi(runs, 4, height, width, 4)) return 2;
  const std::vector<uint8_t> small = image(2, 2, 3, 4);
  for (const size_t size : {size_t{1}, size_t{11}, size_t{13}})
    if (qoi(small, size, 2, 2, 3)) return 3;
  if (qoi(small, 8, 2, 2, 2) || qoi(small, 20, 2, 2, 5)) return 4;

  for (int round = 0; round < 50000; ++round) {
    std::vector<uint8_t> bytes(chance(40));
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(chance(chance(2) == 0 ? 256 : 32));
    const size_t size = chance(64);
    const auto in = copy_of(bytes);
    const auto out = std::make_unique<uint8_t[]>(size);
    decode_lz4(in.get(), bytes.size(), out.get(), size);
  }
  return 0;
}
