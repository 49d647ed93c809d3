#include "native/sys/block.h"

#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace contig {

namespace {
using Clock = std::chrono::steady_clock;

// How much goes back at a time because it was idle for long: whoever gives a block waits for it.
constexpr size_t kReturned = 4u << 20;

struct Idle {
  uint8_t* block;
  Clock::time_point since;
};

struct Pool {
  std::mutex mutex;
  std::map<size_t, std::deque<Idle>> idle;  // by rounded size, each with the oldest in front
  size_t bytes = 0;
  Clock::time_point next_look{};  // when there may be blocks that were idle for long

  // The size of the oldest block, of which there must be one. There are some sixty sizes.
  std::map<size_t, std::deque<Idle>>::iterator oldest() {
    auto found = idle.end();
    for (auto it = idle.begin(); it != idle.end(); ++it)
      if (!it->second.empty() &&
          (found == idle.end() || it->second.front().since < found->second.front().since))
        found = it;
    return found;
  }

  uint8_t* take(std::map<size_t, std::deque<Idle>>::iterator size) {
    uint8_t* block = size->second.back().block;
    size->second.pop_back();
    bytes -= size->first;
    return block;
  }

  void return_oldest(ReturnedBlocks* out) {
    const auto size = oldest();
    out->add(size->second.front().block, size->first);
    size->second.pop_front();
    bytes -= size->first;
  }

  // Whether blocks are left that were idle since then.
  bool return_idle_since(Clock::time_point since, size_t most, ReturnedBlocks* out) {
    const size_t before = bytes;
    while (bytes > 0 && oldest()->second.front().since <= since) {
      if (before - bytes >= most) return true;
      return_oldest(out);
    }
    return false;
  }
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

ReturnedBlocks::~ReturnedBlocks() {
  for (uint8_t* block : blocks_) ::operator delete(block, std::align_val_t{kColumnAlign});
}

uint8_t* block_take(size_t bytes) {
  const size_t size = rounded(bytes);
  {
    Pool& p = pool();
    const std::lock_guard<std::mutex> guard(p.mutex);
    const auto it = p.idle.find(size);
    if (it != p.idle.end() && !it->second.empty()) return p.take(it);
  }
  return static_cast<uint8_t*>(::operator new(size, std::align_val_t{kColumnAlign}));
}

ReturnedBlocks block_give(uint8_t* block, size_t bytes) {
  const size_t size = rounded(bytes);
  ReturnedBlocks returned;
  if (size > kMaxIdle) {
    returned.add(block, size);
    return returned;
  }
  const Clock::time_point now = Clock::now();
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  p.idle[size].push_back({block, now});
  p.bytes += size;
  // What is used now gets the room. Otherwise a burst of other sizes would fill the pool for ever.
  while (p.bytes > kMaxIdle) p.return_oldest(&returned);
  if (now < p.next_look) return returned;
  const bool more = p.return_idle_since(now - kBlockIdle, kReturned, &returned);
  if (!more) p.next_look = now + std::chrono::seconds(1);
  return returned;
}

size_t block_pooled_bytes() {
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  return p.bytes;
}

ReturnedBlocks block_return(std::chrono::nanoseconds idle, size_t bytes) {
  ReturnedBlocks returned;
  Pool& p = pool();
  const std::lock_guard<std::mutex> guard(p.mutex);
  p.return_idle_since(Clock::now() - idle, bytes, &returned);
  return returned;
}

}  // namespace contig
