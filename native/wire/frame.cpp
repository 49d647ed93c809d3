#include "native/wire/frame.h"

#include <cstring>

#include "native/kernels/crc32c.h"

namespace contig {

namespace {
template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);  // this format, and every machine it runs on, is little-endian
  return v;
}
template <class T>
void store(uint8_t* p, T v) {
  std::memcpy(p, &v, sizeof v);
}
}  // namespace

const char* refusal_name(Refusal r) {
  static const char* const names[] = {"none", "magic", "header_crc", "type",
                                      "size", "shape", "body_crc",   "value"};
  return names[static_cast<int>(r)];
}

Refusal parse_header(const uint8_t* p, uint64_t max_frame, Frame* out) {
  if (load<uint32_t>(p) != kFrameMagic) return Refusal::magic;
  if (crc32c(0, p, 36) != load<uint32_t>(p + 36)) return Refusal::header_crc;
  out->type = p[4];
  out->flags = p[5];
  out->number = load<uint64_t>(p + 8);
  out->runs = load<uint32_t>(p + 16);
  out->rows = load<uint32_t>(p + 20);
  out->length = load<uint64_t>(p + 24);
  out->body_crc = load<uint32_t>(p + 32);
  if (out->type == 0 || out->type > kFrameTypes) return Refusal::type;
  if (max_frame < kFrameHeader || out->length > max_frame - kFrameHeader) return Refusal::size;
  if (out->runs > out->length / kRunBytes) return Refusal::shape;
  return Refusal::none;
}

void write_header(const Frame& f, uint8_t* p) {
  store<uint32_t>(p, kFrameMagic);
  p[4] = f.type;
  p[5] = f.flags;
  store<uint16_t>(p + 6, 0);
  store<uint64_t>(p + 8, f.number);
  store<uint32_t>(p + 16, f.runs);
  store<uint32_t>(p + 20, f.rows);
  store<uint64_t>(p + 24, f.length);
  store<uint32_t>(p + 32, f.body_crc);
  store<uint32_t>(p + 36, crc32c(0, p, 36));
}

WireRun read_run(const uint8_t* p) {
  WireRun run;
  std::memcpy(&run, p, sizeof run);
  return run;
}

}  // namespace contig
