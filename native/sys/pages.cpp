#include "native/sys/pages.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "native/sys/errors.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/stat.h>
#endif

namespace contig {

#if defined(__linux__)

namespace {
constexpr int kCollapse = 25;  // MADV_COLLAPSE: since Linux 6.1, in newer headers only
constexpr int kMostRefusals = 4;
constexpr uint64_t kPage = 4096;

uint64_t round_down(uint64_t n, uint64_t unit) { return n / unit * unit; }
uint64_t round_up(uint64_t n, uint64_t unit) { return round_down(n + unit - 1, unit); }
}  // namespace

FileMapping::FileMapping(int fd, uint64_t offset, uint64_t bytes)
    : size_(round_up(std::max<uint64_t>(bytes, 1), kPage)) {
  struct stat about;
  if (fstat(fd, &about) != 0) throw_cannot_map("shared memory", size_, errno);
  const auto length = static_cast<uint64_t>(about.st_size);
  if (length < offset || length - offset < bytes)
    throw std::invalid_argument("cannot map memory: the file is shorter than its header says");
  const uint64_t spare = size_ < kLargePage ? 0 : kLargePage;
  constexpr int kEmpty = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* room = mmap(nullptr, size_ + spare, PROT_NONE, kEmpty, -1, 0);
  if (room == MAP_FAILED) throw_cannot_map("shared memory", size_, errno);
  data_ = static_cast<uint8_t*>(room);
  if (spare > 0) {  // as far behind a large page's start as in the file
    const uint64_t shift = (offset - reinterpret_cast<uintptr_t>(data_)) % kLargePage;
    if (shift > 0) munmap(data_, shift);
    data_ += shift;
    munmap(data_ + size_, spare - shift);
  }
  constexpr int kShared = MAP_SHARED | MAP_FIXED;
  if (mmap(data_, size_, PROT_READ | PROT_WRITE, kShared, fd, static_cast<off_t>(offset)) ==
      MAP_FAILED) {
    const int error = errno;
    munmap(data_, size_);
    throw_cannot_map("shared memory", size_, error);
  }
}

FileMapping::~FileMapping() { munmap(data_, size_); }

void LargePages::use(uint8_t* base, uint64_t from, uint64_t to) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  const uintptr_t end = round_down(address + to, kLargePage);
  uintptr_t at = std::max(round_up(address, kLargePage), round_down(address + from, kLargePage));
  for (; at < end; at += kLargePage) {
    if (refusals_ >= kMostRefusals) return;
    if (madvise(reinterpret_cast<void*>(at), kLargePage, kCollapse) == 0)
      refusals_ = 0;
    else
      refusals_ = errno == EINVAL ? kMostRefusals : refusals_ + 1;
  }
}

#else

FileMapping::FileMapping(int, uint64_t, uint64_t) {
  throw_system_error("files in memory are not supported on this platform", ENOTSUP);
}
FileMapping::~FileMapping() = default;
void LargePages::use(uint8_t*, uint64_t, uint64_t) {}

#endif

}  // namespace contig
