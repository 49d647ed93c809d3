#include "native/kernels/marks.h"

#include <algorithm>
#include <cstring>

#include "native/tape/tape_format.h"

namespace contig {

namespace {
bool is_set(const FlagColumn& c, size_t row) {
  if (c.data == nullptr) return false;
  const uint8_t* p = c.data + row * c.bytes;
  if (std::any_of(p, p + c.bytes - 1, [](uint8_t b) { return b != 0; })) return true;
  // A float's negative zero is not set; no integer flag has only its highest bit.
  return (p[c.bytes - 1] & (c.bytes > 1 ? 0x7F : 0xFF)) != 0;
}

void set(const FlagColumn& c, size_t row) {
  if (c.data != nullptr) std::memcpy(c.data + row * c.bytes, c.one, c.bytes);
}
}  // namespace

void mark_slices(const SliceFlags& flags, const int64_t* lengths, const int64_t* real,
                 const int64_t* ends, size_t n) {
  size_t start = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t last = start + static_cast<size_t>(real[i]) - 1;
    const size_t stop = start + static_cast<size_t>(lengths[i]);
    set(flags.init, start);
    if (flags.told && ends[i] != 0) {
      if ((static_cast<uint64_t>(ends[i]) & kTerminated) != 0) set(flags.terminated, last);
      if ((static_cast<uint64_t>(ends[i]) & kTruncated) != 0) set(flags.truncated, last);
      set(flags.done, last);
    }
    if (!is_set(flags.done, last) && !(flags.told && ends[i] != 0)) set(flags.slice_end, last);
    if (flags.truncated.data != nullptr && !is_set(flags.terminated, last)) {
      set(flags.truncated, last);
      set(flags.done, last);
    }
    for (const FlagColumn* c : {&flags.init, &flags.done, &flags.terminated, &flags.truncated})
      if (c->data != nullptr && last + 1 < stop)
        std::memset(c->data + (last + 1) * c->bytes, 0, (stop - last - 1) * c->bytes);
    start = stop;
  }
}

}  // namespace contig
