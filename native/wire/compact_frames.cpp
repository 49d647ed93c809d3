// Frames whose rows are compact: how a builder fills them.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "native/kernels/crc32c.h"
#include "native/tape/gather.h"
#include "native/wire/frame_builder.h"

namespace contig {

namespace {
// The first step of a frame has two observations, each later one a single one more: frames of large
// steps may be larger, so that there are some.
constexpr uint64_t kStepsWanted = 8, kLarger = 4;

// Rows of each lane, or of each trajectory.
uint64_t steps_of(const WireRun* runs, size_t n) {
  return n > 1 ? 1 : runs->rows / std::max<uint64_t>(runs->lanes, 1);
}
}  // namespace

void FrameBuilder::share(const SharedForm* form, uint64_t most) {
  if (filling_) throw std::logic_error("FrameBuilder: rows are on their way into a frame");
  std::unique_ptr<RowPacker> packer;
  kept_variable_.clear();
  if (form != nullptr) {
    if (form->record_end() > record_size_)
      throw std::invalid_argument("FrameBuilder: leaves of larger records");
    packer = std::make_unique<RowPacker>(*form);
    for (const uint64_t offset : variable_) kept_variable_.push_back(form->stored(offset));
  }
  if (open_ && open_->items > 0) full_.push_back(open_);
  open_.reset();
  packer_ = std::move(packer);
  most_ = most;
}

uint64_t FrameBuilder::shared_limit() const {
  const uint64_t limit = open_->steps < kStepsWanted ? kLarger * frame_bytes_ : frame_bytes_;
  return std::min(limit, most_);
}

void FrameBuilder::open_next(bool compact) {
  auto frame = std::make_shared<OutFrame>();
  frame->compact = compact;
  frame->first = next();
  if (compact) {
    packer_->restart();
    frame->slots.make(frame_bytes_);
    frame->records.make(std::max(frame_bytes_ / 16, packer_->form().row_bytes()));
  }
  const std::lock_guard lock(mutex_);
  if (open_ && open_->items > 0) full_.push_back(open_);
  open_ = std::move(frame);
}

// The rows that the room is for, behind what the open frame holds; how many bytes they have.
uint64_t FrameBuilder::pack(const WireRun* runs, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if ((runs[i].flags & kMarked) != 0 && (runs[i].lanes == 0 || runs[i].rows % runs[i].lanes != 0))
      throw std::invalid_argument("FrameBuilder: lanes of different lengths");
  packing_ = true;
  packer_->start(offered_, record_size_, open_.get());
  for (size_t i = 0; i < n; ++i) {
    if ((runs[i].flags & kMarked) != 0)
      packer_->add_lanes(runs[i].rows, runs[i].lanes);
    else
      packer_->add_part(runs[i].rows, runs[i].traj_id);
  }
  return packer_->row_bytes() + packer_->slot_bytes();
}

// Where stacks of different lengths are together, and nothing is the same, slots may have more
// bytes than records.
void FrameBuilder::open_whole(uint64_t rows) {
  open_next(false);
  OutFrame::Part& records = open_->records;
  records.make(rows * record_size_);
  if (padded_) std::memset(records.data, 0, rows * record_size_);
  if (offered_.records != nullptr)
    std::memcpy(records.data, offered_.records, rows * record_size_);
  else
    join_columns(offered_, record_size_, records.data);
}

void FrameBuilder::commit_compact(const WireRun* runs, size_t n, bool may_grow) {
  const uint64_t rows = offered_.n, beside = n * kRunBytes + extras_.field_bytes + extras_.bytes;
  if (!open_ || !open_->compact) open_next(true);
  uint64_t size = pack(runs, n) + beside;
  if (open_->items > 0 && open_->gathered + size > shared_limit()) {
    open_next(true);
    size = pack(runs, n) + beside;
  }
  if (size > most_) {
    const uint64_t whole = rows * record_size_ + beside;
    if (whole > most_)
      throw std::length_error(std::to_string(rows) + " rows of at least " +
                              std::to_string(std::min(size, whole)) + " bytes together");
    open_whole(rows);
  }
  const bool compact = open_->compact;
  const bool grows = may_grow && can_grow(*runs);
  if (grows)
    grow_last(*runs);
  else
    add_runs(runs, n);
  if (extras_.bytes > 0)
    std::memcpy(open_->bytes.behind(0, extras_.bytes), offered_.blobs, extras_.bytes);
  Added what{rows, grows ? 0 : n, rows * record_size_};
  if (compact) {
    const SharedForm& form = packer_->form();
    sum(rows, form.row_bytes(), kept_variable_);
    what.bytes = packer_->row_bytes();
    what.slots = packer_->slot_bytes();
    OutFrame::Part& slots = open_->slots;
    slots.crc = crc32c(slots.crc, slots.data + slots.used, what.slots);
    what.another = rows * (form.row_bytes() + form.slot_bytes());
    open_->steps += steps_of(runs, n);
  } else {
    sum(rows, record_size_, variable_);
    what.another = frame_bytes_;  // nothing goes behind it
  }
  added(what);
}

}  // namespace contig
