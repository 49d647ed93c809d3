#include "native/wire/frame_builder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "native/kernels/crc32c.h"
#include "native/tape/gather.h"

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
  f.length = gathered;
  f.flags = compact ? kCompactRows : 0;
  f.body_crc = crc32c(crc32c(0, runs.data(), runs.size()), fields.data(), fields.size());
  f.body_crc = crc32c_join(f.body_crc, records.crc, records.used);
  if (slots.used > 0) f.body_crc = crc32c_join(f.body_crc, slots.crc, slots.used);
  if (bytes.used > 0) f.body_crc = crc32c_join(f.body_crc, bytes.crc, bytes.used);
  head.resize(kFrameHeader + runs.size() + fields.size());
  write_header(f, head.data());
  const auto behind = std::copy(runs.begin(), runs.end(), head.begin() + kFrameHeader);
  std::copy(fields.begin(), fields.end(), behind);
}

FrameBuilder::FrameBuilder(uint64_t record_size, bool padded, uint64_t first, uint64_t frame_bytes)
    : record_size_(record_size), frame_bytes_(frame_bytes), padded_(padded), next_(first) {
  if (record_size == 0) throw std::invalid_argument("FrameBuilder: a record has at least a byte");
  if (frame_bytes > uint64_t{1} << 46) throw std::invalid_argument("FrameBuilder: too large");
}

uint8_t* FrameBuilder::room(uint64_t rows, uint64_t runs, const ItemExtras& extras) {
  const uint64_t bytes = rows * record_size_;
  if (packer_) {
    if (held_size_ < bytes) {
      held_.reset(new uint8_t[bytes]);
      held_size_ = bytes;
    }
    if (padded_) std::memset(held_.get(), 0, bytes);
    Rows held;
    held.n = rows;
    held.records = held_.get();
    held_bytes_.resize(extras.bytes);
    held.blobs = held_bytes_.data();
    held.blob_bytes = extras.bytes;
    room_for(held, runs, extras);
    return held_.get();
  }
  const std::lock_guard lock(mutex_);
  OutFrame* frame = open_.get();
  if (frame != nullptr) {
    // Together with what may come with them.
    const uint64_t more = bytes + runs * kRunBytes + extras.field_bytes + extras.bytes;
    const bool fits =
        frame->records.fits(bytes) &&
        (extras.bytes == 0 || frame->bytes.data == nullptr || frame->bytes.fits(extras.bytes));
    if (!fits || (frame->items > 0 && frame->gathered + more > frame_bytes_)) {
      if (frame->items > 0) full_.push_back(open_);
      open_.reset();
      frame = nullptr;
    }
  }
  if (frame == nullptr) {
    open_ = std::make_shared<OutFrame>();
    frame = open_.get();
    frame->records.make(std::max(frame_bytes_, bytes));
    frame->first = next();
  }
  if (extras.bytes > 0 && frame->bytes.data == nullptr)
    frame->bytes.make(std::max(frame_bytes_, extras.bytes));
  extras_ = extras;
  filling_ = true;
  uint8_t* at = frame->records.data + frame->records.used;
  if (padded_) std::memset(at, 0, bytes);
  return at;
}

void FrameBuilder::room_for(const Rows& rows, uint64_t runs, const ItemExtras& extras) {
  if (!packer_) {
    uint8_t* at = room(rows.n, runs, extras);
    join_columns(rows, record_size_, at);
    if (rows.blob_bytes > 0) std::memcpy(bytes_room(), rows.blobs, rows.blob_bytes);
    return;
  }
  const std::lock_guard lock(mutex_);
  offered_ = rows;
  extras_ = extras;
  filling_ = true;
}

void FrameBuilder::cancel() {
  const std::lock_guard lock(mutex_);
  filling_ = false;
  if (!packing_) return;
  // What the packer takes to be in the frame is not.
  packing_ = false;
  if (open_ && open_->items > 0) full_.push_back(open_);
  open_.reset();
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

void FrameBuilder::sum(uint64_t rows, uint64_t row_bytes, const std::vector<uint64_t>& variable) {
  OutFrame::Part &records = open_->records, &bytes = open_->bytes;
  uint8_t* at = records.data + records.used;
  if (!variable.empty()) {
    // Positions are within the frame's bytes.
    for (uint64_t row = 0; bytes.used > 0 && row < rows; ++row)
      for (const uint64_t offset : variable) {
        uint64_t position;
        std::memcpy(&position, at + row * row_bytes + offset, sizeof position);
        position += bytes.used;
        std::memcpy(at + row * row_bytes + offset, &position, sizeof position);
      }
    if (extras_.bytes > 0) bytes.crc = crc32c(bytes.crc, bytes.data + bytes.used, extras_.bytes);
  }
  records.crc = crc32c(records.crc, at, rows * row_bytes);
}

void FrameBuilder::added(const Added& what) {
  const std::lock_guard lock(mutex_);
  OutFrame& frame = *open_;
  frame.records.used += what.bytes;
  frame.slots.used += what.slots;
  frame.bytes.used += extras_.bytes;
  frame.gathered += what.bytes + what.slots + extras_.bytes;
  frame.rows += what.rows;
  frame.items += what.items;
  next_.store(next() + what.items, std::memory_order_relaxed);
  filling_ = packing_ = false;
  // Another one of this size would not go in: it need not wait for one.
  const uint64_t another = what.another + kRunBytes + extras_.field_bytes + extras_.bytes;
  if (frame.gathered + another > (frame.compact ? shared_limit() : frame_bytes_)) {
    full_.push_back(open_);
    open_.reset();
  }
}

void FrameBuilder::commit_records(uint64_t rows) {
  if (packer_ || !open_->runs.empty())
    throw std::invalid_argument("FrameBuilder: records behind a run");
  sum(rows, record_size_, variable_);
  added({rows, rows, rows * record_size_, 0, rows * record_size_});
}

void FrameBuilder::commit_record(LeafSums sums) {
  if (packer_ || !open_->runs.empty())
    throw std::invalid_argument("FrameBuilder: records behind a run");
  OutFrame::Part& records = open_->records;
  records.crc = sums.over(records.crc, records.data + records.used, record_size_);
  added({1, 1, record_size_, 0, record_size_});
}

void FrameBuilder::commit_run(const WireRun& run) {
  if (packer_) return commit_compact(&run, 1, false);
  if (open_->items > 0 && open_->runs.empty())
    throw std::invalid_argument("FrameBuilder: a run behind records");
  add_runs(&run, 1);
  sum(run.rows, record_size_, variable_);
  added({run.rows, 1, run.rows * record_size_, 0, run.rows * record_size_});
}

void FrameBuilder::commit_runs(const std::vector<WireRun>& runs) {
  if (packer_) return commit_compact(runs.data(), runs.size(), false);
  if (open_->items > 0 && open_->runs.empty())
    throw std::invalid_argument("FrameBuilder: runs behind records");
  add_runs(runs.data(), runs.size());
  uint64_t rows = 0;
  for (const WireRun& run : runs) rows += run.rows;
  sum(rows, record_size_, variable_);
  added({rows, runs.size(), rows * record_size_, 0, rows * record_size_});
}

void FrameBuilder::add_runs(const WireRun* runs, size_t n) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(runs);
  open_->runs.insert(open_->runs.end(), bytes, bytes + n * kRunBytes);
  if (extras_.field_bytes > 0)
    open_->fields.insert(open_->fields.end(), extras_.fields, extras_.fields + extras_.field_bytes);
  open_->gathered += n * kRunBytes + extras_.field_bytes;
}

// Rows that others follow may end a trajectory and begin another: with fields of one of them only,
// both would get them.
bool FrameBuilder::same_fields(const WireRun& there, const WireRun& run) const {
  if (((there.flags | run.flags) & kHasFields) == 0) return true;
  if ((there.flags & run.flags & kHasFields) == 0 || there.fields != run.fields) return false;
  const uint64_t n = extras_.field_bytes, held = open_->fields.size();
  return n <= held && std::memcmp(open_->fields.data() + held - n, extras_.fields, n) == 0;
}

bool FrameBuilder::can_grow(const WireRun& run) const {
  if (open_->runs.empty()) return false;
  const WireRun there = read_run(open_->runs.data() + open_->runs.size() - kRunBytes);
  constexpr uint32_t lane = kMarked | kGoesOn, fields = kHasFields;
  const bool same_lane = (there.flags & ~fields) == lane && (run.flags & ~fields) == lane &&
                         there.lanes == 1 && run.lanes == 1;
  const bool same_trajectory = ((there.flags | run.flags) & kMarked) == 0 &&
                               (there.flags & kEnded) == 0 && (run.flags & kBegins) == 0 &&
                               there.traj_id == run.traj_id && there.version == run.version;
  if ((!same_lane && !same_trajectory) || !same_fields(there, run)) return false;
  return there.rows + run.rows <= kGrownRows;  // a limiter lets items in one by one
}

void FrameBuilder::grow_last(const WireRun& run) {
  uint8_t* last = open_->runs.data() + open_->runs.size() - kRunBytes;
  WireRun there = read_run(last);
  there.rows += run.rows;
  there.flags |= run.flags;
  std::memcpy(last, &there, sizeof there);
  extras_.field_bytes = 0;
}

bool FrameBuilder::grow_run(const WireRun& run) {
  if (packer_) {
    commit_compact(&run, 1, true);
    return true;
  }
  if (!can_grow(run)) return false;
  grow_last(run);
  sum(run.rows, record_size_, variable_);
  added({run.rows, 0, run.rows * record_size_, 0, run.rows * record_size_});
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
