// Rows with observations that are stored once, into files and out of them.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "native/kernels/copy.h"
#include "native/kernels/crc32c.h"
#include "native/tape/stored_slots.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
// Leaves that stay in rows, wherever they come from.
class KeptLeaves {
 public:
  KeptLeaves(const SharedForm& form, const Rows& rows, uint64_t record_size) {
    if (rows.records != nullptr) {
      for (const KeptLeaf& leaf : form.kept())
        pieces_.push_back({rows.records + leaf.offset, record_size, leaf.bytes, leaf.stored});
      return;
    }
    size_t leaf;
    bool next;
    for (size_t c = 0; c < rows.n_columns; ++c) {
      const Column& col = rows.columns[c];
      if (!form.find(col.offset, &leaf, &next))
        pieces_.push_back({col.data, col.stride, col.bytes, form.stored(col.offset)});
    }
  }
  void put(uint64_t row, uint8_t* to) const {
    for (const Piece& p : pieces_) std::memcpy(to + p.stored, p.data + row * p.stride, p.bytes);
  }

 private:
  struct Piece {
    const uint8_t* data;
    uint64_t stride, bytes, stored;
  };
  std::vector<Piece> pieces_;
};

// New slots of a plan, out of rows as they came.
void take_observations(const SharedForm& form, const Observations& from, const SlotPlan& plan,
                       uint8_t* bytes) {
  for (const SlotSource& source : plan.sources()) {
    from.take(form, source, bytes);
    bytes += form.slot_bytes();
  }
}

void take_slots(const SharedForm& form, const CompactRows& from, const SlotPlan& plan,
                uint8_t* bytes) {
  for (const SlotSource& source : plan.sources()) {
    for (const SharedLeaf& leaf : form.leaves())
      std::memcpy(bytes + leaf.at, from.slots + source.row * form.slot_bytes() + leaf.at,
                  leaf.frame_bytes);
    bytes += form.slot_bytes();
  }
}

// Both checksums, behind a record; `at` says where the bytes of a slot are.
template <class At>
void seal(uint8_t* row, uint64_t size, const StoredSlots& found, const RowSums& sums, uint64_t seq,
          const At& at) {
  uint32_t crc = sums.of(seq, row, size);
  std::memcpy(row + size, &crc, sizeof crc);
  if (found.own.bytes > 0) crc = crc32c(crc, at(found.own_first), found.own.bytes);
  found.others([&](uint64_t slot) { crc = crc32c(crc, at(slot), found.slot_bytes); });
  std::memcpy(row + size + 4, &crc, sizeof crc);
}

// Calls `each` with those rows of a part that are whole, and what they refer to.
template <class Each>
void each_whole(const StoredShape& shape, const StoredPart& part, const RowSums& sums,
                std::vector<int64_t>* damaged, const Each& each) {
  const uint64_t size = stored_bytes(*shape.form), slot_bytes = shape.form->slot_bytes();
  std::vector<uint8_t> again(size + 8);
  const auto at = [&](uint64_t slot) { return part.bytes + (slot * slot_bytes - part.base); };
  for (size_t i = 0; i < part.n; ++i) {
    const uint8_t* row = part.rows + i * shape.stride;
    StoredSlots found;
    bool whole = sums.whole(part.first + i, row, size) && found.find(*shape.form, row) &&
                 found.inside(part.base, part.count);
    if (whole) {
      std::memcpy(again.data(), row, size);
      seal(again.data(), size, found, sums, part.first + i, at);
      whole = std::memcmp(again.data() + size, row + size, 8) == 0;
    }
    if (!whole) {
      damaged->push_back(static_cast<int64_t>(i));
      continue;
    }
    each(i, row, found, at);
  }
}
}  // namespace

void seal_slots(const StoredShape& shape, const SlotPlan& plan, const Rows& rows, uint64_t skip,
                const RowSums& sums, uint64_t seq, const SlotReader& older, uint8_t* out,
                uint8_t* bytes) {
  const SharedForm& form = *shape.form;
  const uint64_t size = stored_bytes(form), slot_bytes = form.slot_bytes();
  if (plan.rows() != rows.n - skip) throw std::logic_error("slots: a plan of other rows");
  std::fill_n(bytes, plan.slots() * slot_bytes, uint8_t{0});  // what lies between leaves
  if (rows.compact != nullptr)
    take_slots(form, *rows.compact, plan, bytes);
  else
    take_observations(form, Observations(rows, form, shape.record_size), plan, bytes);
  const KeptLeaves kept(form, rows, shape.record_size);
  const auto at = [&](uint64_t slot) {
    const uint8_t* there =
        slot >= plan.head() ? bytes + (slot - plan.head()) * slot_bytes : older.slot(slot);
    if (there == nullptr) throw std::logic_error("slots: one that was there is not any more");
    return there;
  };
  uint64_t next = 0;  // of the new ones
  for (uint64_t i = 0; i < plan.rows(); ++i, out += shape.stride) {
    std::memset(out, 0, shape.stride);
    for (uint64_t j = 0; j < form.references(); ++j) {
      const auto low = static_cast<uint32_t>(plan.references(i)[j]);
      std::memcpy(out + 4 * j, &low, sizeof low);
    }
    kept.put(skip + i, out);
    const uint64_t own = next;  // a new one is first referred to by the row that it is new with
    for (uint64_t j = 0; j < form.references(); ++j)
      if (plan.references(i)[j] >= plan.head())
        next = std::max(next, plan.references(i)[j] - plan.head() + 1);
    const BlobPlace place{(plan.head() + own) * slot_bytes, (next - own) * slot_bytes};
    store_place(out + stored_place(form), place);
    StoredSlots found;
    if (!found.find(form, out)) throw std::logic_error("slots: a row that cannot be read back");
    seal(out, size, found, sums, seq + i, at);
  }
}

void expand_slots(const StoredShape& shape, const StoredPart& part, const RowSums& sums,
                  uint8_t* out, std::vector<int64_t>* damaged) {
  const SharedForm& form = *shape.form;
  if (part.n > 0) std::memset(out, 0, part.n * shape.record_size);
  each_whole(shape, part, sums, damaged,
             [&](size_t i, const uint8_t* row, const StoredSlots& found, const auto& at) {
               uint8_t* record = out + i * shape.record_size;
               for (const KeptLeaf& leaf : form.kept())
                 std::memcpy(record + leaf.offset, row + leaf.stored, leaf.bytes);
               for (const SharedLeaf& leaf : form.leaves())
                 for (uint64_t f = 0; f < leaf.frames; ++f) {
                   const uint64_t* numbers = found.numbers + leaf.first + f;
                   SharedForm::put_frame(leaf, at(numbers[0]) + leaf.at, f, record + leaf.offset);
                   if (form.paired())
                     SharedForm::put_frame(leaf, at(numbers[form.stack()]) + leaf.at, f,
                                           record + leaf.next_offset);
                 }
             });
}

void reseal_slots(const StoredShape& shape, const StoredPart& part, const RowSums& sums,
                  const RowSums& now, uint8_t* out, std::vector<int64_t>* damaged) {
  const uint64_t size = stored_bytes(*shape.form);
  if (part.n > 0) std::memset(out, 0, part.n * shape.stride);
  each_whole(shape, part, sums, damaged,
             [&](size_t i, const uint8_t* row, const StoredSlots& found, const auto& at) {
               std::memcpy(out + i * shape.stride, row, size);
               seal(out + i * shape.stride, size, found, now, part.first + i, at);
             });
}

SlotEncoder::SlotEncoder(const SharedForm& form, uint64_t record_size, uint64_t stride,
                         uint64_t reach)
    : form_(form), record_size_(record_size), stride_(stride), reach_(reach) {
  if (!form || form.encoded() || reach == 0 || reach > UINT32_MAX / 2 ||
      stride < stored_bytes(form) + 8 || form.references() > StoredSlots::kMost ||
      record_end(form) > record_size || record_size == 0)
    throw std::invalid_argument("SlotEncoder: rows that cannot be stored like that");
  window_.resize(reach * form.slot_bytes());
}

const uint8_t* SlotEncoder::slot(uint64_t number) const {
  if (number >= head_ || head_ - number > reach_) return nullptr;
  return window_.data() + number % reach_ * form_.slot_bytes();
}

void SlotEncoder::encode(const Rows& rows, const std::vector<Part>& parts, const RowSums& sums,
                         uint64_t seq, uint8_t* out, std::vector<uint8_t>* bytes) {
  plan_.start(&form_, nullptr, seq, head_, 0, reach_);
  plan_.read_through(this);
  const Observations from(rows, form_, record_size_);
  for (const Part& part : parts) {
    if (part.rows == 0 || part.rows > rows.n - plan_.rows())
      throw std::invalid_argument("SlotEncoder: parts of other rows");
    std::vector<uint64_t>& trail = trails_[part.trajectory];
    const std::vector<uint64_t> before = trail;
    plan_.add_run(from, plan_.rows(), part.rows, before.empty() ? nullptr : before.data());
    trail.resize(form_.stack());
    plan_.led_to(plan_.rows() - 1, trail.data());
  }
  if (plan_.rows() != rows.n) throw std::invalid_argument("SlotEncoder: rows of no trajectory");
  bytes->resize(plan_.slots() * form_.slot_bytes());
  seal_slots({&form_, record_size_, stride_}, plan_, rows, 0, sums, seq, *this, out, bytes->data());
  keep(*bytes);
}

// The newest slots; and, of what trajectories led to, what can still be referred to.
void SlotEncoder::keep(const std::vector<uint8_t>& bytes) {
  const uint64_t n = plan_.slots(), size = form_.slot_bytes();
  for (uint64_t i = n > reach_ ? n - reach_ : 0; i < n; ++i)
    std::memcpy(window_.data() + (head_ + i) % reach_ * size, bytes.data() + i * size, size);
  head_ += n;
  if (trails_.size() <= 2 * reach_ + 1024) return;
  for (auto at = trails_.begin(); at != trails_.end();) {
    const bool old = std::all_of(at->second.begin(), at->second.end(), [&](uint64_t slot) {
      return slot == kNone || head_ - slot > reach_;
    });
    at = old ? trails_.erase(at) : std::next(at);
  }
}

}  // namespace contig
