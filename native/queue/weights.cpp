#include "native/queue/weights.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "native/kernels/copy.h"
#include "native/sys/wait.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;
constexpr uint64_t kPage = 4096;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
uint64_t data_at(uint64_t schema_bytes) {
  return round_up(sizeof(BoardHeader) + schema_bytes, kPage);
}
}  // namespace

uint64_t Board::bytes_for(uint64_t record_size, uint64_t schema_bytes) {
  constexpr uint64_t most = uint64_t{1} << 46;
  if (record_size > most || schema_bytes > most)
    throw std::invalid_argument("weights board: too large");
  return data_at(schema_bytes) + BoardHeader::kCopies * round_up(record_size, 64);
}

void Board::format(uint8_t* memory, uint64_t record_size, const char* schema,
                   uint64_t schema_bytes) {
  auto* h = new (memory) BoardHeader{};
  h->format = kFormat;
  h->record_size = record_size;
  h->stride = round_up(record_size, 64);
  h->schema_offset = sizeof(BoardHeader);
  h->schema_bytes = schema_bytes;
  h->total_bytes = bytes_for(record_size, schema_bytes);
  h->data_offset = data_at(schema_bytes);
  std::memcpy(memory + h->schema_offset, schema, schema_bytes);
  std::atomic_thread_fence(release);
  h->magic = kMagic;
}

Board::Board(uint8_t* memory, uint64_t bytes) : h_(reinterpret_cast<BoardHeader*>(memory)) {
  if (reinterpret_cast<uintptr_t>(memory) % alignof(BoardHeader) != 0)
    throw std::invalid_argument("weights board: its memory must start at a multiple of 64");
  if (bytes < sizeof(BoardHeader) || h_->magic != kMagic)
    throw std::invalid_argument("not a contig weights board (magic)");
  if (h_->format != kFormat)
    throw std::invalid_argument("a contig weights board of another format");
  record_size_ = h_->record_size;
  schema_bytes_ = h_->schema_bytes;
  stride_ = round_up(record_size_, 64);
  const uint64_t total = bytes_for(record_size_, schema_bytes_);
  if (total > bytes || h_->total_bytes != total || h_->stride != stride_ ||
      h_->schema_offset != sizeof(BoardHeader) || h_->data_offset != data_at(schema_bytes_))
    throw std::invalid_argument("a contig weights board whose header does not fit its size");
  copies_ = memory + h_->data_offset;
}

void Board::publish(int64_t version, const uint8_t* record) {
  // Never 0, which says that nothing was published, though the word may have been overwritten.
  const uint64_t n = std::max<uint64_t>(h_->published.load(relaxed) + 1, 1);
  const uint64_t slot = n % BoardHeader::kCopies;
  BoardHeader::Copy& copy = h_->copies[slot];
  copy.sequence.store(2 * n - 1, relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  copy_bytes(this->copy(slot), record, record_size_);
  copy.version.store(version, relaxed);
  copy.sequence.store(2 * n, release);
  h_->published.store(n, release);
  wake(h_->wake_word, h_->waiters);
}

bool Board::read(uint8_t* out, int64_t* version) const {
  uint64_t n = published();
  for (;;) {
    if (n == 0) return false;
    if (read_nth(n, out, version)) return true;
    // Its place is taken by a later one only after others were published.
    const uint64_t now = published();
    if (now == n)
      throw std::runtime_error("the memory of published weights was overwritten: publish again");
    n = now;
  }
}

bool Board::newest(int64_t* version) const { return read(nullptr, version); }

uint64_t Board::published() const { return h_->published.load(acquire); }

bool Board::read_nth(uint64_t n, uint8_t* out, int64_t* version) const {
  const uint64_t slot = n % BoardHeader::kCopies;
  const BoardHeader::Copy& copy = h_->copies[slot];
  // Exactly this one: three later the same copy is whole again a moment before it is published, and
  // who took that would find an older one afterwards.
  if (copy.sequence.load(acquire) != 2 * n) return false;
  if (out != nullptr) copy_bytes(out, this->copy(slot), record_size_);
  *version = copy.version.load(relaxed);
  std::atomic_thread_fence(acquire);
  return copy.sequence.load(relaxed) == 2 * n;
}

}  // namespace contig
