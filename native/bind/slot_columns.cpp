#include "slot_columns.h"

namespace contig {

bool SlotColumns::take(const Tape& tape, size_t column, uint64_t offset, bool of_last) {
  Place place{column, 0, false, of_last};
  if (!tape.form().find(offset, &place.leaf, &place.next)) return false;
  places_.push_back(place);
  return true;
}

std::vector<SlotTarget> SlotColumns::targets(const Filling& f, bool of_last) const {
  uint8_t* data = f.block()->data;
  std::vector<SlotTarget> out;
  for (const Place& place : places_)
    if (place.of_last == of_last)
      out.push_back(SlotTarget{data + f.columns->starts[place.column], place.leaf, place.next});
  return out;
}

uint64_t SlotColumns::gather(const Tape& tape, const int64_t* rows, const Filling& f) const {
  if (tape.checked()) {
    gather_columns(tape, rows, f.n, f.to.first.data(), f.to.first.size());
    return copy_stored(tape, rows, f);
  }
  return gather_shared(tape, rows, f.n, f.to.first, targets(f, false));
}

uint64_t SlotColumns::fold(const Tape& tape, const Fold& fold, const int64_t* rows,
                           const Filling& f) const {
  if (tape.checked() || tape.form().encoded()) {
    fold_rows(tape, fold, rows, f.lengths, f.n, f.to);
    return copy(tape, rows, f);
  }
  FoldedSlots slots(tape, targets(f, false), targets(f, true));
  return fold_rows(tape, fold, rows, f.lengths, f.n, f.to, &slots);
}

uint64_t SlotColumns::copy(const Tape& tape, const int64_t* rows, const Filling& f) const {
  if (tape.checked()) return copy_stored(tape, rows, f);
  std::vector<int64_t> first(f.n), last(f.n);
  for (size_t i = 0; i < f.n; rows += f.lengths[i++]) {
    first[i] = rows[0];
    last[i] = rows[f.to.steps[i] - 1];
  }
  gather_shared(tape, first.data(), f.n, {}, targets(f, false));
  return gather_shared(tape, last.data(), f.n, {}, targets(f, true));
}

}  // namespace contig
