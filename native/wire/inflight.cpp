#include "native/wire/inflight.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>

#if defined(__linux__) || defined(__APPLE__)
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

#include "native/sys/wait.h"
#include "native/wire/whole_frames.h"

namespace contig {

namespace {
// How long an open frame waits for more while others are in flight.
constexpr double kCoalesce = 0.002;
// In flight within one machine: nothing is gained by more, and what is reused soon stays in caches.
constexpr uint64_t kNearBytes = 3 << 20;
constexpr size_t kParts = 16;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The frame that says nothing but that somebody is there.
const std::string& beat_frame() {
  static const std::string bytes = [] {
    std::string out(kFrameHeader, '\0');
    const Frame frame{static_cast<uint8_t>(FrameType::beat), 0, 0, 0, 0, 0, 0};
    write_header(frame, reinterpret_cast<uint8_t*>(out.data()));
    return out;
  }();
  return bytes;
}
}  // namespace

Inflight::Inflight(uint64_t record_size, bool padded, uint64_t first, uint64_t frame_bytes,
                   uint64_t max_frames)
    : builder(record_size, padded, first, frame_bytes), max_frames_(max_frames), acked_(first) {}

// -- callers --------------------------------------------------------------------------------------

Inflight::Room Inflight::room() {
  const std::lock_guard lock(builder.mutex());
  line_up_full();
  return too_much();
}

Inflight::Room Inflight::too_much() const {
  if (unacked_.size() >= max_frames_) return Room::frames;
  return bytes_ + builder.open_bytes() >= bound() ? Room::bytes : Room::some;
}

uint64_t Inflight::bound() const {
  return near_ ? std::min(max_bytes_, std::max(kNearBytes, 2 * largest_)) : max_bytes_;
}

void Inflight::ask(std::string frame) {
  const std::lock_guard lock(builder.mutex());
  asked_.push_back(std::move(frame));
}

bool Inflight::rouse() { return idle() && idle_.exchange(false); }

void Inflight::wait(uint64_t seen, uint64_t upto, double timeout_s) {
  std::unique_lock lock(builder.mutex());
  watched_ = std::min(watched_, upto);
  ++waiters_;
  change_.wait_for(lock, std::chrono::duration<double>(countable(timeout_s)),
                   [&] { return changes() != seen; });
  --waiters_;
}

void Inflight::notify() {
  const std::lock_guard lock(builder.mutex());
  changed();
}

void Inflight::changed() {
  changes_.fetch_add(1, std::memory_order_release);
  watched_ = std::numeric_limits<uint64_t>::max();  // whoever still waits says so again
  if (waiters_ > 0) change_.notify_all();
}

uint64_t Inflight::frames() {
  const std::lock_guard lock(builder.mutex());
  return unacked_.size();
}

uint64_t Inflight::bytes() {
  const std::lock_guard lock(builder.mutex());
  return bytes_ + builder.open_bytes();
}

uint64_t Inflight::sent_bytes() {
  const std::lock_guard lock(builder.mutex());
  return sent_bytes_;
}

uint64_t Inflight::most_bytes() {
  const std::lock_guard lock(builder.mutex());
  return bound();
}

// -- the sending thread ---------------------------------------------------------------------------

void Inflight::limit(uint64_t max_bytes, bool near) {
  const std::lock_guard lock(builder.mutex());
  max_bytes_ = max_bytes;
  near_ = near;
}

void Inflight::carry(uint64_t bytes) {
  const std::lock_guard lock(builder.mutex());
  carry_ = bytes;
  sent_.restart(bytes);
}

void Inflight::heartbeat(double seconds) { pulse_.begin(seconds, now()); }

void Inflight::leave(double seconds) {
  close();
  leave_at_.store(now() + seconds, std::memory_order_release);
}

std::optional<Inflight::Event> Inflight::ended() {
  if (stopped_.load(std::memory_order_acquire)) return Event::stopped;
  const double leave_at = leave_at_.load(std::memory_order_acquire);
  if (std::isinf(leave_at)) return std::nullopt;
  if (builder.next() <= acked()) return Event::drained;
  return now() >= leave_at ? std::optional(Event::stopped) : std::nullopt;
}

double Inflight::time_left() const {
  return std::max(leave_at_.load(std::memory_order_acquire) - now(), 0.0);
}

uint64_t Inflight::resume(uint64_t seen, std::vector<std::string> requests) {
  ack(seen);
  const std::lock_guard lock(builder.mutex());
  const uint64_t again = unacked_.size() - unsent_;
  unsent_ = unacked_.size();
  sent_bytes_ = 0;
  sent_.restart(carry_);
  asked_.assign(std::make_move_iterator(requests.begin()), std::make_move_iterator(requests.end()));
  sending_.clear();
  part_ = offset_ = 0;
  opened_at_ = -1;
  changed();
  return again;
}

void Inflight::reshape(const SharedForm* form, uint64_t most) {
  const std::lock_guard lock(builder.mutex());
  while (std::shared_ptr<OutFrame> frame = builder.take_locked(true)) line_up(std::move(frame));
  std::deque<std::shared_ptr<OutFrame>> before;
  before.swap(unacked_);
  bytes_ = largest_ = 0;
  for (std::shared_ptr<OutFrame>& frame : before) {
    if (!frame->compact) {
      line_up(std::move(frame));
      continue;
    }
    const WholeRecords records{builder.record_size(), builder.variable()};
    for (auto& whole :
         whole_frames(*frame, *builder.shared(), records, std::min(builder.frame_bytes(), most)))
      line_up(std::move(whole));
  }
  unsent_ = unacked_.size();
  builder.share(form, most);
}

bool Inflight::ack(uint64_t number) {
  const std::lock_guard lock(builder.mutex());
  const bool news = number > acked_.load(std::memory_order_relaxed);
  if (news) acked_.store(number, std::memory_order_release);
  while (!unacked_.empty()) {
    const OutFrame& frame = *unacked_.front();
    if (frame.first + frame.items > acked_.load(std::memory_order_relaxed)) break;
    bytes_ -= frame.size();
    if (unsent_ == unacked_.size())
      --unsent_;  // a server that came back has it already
    else
      sent_bytes_ -= frame.size();
    unacked_.pop_front();
  }
  // Who waits for room is woken for a good part of it: each time costs two switches of threads.
  const bool roomy =
      unacked_.size() <= max_frames_ * 3 / 4 && bytes_ + builder.open_bytes() <= bound() / 4 * 3;
  if (unacked_.empty() || roomy || acked_.load(std::memory_order_relaxed) >= watched_) changed();
  return news;
}

void Inflight::line_up(std::shared_ptr<OutFrame> frame) {
  bytes_ += frame->size();
  largest_ = std::max(largest_, frame->size());
  unacked_.push_back(std::move(frame));
  ++unsent_;
}

void Inflight::line_up_full() {
  while (std::shared_ptr<OutFrame> frame = builder.take_locked(false)) line_up(std::move(frame));
}

void Inflight::add_parts(const std::shared_ptr<OutFrame>& frame, std::vector<Part>* parts) {
  const auto add = [parts](const uint8_t* data, size_t bytes, std::shared_ptr<const void> owner) {
    if (bytes > 0) parts->push_back({data, bytes, std::move(owner)});
  };
  std::shared_ptr<const SentFrame> sent;
  if (carry_ > 0 && frame->compact) sent = sent_.next(*frame, *builder.shared());
  if (sent)
    add(sent->head.data(), sent->head.size(), sent);
  else
    add(frame->head.data(), frame->head.size(), frame);
  add(frame->records.data, frame->records.used, frame);
  if (sent && sent->leaves_out)
    add(sent->slots.data(), sent->slots.size(), sent);
  else
    add(frame->slots.data, frame->slots.used, frame);
  add(frame->bytes.data, frame->bytes.used, frame);
}

std::vector<Inflight::Part> Inflight::next_parts() {
  const std::lock_guard lock(builder.mutex());
  std::vector<Part> parts;
  for (; !asked_.empty(); asked_.pop_front()) {
    auto frame = std::make_shared<const std::string>(std::move(asked_.front()));
    parts.push_back({reinterpret_cast<const uint8_t*>(frame->data()), frame->size(), frame});
  }
  held_back_ = false;
  line_up_full();
  while (parts.size() < kParts) {
    if (unsent_ == 0) {
      // At once if nothing is in flight, else when it is full or has waited long enough.
      if (!builder.open_to_take()) {
        opened_at_ = -1;
        break;
      }
      if (!unacked_.empty() && !closing_.load(std::memory_order_relaxed)) {
        if (opened_at_ < 0) opened_at_ = now();
        if (now() - opened_at_ < kCoalesce) break;
      }
      line_up(builder.take_locked(true));
      opened_at_ = -1;
    }
    const std::shared_ptr<OutFrame>& frame = unacked_[unacked_.size() - unsent_];
    if (sent_bytes_ > 0 && sent_bytes_ + frame->size() > bound()) {
      held_back_ = true;  // until an ack comes
      opened_at_ = -1;
      break;
    }
    add_parts(frame, &parts);
    --unsent_;
    sent_bytes_ += frame->size();
  }
  return parts;
}

double Inflight::patience() {
  const std::lock_guard lock(builder.mutex());
  if (opened_at_ >= 0) return std::max(opened_at_ + kCoalesce - now(), 0.0);
  line_up_full();
  const bool items = unsent_ > 0 || builder.open_to_take();
  if (!asked_.empty() || (items && !held_back_)) return 0.0;
  idle_.store(true);
  return -1.0;
}

#if defined(__linux__) || defined(__APPLE__)

namespace {
#if defined(MSG_NOSIGNAL)
constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
constexpr int kFlags = MSG_DONTWAIT;
#endif

bool again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }
}  // namespace

bool Inflight::can_run() { return true; }

// Handles acks and beats; anything else at the front of what was received is an event.
std::optional<Inflight::Event> Inflight::hear(Receiver& in) {
  Receiver::State state;
  while ((state = in.next()) != Receiver::State::more) {
    if (state == Receiver::State::bad) return Event::refused;
    if (state == Receiver::State::grow) {
      in.resize(in.needed());
      break;
    }
    const auto type = static_cast<FrameType>(in.frame().type);
    if (type != FrameType::ack && type != FrameType::beat) return Event::frame;
    if (type == FrameType::ack) ack(in.frame().number);
    in.pop();
  }
  return std::nullopt;
}

// As much of what is to be sent as the socket takes.
std::optional<Inflight::Event> Inflight::send_some(int socket, int* error) {
  if (sending_.empty()) sending_ = next_parts();
  if (sending_.empty() && pulse_.due(now())) {
    const std::string& frame = beat_frame();
    sending_.push_back({reinterpret_cast<const uint8_t*>(frame.data()), frame.size(), nullptr});
  }
  while (part_ < sending_.size()) {
    iovec iov[kParts];
    size_t n = 0;
    for (size_t p = part_; p < sending_.size() && n < kParts; ++p, ++n) {
      const size_t skip = p == part_ ? offset_ : 0;
      iov[n] = {const_cast<uint8_t*>(sending_[p].data) + skip, sending_[p].bytes - skip};
    }
    msghdr message{};
    message.msg_iov = iov;
    message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(n);
    const ssize_t sent = sendmsg(socket, &message, kFlags);
    if (sent < 0) {
      if (again(errno)) break;
      *error = errno;
      return Event::failed;
    }
    pulse_.spoke(now());
    offset_ += static_cast<size_t>(sent);
    while (part_ < sending_.size() && offset_ >= sending_[part_].bytes)
      offset_ -= sending_[part_++].bytes;
  }
  return std::nullopt;
}

// Waits until something can be read, or, if some of it is left, sent; or until it is time to.
std::optional<Inflight::Event> Inflight::wait_for_input(int socket, int wake, int* error,
                                                        bool* readable) {
  const bool more = part_ < sending_.size();
  double wait = 0;
  if (!more) {
    const bool sent = !sending_.empty();
    sending_.clear();
    part_ = offset_ = 0;
    if (!sent) wait = patience();  // else something may have gathered meanwhile
  }
  const short wanted = static_cast<short>(POLLIN | (more ? POLLOUT : 0));
  pollfd fds[2] = {{socket, wanted, 0}, {wake, POLLIN, 0}};
  if (more || wait < 0) wait = std::numeric_limits<double>::infinity();
  wait = std::min({wait, pulse_.patience(now(), !more), time_left()});
  const int milliseconds =
      wait > 3600 ? (std::isinf(wait) ? -1 : 3600000) : static_cast<int>(std::ceil(wait * 1e3));
  const int ready = poll(fds, 2, milliseconds);
  idle_.store(false);
  if (ready < 0 && errno != EINTR) {
    *error = errno;
    return Event::failed;
  }
  if (ready > 0 && fds[1].revents != 0) {
    char bytes[256];
    while (recv(wake, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
  }
  *readable = ready > 0 && (fds[0].revents & ~POLLOUT) != 0;
  return std::nullopt;
}

Inflight::Event Inflight::run(int socket, int wake, Receiver& in, int* error) {
  for (;;) {
    if (const auto event = hear(in)) return *event;
    if (const auto event = ended()) return *event;
    if (const auto event = send_some(socket, error)) return *event;
    bool readable = false;
    if (const auto event = wait_for_input(socket, wake, error, &readable)) return *event;
    if (readable) {
      uint64_t room;
      uint8_t* at = in.room(&room);
      const ssize_t n = recv(socket, at, room, MSG_DONTWAIT);
      if (n == 0) return Event::closed;
      if (n > 0) {
        in.received(static_cast<uint64_t>(n));
        pulse_.heard(now());
      } else if (!again(errno)) {
        *error = errno;
        return Event::failed;
      }
    }
    if (pulse_.silent(now())) return Event::silent;
  }
}

#else

bool Inflight::can_run() { return false; }

Inflight::Event Inflight::run(int, int, Receiver&, int* error) {
  *error = ENOSYS;
  return Event::failed;
}

#endif

}  // namespace contig
