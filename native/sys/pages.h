// Shared memory in large pages. Rows that are drawn at random lie in pages that nobody has looked
// at for long: with pages of 4 kB, finding where such a page is takes as long as reading the row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contig {

constexpr uint64_t kLargePage = 2u << 20;

// Part of a file, mapped for reading and writing, so that large pages of the file can be large
// pages here. Throws NoSpace; std::invalid_argument if the file is shorter.
class FileMapping {
 public:
  FileMapping(int fd, uint64_t offset, uint64_t bytes);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

// Asks the system to move memory into large pages, as well as it can: what it cannot, it leaves as
// it is, and after some such answers it is not asked again.
class LargePages {
 public:
  // Of a file that is mapped at `base` and has memory up to `to`: up to `from` it had it before.
  void use(uint8_t* base, uint64_t from, uint64_t to);

 private:
  int refusals_ = 0;
};

}  // namespace contig
