#include "native/sys/region.h"

#include <cerrno>
#include <stdexcept>

#include "native/sys/errors.h"

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace contig {

#if defined(__linux__) || defined(__APPLE__)

namespace {
#if defined(__linux__)
constexpr int kEmpty = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int kEmpty = MAP_PRIVATE | MAP_ANON;
#endif
}  // namespace

Region::Region(uint64_t bytes) : size_(bytes) {
  // Readable everywhere: a reader that was overtaken may look at addresses without a file.
  void* at = mmap(nullptr, bytes, PROT_READ, kEmpty, -1, 0);
  if (at == MAP_FAILED) throw_cannot_map("a storage's files", bytes);
  data_ = static_cast<uint8_t*>(at);
}

Region::~Region() { munmap(data_, size_); }

void Region::map(uint64_t offset, int fd, uint64_t bytes) {
  if (offset > size_ || bytes > size_ - offset) throw std::out_of_range("Region.map: outside");
  if (mmap(data_ + offset, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    throw_cannot_map("a file", bytes);
  madvise(data_ + offset, bytes, MADV_RANDOM);
}

void Region::unmap(uint64_t offset, uint64_t bytes) {
  if (offset > size_ || bytes > size_ - offset) throw std::out_of_range("Region.unmap: outside");
  if (mmap(data_ + offset, bytes, PROT_READ, kEmpty | MAP_FIXED, -1, 0) == MAP_FAILED)
    throw_cannot_map("nothing, in place of a file", bytes);
}

#else

Region::Region(uint64_t) : data_(nullptr), size_(0) {
  throw_system_error("storages on disk are not supported on this platform", ENOTSUP);
}
Region::~Region() = default;
void Region::map(uint64_t, int, uint64_t) {}
void Region::unmap(uint64_t, uint64_t) {}

#endif

}  // namespace contig
