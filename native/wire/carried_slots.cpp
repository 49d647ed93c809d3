#include "native/wire/carried_slots.h"

#include <cstring>

#include "native/tape/compact_rows.h"

namespace contig {

Refusal CarriedSlots::check(const Frame& f, const uint8_t* body, const ItemShape& shape,
                            uint64_t most, uint64_t* length) {
  if ((f.flags & kCompactRows) == 0 || !shape.form) return Refusal::shape;
  const uint64_t row_bytes = shape.form.row_bytes(), size = shape.form.slot_bytes();
  if (!window_.keeps(size)) return Refusal::shape;
  const uint64_t there = window_.next() - window_.first(size);
  ItemParts parts;
  uint64_t left;
  const Refusal refused = check_front(f, body, true, shape, &parts, &left);
  if (refused != Refusal::none) return refused;
  uint32_t n;
  if (left < sizeof n) return Refusal::shape;
  std::memcpy(&n, parts.records, sizeof n);
  left -= sizeof n;
  if (n == 0 || n > there || left < n * sizeof(CarriedSlot)) return Refusal::shape;
  left_out_.resize(n);
  std::memcpy(left_out_.data(), parts.records + sizeof n, n * sizeof(CarriedSlot));
  left -= n * sizeof(CarriedSlot);

  if (f.rows > left / row_bytes) return Refusal::shape;
  left -= f.rows * row_bytes;
  const uint8_t* rows = parts.records + sizeof n + n * sizeof(CarriedSlot);
  if (!check_references(shape.form, rows, f.rows, n + left / size, &n_slots_) || n > n_slots_)
    return Refusal::shape;
  // Each once: so a frame becomes larger by what is kept at most.
  used_.assign(there, false);
  uint64_t next = 0;
  for (const CarriedSlot& slot : left_out_) {
    if (slot.own < next || slot.own >= n_slots_ || slot.since >= there || used_[slot.since])
      return Refusal::shape;
    next = uint64_t{slot.own} + 1;
    used_[slot.since] = true;
  }
  table_at_ = static_cast<uint64_t>(parts.records - body);
  n_bytes_ = left - (n_slots_ - n) * size;
  *length = f.length - sizeof n - n * sizeof(CarriedSlot) + n * size;
  return *length > most ? Refusal::size : Refusal::none;
}

void CarriedSlots::put_in(uint8_t* body, const ItemShape& shape, Frame* f) {
  const uint64_t size = shape.form.slot_bytes(), rows = f->rows * shape.form.row_bytes();
  const uint64_t n = left_out_.size(), table = sizeof(uint32_t) + n * sizeof(CarriedSlot);
  const uint64_t sent = (n_slots_ - n) * size;
  uint8_t* at = body + table_at_;
  const uint64_t length = f->length - table + n * size;
  // Rows move up; what was sent of slots goes to the end, out of the way of what is put in.
  uint8_t* const moved = body + length - n_bytes_ - sent;
  std::memmove(at, at + table, rows);
  std::memmove(moved, at + table + rows, sent + n_bytes_);
  at += rows;
  const uint8_t* next = moved;
  auto out = left_out_.begin();
  for (uint64_t number = 0; number < n_slots_ && out != left_out_.end(); ++number, at += size) {
    if (out->own == number) {
      std::memcpy(at, window_.at(window_.next() - 1 - out->since, size), size);
      ++out;
    } else {
      std::memmove(at, next, size);
      next += size;
    }
  }  // those behind the last one are in their place
  f->length = length;
  f->flags &= static_cast<uint8_t>(~kCarriedSlots);
}

void CarriedSlots::keep(const uint8_t* slots, uint64_t n, uint64_t slot_bytes) {
  auto out = left_out_.begin();
  for (uint64_t number = 0; number < n; ++number, slots += slot_bytes) {
    if (out != left_out_.end() && out->own == number)
      ++out;
    else
      window_.add(slots, slot_bytes);
  }
}

}  // namespace contig
