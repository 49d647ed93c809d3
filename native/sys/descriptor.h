// A file descriptor of our own. The number that a caller gave may be another file's as soon as the
// caller closes it; a duplicate is this file for as long as it lives.
#pragma once

namespace contig {

class Descriptor {
 public:
  // A duplicate; -1 stands for no file. Throws std::system_error if there can be none.
  explicit Descriptor(int fd);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return fd_; }

 private:
  int fd_ = -1;
};

}  // namespace contig
