#include "native/tape/slots.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "native/kernels/compare.h"
#include "native/kernels/copy.h"
#include "native/tape/slot_memory.h"
#include "native/tape/tape.h"

namespace contig {

void Observations::set(const Rows& rows, const SharedForm& form, uint64_t record_size) {
  const Column* end = rows.columns + rows.n_columns;
  const auto place = [&](uint64_t offset, uint64_t bytes) {
    if (rows.records != nullptr) return Place{rows.records + offset, record_size};
    const Column* found = std::find_if(
        rows.columns, end, [&](const Column& c) { return c.offset == offset && c.bytes == bytes; });
    if (found == end) throw std::invalid_argument("append: an observation has no column");
    return Place{found->data, found->stride};
  };
  places_.clear();
  places_.reserve(2 * form.leaves().size());
  for (const SharedLeaf& leaf : form.leaves()) {
    places_.push_back(place(leaf.offset, leaf.bytes));
    const bool paired = leaf.next_offset != SharedLeaf::kNoNext;
    places_.push_back(paired ? place(leaf.next_offset, leaf.bytes) : Place{});
  }
}

namespace {
// Pieces of `inner` bytes, `step` apart each.
bool same_pieces(const uint8_t* a, uint64_t a_step, const uint8_t* b, uint64_t b_step,
                 uint64_t inner, uint64_t pieces) {
  if (pieces == 1) return same_bytes(a, b, inner);
  if (inner == 1) {  // bytes: a call for each takes ten times as long
    for (uint64_t i = 0; i < pieces;) {
      uint8_t differs = 0;
      for (const uint64_t end = std::min(pieces, i + 256); i < end; ++i)
        differs |= static_cast<uint8_t>(a[i * a_step] ^ b[i * b_step]);
      if (differs != 0) return false;
    }
    return true;
  }
  for (uint64_t i = 0; i < pieces; ++i)
    if (std::memcmp(a + i * a_step, b + i * b_step, inner) != 0) return false;
  return true;
}

// Of a leaf with fewer frames than the largest stack, the frame that slot `number` has.
uint64_t frame_of(const SharedLeaf& leaf, uint32_t number) {
  return number > leaf.first ? number - leaf.first : 0;
}
}  // namespace

void Observations::take(const SharedForm& form, const SlotSource& source, uint8_t* slot) const {
  for (size_t i = 0; i < form.leaves().size(); ++i) {
    const SharedLeaf& leaf = form.leaves()[i];
    if (form.stack() == 1) {
      store_bytes(slot + leaf.at, at(source.row, i, source.next), leaf.bytes);
      continue;
    }
    SharedForm::take_frame(leaf, at(source.row, i, source.next), frame_of(leaf, source.number),
                           slot + leaf.at);
  }
}

size_t Observations::adjacent(const SharedForm& form, const SlotSource* sources, size_t n) const {
  const SlotSource& first = sources[0];
  if (form.leaves().size() != 1 || form.stack() != 1) return 1;
  if (places_[first.next ? 1 : 0].stride != form.slot_bytes()) return 1;
  size_t count = 1;
  while (count < n && sources[count].next == first.next && sources[count].row == first.row + count)
    ++count;
  return count;
}

inline bool Observations::equal(const SharedForm& form, uint64_t row, uint64_t other,
                                bool next) const {
  for (size_t i = 0; i < form.leaves().size(); ++i) {
    const uint8_t *a = at(row, i, false), *b = at(other, i, next);
    // What differs mostly does so at once, and a call takes as long as all the rest.
    if (a[0] != b[0] || !same_bytes(a, b, form.leaves()[i].bytes)) return false;
  }
  return true;
}

uint64_t Observations::leads_on(const SharedForm& form, uint64_t row, uint64_t n) const {
  constexpr uint64_t kPart = 1024;  // bytes: they are read once more where one differs
  for (size_t i = 0; i < form.leaves().size(); ++i) {
    const uint64_t bytes = form.leaves()[i].bytes, most = std::max<uint64_t>(kPart / bytes, 1);
    const bool dense = places_[2 * i].stride == bytes && places_[2 * i + 1].stride == bytes;
    for (uint64_t k = 0, part; k < n; k += part) {
      part = dense && k > 0 ? std::min(most, n - k) : 1;
      const uint8_t *a = at(row + k, i, false), *b = at(row + k - 1, i, true);
      if (a[0] == b[0] && same_bytes(a, b, part * bytes)) continue;
      n = k;  // of this part, those before the one that differs
      for (; --part > 0 && same_bytes(a, b, bytes); a += bytes, b += bytes) ++n;
      break;
    }
  }
  return n;
}

bool Observations::equal_slots(const SharedForm& form, uint64_t row, uint64_t n,
                               const uint8_t* slots) const {
  const uint64_t step = form.slot_bytes();
  for (size_t i = 0; i < form.leaves().size(); ++i) {
    const SharedLeaf& leaf = form.leaves()[i];
    const uint64_t stride = places_[2 * i].stride;
    const uint8_t *a = at(row, i, false), *b = slots + leaf.at;
    if (stride == step && leaf.bytes == step) {
      if (!same_bytes(a, b, n * step)) return false;
      continue;
    }
    for (uint64_t k = 0; k < n; ++k)
      if (!same_bytes(a + k * stride, b + k * step, leaf.bytes)) return false;
  }
  return true;
}

void SlotPlan::start(const SharedForm* form, const SlotMemory* memory, uint64_t seq, uint64_t head,
                     uint64_t floor, uint64_t reach) {
  form_ = form;
  memory_ = memory;
  reader_ = nullptr;
  seq_ = seq, head_ = head, floor_ = floor, reach_ = reach;
  rows_ = 0;
  low_ = kNone;
  references_.clear();
  sources_.clear();
  marks_.clear();
}

const uint8_t* SlotPlan::there(uint64_t slot) const {
  return reader_ != nullptr ? reader_->slot(slot) : memory_->slot(slot);
}

// Whether a slot has what is wanted: of leaves that have fewer frames, as far as they have.
bool SlotPlan::same(const Observations& from, const SlotSource& wanted, uint64_t slot) const {
  const SlotSource* other = slot >= head_ ? &sources_[slot - head_] : nullptr;
  const uint8_t* known = other == nullptr ? there(slot) : nullptr;
  if (other == nullptr && known == nullptr) return false;
  for (size_t i = 0; i < form_->leaves().size(); ++i) {
    const SharedLeaf& leaf = form_->leaves()[i];
    if (wanted.number < leaf.first) continue;
    const uint64_t inner = leaf.inner, step = leaf.frames * inner;
    const uint8_t* a = from.at(wanted.row, i, wanted.next) + (wanted.number - leaf.first) * inner;
    const uint8_t* b = other == nullptr ? known + leaf.at
                                        : from.at(other->row, i, other->next) +
                                              frame_of(leaf, other->number) * inner;
    if (!same_pieces(a, step, b, other != nullptr ? step : inner, inner, leaf.pieces)) return false;
  }
  return true;
}

// The same of a row's observation, without stacks.
inline bool SlotPlan::same_whole(const Observations& from, uint64_t row, uint64_t slot) const {
  if (slot >= head_) return same(from, SlotSource{row, false, 0}, slot);
  const uint8_t* known = reader_ == nullptr ? memory_->slot(slot) : there(slot);
  if (known == nullptr) return false;
  for (size_t i = 0; i < form_->leaves().size(); ++i) {
    const SharedLeaf& leaf = form_->leaves()[i];
    if (!same_bytes(from.at(row, i, false), known + leaf.at, leaf.bytes)) return false;
  }
  return true;
}

inline bool SlotPlan::in_reach(uint64_t slot) const {
  return slot != kNone && (slot >= head_ || slot >= floor_) &&
         head_ + sources_.size() - slot <= reach_;
}

uint64_t SlotPlan::find(const Observations& from, const SlotSource& wanted,
                        const uint64_t* candidates, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t slot = candidates[i];
    if (!in_reach(slot) || !same(from, wanted, slot)) continue;
    if (slot < head_) low_ = std::min(low_, slot);
    return slot;
  }
  sources_.push_back(wanted);
  return head_ + sources_.size() - 1;
}

BlockMark& SlotPlan::mark_of(uint64_t seq) {
  if (marks_.empty() || seq >> kBlockShift != marks_.back().block)
    marks_.push_back(BlockMark{seq >> kBlockShift, head_ + sources_.size(), kNone});
  return marks_.back();
}

void SlotPlan::led_to(uint64_t row, uint64_t* out) const {
  const uint64_t* now = references(row);
  const uint64_t k = form_->stack();
  if (form_->paired()) {
    std::copy_n(now + k, k, out);
  } else {  // frames move up by one
    std::copy_n(now + 1, k - 1, out);
    out[k - 1] = kNone;
  }
}

// Whether a row's frames are those that the row before said, and move up by one in what it led to:
// what nearly all stacks do. Each slot is read once.
bool SlotPlan::moved_up(const Observations& from, uint64_t row, const uint64_t* before) const {
  const auto& leaves = form_->leaves();
  if (before == nullptr || reader_ != nullptr || !form_->paired()) return false;
  for (uint64_t j = 0; j < form_->stack(); ++j)
    if (!in_reach(before[j]) || before[j] >= head_) return false;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const SharedLeaf& leaf = leaves[i];
    if (leaf.pieces != 1 || leaf.first != 0) return false;
    const uint8_t *now = from.at(row, i, false), *next = from.at(row, i, true);
    if (!same_bytes(now, memory_->slot(before[0]) + leaf.at, leaf.inner)) return false;
    for (uint64_t j = 1; j < form_->stack(); ++j, next += leaf.inner) {
      now += leaf.inner;
      if (!both_same_bytes(now, next, memory_->slot(before[j]) + leaf.at, leaf.inner)) return false;
    }
  }
  return true;
}

// The references of one row; the least of them.
uint64_t SlotPlan::plan_row(const Observations& from, uint64_t row, const uint64_t* before,
                            uint64_t* now) {
  const auto k = static_cast<uint32_t>(form_->stack());
  uint64_t low = kNone;
  if (moved_up(from, row, before)) {
    std::copy_n(before, k, now);
    std::copy_n(before + 1, k - 1, now + k);
    low = *std::min_element(before, before + k);
    low_ = std::min(low_, low);
    const uint64_t candidates[] = {now[k - 1]};
    now[2 * k - 1] = find(from, SlotSource{row, true, k - 1}, candidates, 1);
    return std::min(low, now[2 * k - 1]);
  }
  for (uint32_t j = 0; j < k; ++j) {
    // As the row before said; or, where a stack begins, the same frame once more.
    const uint64_t candidates[] = {before != nullptr ? before[j] : kNone,
                                   j > 0 ? now[j - 1] : kNone};
    now[j] = find(from, SlotSource{row, false, j}, candidates, 2);
    low = std::min(low, now[j]);
  }
  if (!form_->paired()) return low;
  uint64_t* next = now + k;
  for (uint32_t j = 0; j < k; ++j) {
    // Frames move up by one; or nothing changed; or one came twice.
    const uint64_t candidates[] = {j + 1 < k ? now[j + 1] : kNone, now[j],
                                   j > 0 ? next[j - 1] : kNone};
    next[j] = find(from, SlotSource{row, true, j}, candidates, 3);
    low = std::min(low, next[j]);
  }
  return low;
}

// Without stacks: a slot for each observation, and one for what it led to. That is what `plan_row`
// would find; but the slot that a row's step led to has the bytes of its next observation,
// whichever slot it is, so that those are compared where they come in.
void SlotPlan::add_pairs(const Observations& from, uint64_t row, uint64_t n, uint64_t before) {
  bool on = false;  // whether the step before led to rows up to `known`
  uint64_t known = 1;
  for (uint64_t i = 0; i < n; ++i, ++row, ++rows_) {
    BlockMark& mark = mark_of(seq_ + rows_);
    if (i == known) {
      const uint64_t many = from.leads_on(*form_, row, n - i);
      on = many > 0;
      known += on ? many : 1;
    }
    uint64_t now = before;
    if (in_reach(before) && (i == 0 ? same_whole(from, row, before) : on)) {
      if (before < head_) low_ = std::min(low_, before);
    } else {
      now = head_ + sources_.size();
      sources_.emplace_back(row, false, 0u);
    }
    before = now;
    if (!from.equal(*form_, row, row, true)) {
      before = head_ + sources_.size();
      sources_.emplace_back(row, true, 0u);
    }
    references_.push_back(now);
    references_.push_back(before);
    mark.low = std::min({mark.low, now, before});
  }
}

// What `add_pairs` would find, if all of them are as expected: then they are compared at once.
void SlotPlan::add_steps(const Observations& from, uint64_t row, uint64_t n, uint64_t before) {
  // Each row has at most one new slot, so that the first is the farthest behind.
  const bool there = reader_ == nullptr && in_reach(before) && before + n <= head_ &&
                     memory_->chunk_of(before) == memory_->chunk_of(before + n - 1);
  if (!there || !from.equal_slots(*form_, row, n, memory_->slot(before))) {
    for (uint64_t i = 0; i < n; ++i) add_pairs(from, row + i, 1, before + i);
    return;
  }
  low_ = std::min(low_, before);
  for (uint64_t i = 0; i < n; ++i, ++row, ++before, ++rows_) {
    BlockMark& mark = mark_of(seq_ + rows_);
    uint64_t next = before;
    if (!from.equal(*form_, row, row, true)) {
      next = head_ + sources_.size();
      sources_.emplace_back(row, true, 0u);
    }
    references_.push_back(before);
    references_.push_back(next);
    mark.low = std::min({mark.low, before, next});
  }
}

void SlotPlan::add_run(const Observations& from, uint64_t row, uint64_t n, const uint64_t* before) {
  if (form_->paired() && form_->stack() == 1)
    return add_pairs(from, row, n, before != nullptr ? *before : kNone);
  const uint64_t count = form_->references();
  expected_.resize(form_->stack());
  references_.resize(references_.size() + n * count);
  sources_.reserve(sources_.size() + n + count);
  for (uint64_t i = 0; i < n; ++i, ++row) {
    BlockMark& mark = mark_of(seq_ + rows_);
    uint64_t* now = references_.data() + rows_ * count;
    if (i > 0 && form_->paired()) {
      before = now - form_->stack();
    } else if (i > 0) {
      led_to(rows_ - 1, expected_.data());
      before = expected_.data();
    }
    mark.low = std::min(mark.low, plan_row(from, row, before, now));
    ++rows_;
  }
}

}  // namespace contig
