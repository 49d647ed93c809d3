#include "native/wire/sent_slots.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "native/kernels/crc32c.h"

namespace contig {

namespace {
// A frame that begins anew has a whole observation more than it has steps: of more than so many,
// and of stacks so many for each of its frames, that is little.
constexpr uint64_t kMostSteps = 8;

uint32_t reference(const uint8_t* row, uint64_t number) {
  uint32_t slot;
  std::memcpy(&slot, row + number * sizeof slot, sizeof slot);
  return slot;
}

void append(std::vector<uint8_t>* to, const void* from, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(from);
  to->insert(to->end(), first, first + bytes);
}

// Its slots are to be kept; and some of them are left out.
std::shared_ptr<const SentFrame> sent_frame(const OutFrame& frame, uint64_t slot_bytes,
                                            const std::vector<CarriedSlot>& left_out) {
  auto sent = std::make_shared<SentFrame>();
  sent->head = frame.head;
  Frame f{};
  parse_header(frame.head.data(), std::numeric_limits<uint64_t>::max(), &f);
  f.flags |= kKeptSlots;
  if (!left_out.empty()) {
    f.flags |= kCarriedSlots;
    sent->leaves_out = true;
    const auto n = static_cast<uint32_t>(left_out.size());
    append(&sent->head, &n, sizeof n);
    append(&sent->head, left_out.data(), n * sizeof(CarriedSlot));
    sent->slots.reserve(frame.slots.used - n * slot_bytes);
    uint64_t next = 0;
    for (const CarriedSlot& slot : left_out) {
      append(&sent->slots, frame.slots.data + next * slot_bytes, (slot.own - next) * slot_bytes);
      next = uint64_t{slot.own} + 1;
    }
    append(&sent->slots, frame.slots.data + next * slot_bytes,
           frame.slots.used - next * slot_bytes);
    f.length += sent->head.size() - frame.head.size() + sent->slots.size() - frame.slots.used;
    f.body_crc = crc32c(0, sent->head.data() + kFrameHeader, sent->head.size() - kFrameHeader);
    f.body_crc = crc32c_join(f.body_crc, frame.records.crc, frame.records.used);
    f.body_crc = crc32c(f.body_crc, sent->slots.data(), sent->slots.size());
    if (frame.bytes.used > 0)
      f.body_crc = crc32c_join(f.body_crc, frame.bytes.crc, frame.bytes.used);
  }
  write_header(f, sent->head.data());
  return sent;
}
}  // namespace

void SentSlots::restart(uint64_t carry) {
  window_.restart(carry);
  lanes_.clear();
  parts_.clear();
}

// For each lane or trajectory that a run has rows of: its trail, its first row and its last one.
template <class F>
void SentSlots::each_trail(const OutFrame& frame, const F& call) {
  uint64_t row = 0;
  for (size_t at = 0; at < frame.runs.size(); at += kRunBytes) {
    const WireRun run = read_run(frame.runs.data() + at);
    const bool marked = (run.flags & kMarked) != 0;
    const uint64_t lanes = marked ? run.lanes : 1, n = run.rows / lanes;
    if (marked && lanes_.size() < lanes) lanes_.resize(lanes);
    for (uint64_t lane = 0; lane < lanes; ++lane, row += n)
      call(marked ? &lanes_[lane] : &parts_[run.traj_id], row, row + n - 1);
  }
}

std::shared_ptr<const SentFrame> SentSlots::next(const OutFrame& frame, const SharedForm& form) {
  const uint64_t size = form.slot_bytes(), k = form.stack(), n = frame.slots.used / size;
  if (!frame.compact || frame.steps >= kMostSteps * k || frame.slots.used > window_.most())
    return nullptr;
  ++frames_;
  numbers_.assign(n, kNone);
  upto_.assign(n, 0);
  taken_.clear();
  const auto row_at = [&](uint64_t row) { return frame.records.data + row * form.row_bytes(); };
  for (uint64_t row = 0; row < frame.rows; ++row)
    for (uint64_t j = 0; j < form.references(); ++j) {
      uint64_t& upto = upto_[reference(row_at(row), j)];
      upto = std::max(upto, j % k);
    }
  each_trail(frame, [&](Trail* trail, uint64_t first, uint64_t) {
    if (trail->frame != frames_ && trail->numbers.size() == k)
      find(row_at(first), *trail, frame, form);
    trail->frame = frames_;
  });

  std::vector<CarriedSlot> left_out;
  for (uint64_t own = 0; own < n; ++own)
    if (numbers_[own] != kNone)
      left_out.push_back(
          {static_cast<uint32_t>(own), static_cast<uint32_t>(window_.next() - 1 - numbers_[own])});
  for (uint64_t own = 0; own < n; ++own)
    if (numbers_[own] == kNone) numbers_[own] = window_.add(frame.slots.data + own * size, size);
  each_trail(frame, [&](Trail* trail, uint64_t, uint64_t last) {
    trail->numbers.assign(k, kNone);
    for (uint64_t j = 0; j < k; ++j) {  // without a next observation, frames move up by one
      const uint64_t then = form.paired() ? k + j : j + 1;
      if (then < form.references()) trail->numbers[j] = numbers_[reference(row_at(last), then)];
    }
  });
  prune(form);
  return sent_frame(frame, size, left_out);
}

// Which slots of a row's observation are here, where they are expected; each once.
void SentSlots::find(const uint8_t* row, const Trail& trail, const OutFrame& frame,
                     const SharedForm& form) {
  for (uint64_t j = 0; j < trail.numbers.size(); ++j) {
    const uint64_t own = reference(row, j), number = trail.numbers[j];
    if (number == kNone || number < window_.first(form.slot_bytes()) || numbers_[own] != kNone)
      continue;
    if (std::find(taken_.begin(), taken_.end(), number) != taken_.end() ||
        !same(own, number, frame, form))
      continue;
    numbers_[own] = number;
    taken_.push_back(number);
  }
}

// As far as the frame's rows have something of it: where leaves have fewer frames than the largest
// stack, the first slots of an observation have bytes that mean nothing.
bool SentSlots::same(uint64_t own, uint64_t number, const OutFrame& frame,
                     const SharedForm& form) const {
  const uint64_t size = form.slot_bytes();
  const uint8_t *a = frame.slots.data + own * size, *b = window_.at(number, size);
  for (const SharedLeaf& leaf : form.leaves())
    if (upto_[own] >= leaf.first &&
        std::memcmp(a + leaf.at, b + leaf.at, leaf.bytes / leaf.frames) != 0)
      return false;
  return true;
}

// Trajectories end without a word: those whose slots are gone are forgotten.
void SentSlots::prune(const SharedForm& form) {
  if (parts_.size() < prune_at_) return;
  const uint64_t first = window_.first(form.slot_bytes());
  for (auto it = parts_.begin(); it != parts_.end();) {
    const std::vector<uint64_t>& numbers = it->second.numbers;
    const bool gone = std::all_of(numbers.begin(), numbers.end(), [&](uint64_t number) {
      return number == kNone || number < first;
    });
    it = gone ? parts_.erase(it) : std::next(it);
  }
  prune_at_ = std::max<size_t>(1024, 2 * parts_.size());
}

}  // namespace contig
