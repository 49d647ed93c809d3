// A stretch of addresses into which files are mapped, one behind another: a tape whose extents are
// files. Mapping over what was there is atomic for readers: they see the old file or the new one,
// never a hole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

class Region {
 public:
  explicit Region(uint64_t bytes);  // addresses only, no memory
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Maps a file's first `bytes`, read-only, at an offset. Throws std::runtime_error.
  void map(uint64_t offset, int fd, uint64_t bytes);
  // Nothing but zeros from now on.
  void unmap(uint64_t offset, uint64_t bytes);

  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  uint8_t* data_;
  uint64_t size_;
};

}  // namespace contig
