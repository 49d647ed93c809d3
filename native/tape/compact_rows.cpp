#include "native/tape/compact_rows.h"

#include <algorithm>
#include <cstring>

#include "native/kernels/copy.h"
#include "native/tape/slot_memory.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
uint32_t reference(const uint8_t* row, uint64_t number) {
  uint32_t slot;
  std::memcpy(&slot, row + number * sizeof slot, sizeof slot);
  return slot;
}
}  // namespace

bool check_references(const SharedForm& form, const uint8_t* rows, uint64_t n, uint64_t most,
                      uint64_t* n_slots) {
  uint64_t next = 0;
  for (uint64_t i = 0; i < n; ++i, rows += form.row_bytes())
    for (uint64_t j = 0; j < form.references(); ++j) {
      const uint64_t slot = reference(rows, j);
      if (slot > next || slot >= most) return false;
      next += slot == next ? 1 : 0;
    }
  *n_slots = next;
  return true;
}

bool references_below(const SharedForm& form, const uint8_t* rows, uint64_t n, uint64_t n_slots) {
  uint64_t most = 0;
  for (uint64_t i = 0; i < n; ++i, rows += form.row_bytes())
    for (uint64_t j = 0; j < form.references(); ++j)
      most = std::max<uint64_t>(most, reference(rows, j));
  return n == 0 || most < n_slots;
}

uint64_t slots_of(const SharedForm& form, const uint8_t* rows, uint64_t n) {
  uint64_t slots = 0;
  for (uint64_t i = 0; i < n; ++i, rows += form.row_bytes())
    for (uint64_t j = 0; j < form.references(); ++j)
      slots = std::max<uint64_t>(slots, uint64_t{reference(rows, j)} + 1);
  return slots;
}

void kept_columns(const SharedForm& form, const uint8_t* rows, std::vector<Column>* out) {
  out->clear();
  for (const KeptLeaf& leaf : form.kept())
    out->push_back(Column{rows + leaf.stored, leaf.offset, leaf.bytes, form.row_bytes()});
}

void gather_shared(const SharedForm& form, const CompactRows& from, uint64_t n, size_t leaf,
                   bool next, uint8_t* out, uint64_t stride) {
  const SharedLeaf& what = form.leaves()[leaf];
  const uint64_t first = (next ? form.stack() : 0) + what.first;
  for (uint64_t i = 0; i < n; ++i, out += stride)
    for (uint64_t frame = 0; frame < what.frames; ++frame) {
      const uint64_t slot = reference(from.rows + i * form.row_bytes(), first + frame);
      SharedForm::put_frame(what, from.slots + slot * form.slot_bytes() + what.at, frame, out);
    }
}

void expand_rows(const SharedForm& form, const CompactRows& from, uint64_t n, uint64_t record_size,
                 uint8_t* out) {
  for (size_t i = 0; i < form.leaves().size(); ++i) {
    const SharedLeaf& leaf = form.leaves()[i];
    gather_shared(form, from, n, i, false, out + leaf.offset, record_size);
    if (form.paired()) gather_shared(form, from, n, i, true, out + leaf.next_offset, record_size);
  }
  for (const KeptLeaf& leaf : form.kept())
    for (uint64_t i = 0; i < n; ++i)
      copy_bytes(out + i * record_size + leaf.offset,
                 from.rows + i * form.row_bytes() + leaf.stored, leaf.bytes);
}

// -- on a tape ------------------------------------------------------------------------------------

void SlotPlan::start_compact(uint64_t n_slots) { local_.assign(n_slots, LocalSlot{}); }

// Whether a slot that came has what another one has; of leaves with fewer frames than the largest
// stack, as far as an observation's slot `number` has them.
bool SlotPlan::same_local(const CompactRows& from, uint64_t local, uint64_t slot,
                          uint32_t number) const {
  const uint64_t size = form_->slot_bytes();
  const uint8_t* a = from.slots + local * size;
  const uint8_t* b = slot >= head_ ? from.slots + sources_[slot - head_].row * size : there(slot);
  if (b == nullptr) return false;
  for (const SharedLeaf& leaf : form_->leaves())
    if (number >= leaf.first &&
        std::memcmp(a + leaf.at, b + leaf.at, leaf.bytes / leaf.frames) != 0)
      return false;
  return true;
}

uint64_t SlotPlan::find_local(const CompactRows& from, uint64_t local, uint32_t number,
                              uint64_t candidate) {
  LocalSlot& known = local_[local];
  const uint64_t now = head_ + sources_.size();
  // One that is too far behind by now is stored once more.
  if (known.slot != kNone && now - known.slot <= reach_ &&
      (number <= known.upto || same_local(from, local, known.slot, number))) {
    known.upto = std::max(known.upto, number);
    return known.slot;
  }
  if (candidate != kNone && (candidate >= head_ || candidate >= floor_) &&
      now - candidate <= reach_ && same_local(from, local, candidate, number)) {
    if (candidate < head_) low_ = std::min(low_, candidate);
    known = LocalSlot{candidate, number};
    return candidate;
  }
  sources_.emplace_back(local, false, 0u);
  known = LocalSlot{now, static_cast<uint32_t>(form_->stack())};
  return now;
}

void SlotPlan::add_compact_run(const CompactRows& from, uint64_t row, uint64_t n,
                               const uint64_t* before) {
  const uint64_t k = form_->stack(), count = form_->references();
  for (uint64_t i = 0; i < n; ++i, ++row, before = nullptr) {
    BlockMark& mark = mark_of(seq_ + rows_);
    const size_t at = references_.size();
    references_.resize(at + count);
    const uint8_t* said = from.rows + row * form_->row_bytes();
    for (uint64_t j = 0; j < count; ++j) {
      const uint64_t slot = find_local(from, reference(said, j), static_cast<uint32_t>(j % k),
                                       before != nullptr && j < k ? before[j] : kNone);
      references_[at + j] = slot;
      mark.low = std::min(mark.low, slot);
    }
    ++rows_;
  }
}

void Tape::copy_compact_in(const CompactRows& from, uint64_t skip, uint64_t seq) {
  uint64_t number = plan_.head();
  if (form_.encoded())
    put_encoded();
  else
    for (const SlotSource& source : plan_.sources())
      store_bytes(slots_.slot(number++), from.slots + source.row * form_.slot_bytes(),
                  form_.slot_bytes());
  const uint64_t behind = form_.references() * sizeof(uint32_t);
  each_row(seq, plan_.rows(), [&](uint64_t i, uint8_t* to) {
    put_references(i, to);
    store_bytes(to + behind, from.rows + (skip + i) * form_.row_bytes() + behind,
                form_.row_bytes() - behind);
  });
}

void Tape::expand_in(const CompactRows& from, const SharedForm& form, uint64_t n, uint64_t seq) {
  for (uint64_t done = 0; done < n;) {
    auto* to = const_cast<uint8_t*>(row(seq + done));
    const uint64_t together = std::min(n - done, mask_ + 1 - ((seq + done) & mask_));
    std::memset(to, 0, together * stride_);  // what lies between leaves
    const CompactRows rest{from.rows + done * form.row_bytes(), from.slots, from.n_slots};
    expand_rows(form, rest, together, stride_, to);
    done += together;
  }
}

}  // namespace contig
