#include "native/wire/receiver.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#if defined(__linux__) || defined(__APPLE__)
#include <sys/socket.h>
#endif

#include "native/kernels/crc32c.h"
#include "native/sys/block.h"

namespace contig {

namespace {
uint64_t checked_size(uint64_t bytes) {
  if (bytes < kFrameHeader) throw std::invalid_argument("Receiver: smaller than a header");
  if (bytes > uint64_t{1} << 46) throw std::invalid_argument("Receiver: too large");
  return bytes;
}
}  // namespace

// Pieces of large frames: with the socket's own memory they stay in a core's cache.
constexpr uint64_t kPiece = 128 << 10;
constexpr uint64_t kLarge = 64 << 10;
// Of a large frame, what is worth a round of the event loop: from this machine, where the rest
// comes at once, and from afar, where it shows that the peer is alive.
constexpr uint64_t kNearRound = 1 << 20, kFarRound = 64 << 10;

Receiver::Receiver(uint64_t bytes, uint64_t max_frame)
    : data_(block_take(checked_size(bytes))), size_(bytes), max_frame_(max_frame) {}

Receiver::~Receiver() { block_give(data_, size_ + beyond_); }

uint8_t* Receiver::room(uint64_t* bytes) {
  if (from_ == to_) from_ = to_ = 0;
  // Moving costs a copy: only when half of the buffer is behind us or nothing is left.
  const bool missing = parsed_ && from_ + needed() > size_;
  if (from_ > 0 && (missing || to_ >= size_ || from_ >= size_ / 2)) to_front();
  *bytes = size_ - std::min(to_, size_);
  // A large frame is received to its end and no further: the next one starts at the buffer's front,
  // and nothing is ever moved.
  if (parsed_ && needed() >= kLarge && held() < needed())
    *bytes = std::min(*bytes, needed() - held());
  *bytes = std::min(*bytes, kPiece);
  return data_ + to_;
}

void Receiver::to_front() {
  std::memmove(data_, data_ + from_, held());
  to_ -= from_;
  from_ = 0;
}

void Receiver::received(uint64_t bytes) { to_ += std::min(bytes, size_ - std::min(to_, size_)); }

void Receiver::skip(uint64_t bytes) {
  from_ += std::min(bytes, held());
  parsed_ = checked_ = false;
  fits_ = 0;
  kept_ = {};
}

bool Receiver::parse() {
  if (parsed_ || refusal_ != Refusal::none || held() < kFrameHeader) return parsed_;
  refusal_ = parse_header(data_ + from_, max_frame_, &frame_);
  parsed_ = refusal_ == Refusal::none;
  checked_ = false;
  summed_ = crc_ = 0;
  kept_ = {};
  return parsed_;
}

Receiver::State Receiver::next_unsummed() {
  const bool parsed = parse();
  if (refusal_ != Refusal::none) return State::bad;
  if (!parsed) return State::more;
  if (held() >= needed()) return State::ready;
  return needed() > size_ ? State::grow : State::more;
}

Receiver::State Receiver::next() {
  const State state = next_unsummed();
  if (!parsed_ || state == State::bad) return state;
  if (!checked_) {
    sum();
    if (state != State::ready) return state;
    if (crc_ != frame_.body_crc) {
      refusal_ = Refusal::body_crc;
      return State::bad;
    }
    checked_ = true;
  }
  const bool items = frame_.type == static_cast<uint8_t>(FrameType::items);
  return items && (frame_.flags & kCarriedSlots) != 0 ? complete() : state;
}

Receiver::State Receiver::complete() {
  uint64_t whole;
  refusal_ = carried_.check(frame_, body(), shape_, max_frame_ - kFrameHeader, &whole);
  if (refusal_ != Refusal::none) return State::bad;
  const uint64_t before = frame_.length, behind = held() - needed();
  // No more than is carried comes to it: whoever has a whole frame never waits for memory.
  const uint64_t then = held() - before + std::max(whole, before);
  if (then > size_ + beyond_)
    move_to(size_, carried_.allowed());
  else if (from_ + then > size_ + beyond_)
    to_front();
  uint8_t* at = data_ + from_ + kFrameHeader;
  std::memmove(at + std::max(whole, before), at + before, behind);
  carried_.put_in(at, shape_, &frame_);
  if (whole < before) std::memmove(at + whole, at + before, behind);
  to_ += whole - before;
  return State::ready;
}

void Receiver::sum() {
  const uint64_t there = std::min(held() - kFrameHeader, frame_.length);
  if (there == summed_) return;
  crc_ = crc32c(crc_, body() + summed_, there - summed_);
  summed_ = there;
}

uint64_t Receiver::receive(int socket, bool summing) {
  uint64_t total = 0;
#if defined(__linux__) || defined(__APPLE__)
  const auto missing = [this] {
    const bool large = parsed_ && needed() >= kLarge && needed() <= size_;
    return large && held() < needed() ? needed() - held() : 0;
  };
  do {
    uint64_t bytes;
    uint8_t* at = room(&bytes);
    const ssize_t n = bytes == 0 ? 0 : recv(socket, at, bytes, MSG_DONTWAIT);
    if (n <= 0) break;
    received(static_cast<uint64_t>(n));
    if (parsed_ && summing) sum();
    total += static_cast<uint64_t>(n);
  } while (missing() > 0);
  socket_ = socket;
  wake_at(std::clamp<uint64_t>(missing(), 1, near_ ? kNearRound : kFarRound));
#else
  (void)socket;
  (void)summing;
#endif
  return total;
}

void Receiver::wake_at(uint64_t bytes) {
#if defined(__linux__)  // where it is about readiness, and not only about `recv`
  if (bytes == wakes_at_) return;
  wakes_at_ = bytes;
  const int least = static_cast<int>(bytes);
  setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
#else
  (void)bytes;
#endif
}

bool Receiver::check(uint64_t record_size, bool runs) {
  if (!parsed_ || !checked_) return false;
  if (fits(record_size, runs)) return true;  // it was asked before
  const bool items = frame_.type == static_cast<uint8_t>(FrameType::items);
  ItemParts parts;
  refusal_ = items ? refusal_of_items(record_size, runs, &parts) : Refusal::type;
  fits_ = refusal_ == Refusal::none ? record_size : 0;
  fits_runs_ = runs;
  return fits_ != 0;
}

Refusal Receiver::refusal_of_items(uint64_t record_size, bool runs, ItemParts* parts) {
  const Refusal refusal = check_items(frame_, body(), record_size, runs, shape_, parts);
  kept_ = {};
  if (refusal != Refusal::none || (frame_.flags & kKeptSlots) == 0) return refusal;
  if (parts->slots == nullptr || !carried_.keeps(shape_.form.slot_bytes())) return Refusal::shape;
  kept_ = {static_cast<uint64_t>(parts->slots - body()), parts->n_slots};
  return refusal;
}

void Receiver::pop() {
  wake_at(1);  // whatever comes next may be small
  if (kept_.n > 0) carried_.keep(body() + kept_.at, kept_.n, shape_.form.slot_bytes());
  carried_.done();
  from_ += needed();
  parsed_ = checked_ = false;
  fits_ = 0;
  kept_ = {};
}

void Receiver::resize(uint64_t bytes) { move_to(checked_size(std::max(bytes, held())), 0); }

void Receiver::move_to(uint64_t size, uint64_t beyond) {
  uint8_t* data = block_take(size + beyond);
  std::memcpy(data, data_ + from_, held());
  block_give(data_, size_ + beyond_);
  data_ = data;
  size_ = size;
  beyond_ = beyond;
  to_ -= from_;
  from_ = 0;
}

}  // namespace contig
