#include "native/sys/block.h"

#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace contig {

namespace {
constexpr size_t kMaxIdle = 256u << 20;

struct Pool {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<uint8_t*>> idle;  // by rounded size
  size_t bytes = 0;
};

// A child that is forked while another thread has the lock would wait for it for ever. Made when
// the program is loaded, so that no thread can be making it then.
Pool* new_pool();
Pool* const the_pool = new_pool();  // never destroyed: arrays may outlive static destructors
Pool& pool() { return *the_pool; }

Pool* new_pool() {
#if defined(__linux__) || defined(__APPLE__)
  pthread_atfork([] { pool().mutex.lock(); }, [] { pool().mutex.unlock(); },
                 [] { pool().mutex.unlock(); });
#endif
  return new Pool;
}

size_t rounded(size_t bytes) {
  if (bytes > SIZE_MAX / 4) throw std::bad_alloc();
  size_t size = 1024;
  while (size < bytes) size += size / 4 & ~size_t{kColumnAlign - 1};
  return size;
}
}  // namespace

uint8_t* block_take(size_t bytes) {
  const size_t size = rounded(bytes);
  {
    Pool& p = pool();
    const std::lock_guard<std::mutex> guard(p.mutex);
    auto it = p.idle.find(size);
    if (it != p.idle.end() && !it->second.empty()) {
      uint8_t* block = it->second.back();
      it->second.pop_back();
      p.bytes -= size;
      return block;
    }
  }
  return static_cast<uint8_t*>(::operator new(size, std::align_val_t{kColumnAlign}));
}

void block_give(uint8_t* block, size_t bytes) {
  const size_t size = rounded(bytes);
  {
    Pool& p = pool();
    const std::lock_guard<std::mutex> guard(p.mutex);
    if (p.bytes + size <= kMaxIdle) {
      p.idle[size].push_back(block);
      p.bytes += size;
      return;
    }
  }
  ::operator delete(block, std::align_val_t{kColumnAlign});
}

size_t block_pooled_bytes() {
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  return p.bytes;
}

}  // namespace contig
