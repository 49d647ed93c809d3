#include "native/wire/frame_builder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "native/kernels/crc32c.h"

namespace contig {

namespace {
constexpr uint32_t kGrownRows = 256;
}

void OutFrame::seal() {
  if (!head.empty()) return;
  Frame f{};
  f.type = static_cast<uint8_t>(FrameType::items);
  f.number = first;
  f.runs = static_cast<uint32_t>(runs.size() / kRunBytes);
  f.rows = static_cast<uint32_t>(rows);
  f.length = runs.size() + used;
  f.body_crc = crc32c_join(crc32c(0, runs.data(), runs.size()), crc, used);
  head.resize(kFrameHeader + runs.size());
  write_header(f, head.data());
  std::copy(runs.begin(), runs.end(), head.begin() + kFrameHeader);
}

FrameBuilder::FrameBuilder(uint64_t record_size, bool padded, uint64_t first, uint64_t frame_bytes)
    : record_size_(record_size), frame_bytes_(frame_bytes), padded_(padded), next_(first) {
  if (record_size == 0) throw std::invalid_argument("FrameBuilder: a record has at least a byte");
  if (frame_bytes > uint64_t{1} << 46) throw std::invalid_argument("FrameBuilder: too large");
}

uint8_t* FrameBuilder::room(uint64_t rows, uint64_t runs) {
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = rows * record_size_;
  // Together with the runs that may come with them.
  const uint64_t whole = open_ ? open_->used + open_->runs.size() + runs * kRunBytes + bytes : 0;
  if (open_ &&
      (open_->used + bytes > open_->capacity || (open_->items > 0 && whole > frame_bytes_))) {
    if (open_->items > 0) full_.push_back(open_);
    open_.reset();
  }
  if (!open_) {
    open_ = std::make_shared<OutFrame>(std::max(frame_bytes_, bytes));
    open_->first = next();
  }
  filling_ = true;
  uint8_t* at = open_->body + open_->used;
  if (padded_) std::memset(at, 0, bytes);
  return at;
}

void FrameBuilder::cancel() {
  const std::lock_guard lock(mutex_);
  filling_ = false;
}

uint32_t LeafSums::over(uint32_t before, const uint8_t* record, size_t bytes) {
  std::sort(sums_, sums_ + n_, [](const Sum& a, const Sum& b) { return a.offset < b.offset; });
  size_t at = 0;
  for (size_t i = 0; i < n_; ++i) {
    before = crc32c(before, record + at, sums_[i].offset - at);
    before = crc32c_join(before, sums_[i].crc, sums_[i].bytes);
    at = sums_[i].offset + sums_[i].bytes;
  }
  return crc32c(before, record + at, bytes - at);
}

void FrameBuilder::sum(uint64_t rows) {
  open_->crc = crc32c(open_->crc, open_->body + open_->used, rows * record_size_);
}

// What was written to the room, and is in the checksum, counts from here on.
void FrameBuilder::added(uint64_t rows, uint64_t items) {
  const uint64_t bytes = rows * record_size_;
  const std::lock_guard lock(mutex_);
  open_->used += bytes;
  open_->rows += rows;
  open_->items += items;
  next_.store(next() + items, std::memory_order_relaxed);
  filling_ = false;
  // Another one of this size would not go in: it need not wait for one.
  if (open_->used + open_->runs.size() + kRunBytes + bytes > frame_bytes_) {
    full_.push_back(open_);
    open_.reset();
  }
}

void FrameBuilder::commit_records(uint64_t rows) {
  if (!open_->runs.empty()) throw std::invalid_argument("FrameBuilder: records behind a run");
  sum(rows);
  added(rows, rows);
}

void FrameBuilder::commit_record(LeafSums sums) {
  if (!open_->runs.empty()) throw std::invalid_argument("FrameBuilder: records behind a run");
  open_->crc = sums.over(open_->crc, open_->body + open_->used, record_size_);
  added(1, 1);
}

void FrameBuilder::commit_run(const WireRun& run) {
  if (open_->items > 0 && open_->runs.empty())
    throw std::invalid_argument("FrameBuilder: a run behind records");
  const auto* bytes = reinterpret_cast<const uint8_t*>(&run);
  open_->runs.insert(open_->runs.end(), bytes, bytes + kRunBytes);
  sum(run.rows);
  added(run.rows, 1);
}

void FrameBuilder::commit_runs(const std::vector<WireRun>& runs) {
  if (open_->items > 0 && open_->runs.empty())
    throw std::invalid_argument("FrameBuilder: runs behind records");
  const auto* bytes = reinterpret_cast<const uint8_t*>(runs.data());
  open_->runs.insert(open_->runs.end(), bytes, bytes + runs.size() * kRunBytes);
  uint64_t rows = 0;
  for (const WireRun& run : runs) rows += run.rows;
  sum(rows);
  added(rows, runs.size());
}

bool FrameBuilder::grow_run(const WireRun& run) {
  if (open_->runs.empty()) return false;
  uint8_t* last = open_->runs.data() + open_->runs.size() - kRunBytes;
  WireRun there = read_run(last);
  constexpr uint32_t lane = kMarked | kGoesOn;
  const bool same_lane =
      there.flags == lane && run.flags == lane && there.lanes == 1 && run.lanes == 1;
  const bool same_trajectory = ((there.flags | run.flags) & kMarked) == 0 &&
                               (there.flags & kEnded) == 0 && (run.flags & kBegins) == 0 &&
                               there.traj_id == run.traj_id && there.version == run.version;
  if (!same_lane && !same_trajectory) return false;
  if (there.rows + run.rows > kGrownRows) return false;  // a limiter lets items in one by one
  there.rows += run.rows;
  there.flags |= run.flags;
  std::memcpy(last, &there, sizeof there);
  sum(run.rows);
  added(run.rows, 0);
  return true;
}

std::shared_ptr<OutFrame> FrameBuilder::take(bool open) {
  const std::lock_guard lock(mutex_);
  return take_locked(open);
}

std::shared_ptr<OutFrame> FrameBuilder::take_locked(bool open) {
  std::shared_ptr<OutFrame> frame;
  if (!full_.empty()) {
    frame = full_.front();
    full_.pop_front();
  } else if (open && open_to_take()) {
    frame = open_;
    open_.reset();
  }
  if (frame) frame->seal();
  return frame;
}

}  // namespace contig
