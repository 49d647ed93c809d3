#include "native/tape/compactor.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr uint64_t kMostSlots = UINT32_MAX;
}  // namespace

Compactor::Compactor(const SharedForm& form, uint64_t record_size)
    : form_(form), record_size_(record_size) {
  if (!form || form.record_end() > record_size)
    throw std::invalid_argument("Compactor: records without the leaves that are to be stored once");
}

const uint8_t* Compactor::slot(uint64_t number) const {
  return slots_.get() + number * form_.slot_bytes();
}

// By `realloc`: large memory is moved by the system, not copied, so that there is no second one.
void Compactor::grow(uint64_t n_slots) {
  if (n_slots <= room_) return;
  if (n_slots > kMostSlots)
    throw std::invalid_argument("Compactor: more observations than references can tell apart");
  const uint64_t room = std::max(n_slots, room_ + room_ / 2);
  void* more = std::realloc(slots_.get(), room * form_.slot_bytes());
  if (more == nullptr) throw std::bad_alloc();
  (void)slots_.release();
  slots_.reset(static_cast<uint8_t*>(more));
  room_ = room;
}

void Compactor::add(const uint8_t* records, uint64_t n, const std::vector<Part>& parts,
                    uint8_t* out) {
  Rows rows;
  rows.n = n;
  rows.records = records;
  const Observations from(rows, form_, record_size_);
  plan_.start(&form_, nullptr, 0, n_slots_, 0, kMostSlots);
  plan_.read_through(this);
  for (const Part& part : parts) {
    if (part.rows == 0 || part.rows > n - plan_.rows())
      throw std::invalid_argument("Compactor: parts of other rows");
    std::vector<uint64_t>& trail = trails_[part.trajectory];
    const std::vector<uint64_t> before = trail;
    plan_.add_run(from, plan_.rows(), part.rows, before.empty() ? nullptr : before.data());
    trail.resize(form_.stack());
    plan_.led_to(plan_.rows() - 1, trail.data());
  }
  if (plan_.rows() != n) throw std::invalid_argument("Compactor: rows of no trajectory");

  grow(n_slots_ + plan_.slots());
  uint8_t* slot = slots_.get() + n_slots_ * form_.slot_bytes();
  for (const SlotSource& source : plan_.sources()) {
    std::memset(slot, 0, form_.slot_bytes());  // what lies between leaves
    from.take(form_, source, slot);
    slot += form_.slot_bytes();
  }
  n_slots_ += plan_.slots();
  for (uint64_t i = 0; i < n; ++i, out += form_.row_bytes()) {
    std::memset(out, 0, form_.row_bytes());
    for (uint64_t j = 0; j < form_.references(); ++j) {
      const auto low = static_cast<uint32_t>(plan_.references(i)[j]);
      std::memcpy(out + 4 * j, &low, sizeof low);
    }
    for (const KeptLeaf& leaf : form_.kept())
      std::memcpy(out + leaf.stored, records + i * record_size_ + leaf.offset, leaf.bytes);
  }
}

}  // namespace contig
