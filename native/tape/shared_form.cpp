#include "native/tape/shared_form.h"

#include <algorithm>
#include <stdexcept>

#include "native/kernels/copy.h"

namespace contig {

namespace {
constexpr uint64_t kReference = sizeof(uint32_t);

// What its place is a multiple of, so that leaves of different sizes leave no gaps.
uint64_t alignment(uint64_t bytes) {
  uint64_t unit = 8;
  while (bytes % unit != 0) unit /= 2;
  return unit;
}
}  // namespace

SharedForm::SharedForm(std::vector<SharedLeaf> leaves, std::vector<KeptLeaf> kept,
                       uint64_t record_size, bool encoded)
    : leaves_(std::move(leaves)), kept_(std::move(kept)), encoded_(encoded) {
  struct Part {
    uint64_t offset, bytes;
  };
  std::vector<Part> parts;
  for (SharedLeaf& leaf : leaves_) {
    if (leaf.bytes == 0 || leaf.frames == 0 || leaf.bytes % leaf.frames != 0 || leaf.inner == 0 ||
        leaf.bytes / leaf.frames % leaf.inner != 0 || leaf.frames > 64)
      throw std::invalid_argument("shared leaves: a stack that its bytes do not fit");
    parts.push_back({leaf.offset, leaf.bytes});
    if (leaf.next_offset != SharedLeaf::kNoNext) parts.push_back({leaf.next_offset, leaf.bytes});
    if ((leaf.next_offset == SharedLeaf::kNoNext) == paired())
      throw std::invalid_argument("shared leaves: some are below next as well, and some are not");
    leaf.frame_bytes = leaf.bytes / leaf.frames;
    leaf.pieces = leaf.frame_bytes / leaf.inner;
    leaf.at = slot_bytes_;
    slot_bytes_ += leaf.frame_bytes;
    stack_ = std::max(stack_, leaf.frames);
  }
  slot_bytes_ = (slot_bytes_ + 3) / 4 * 4;
  for (SharedLeaf& leaf : leaves_) leaf.first = stack_ - leaf.frames;

  // The largest alignments first, behind the references.
  row_bytes_ = leaves_.empty() ? 0 : references() * kReference;
  for (const uint64_t unit : {8, 4, 2, 1})
    for (KeptLeaf& leaf : kept_) {
      if (alignment(leaf.bytes) != unit) continue;
      row_bytes_ = (row_bytes_ + unit - 1) / unit * unit;
      leaf.stored = row_bytes_;
      row_bytes_ += leaf.bytes;
      parts.push_back({leaf.offset, leaf.bytes});
    }
  row_bytes_ = (row_bytes_ + 3) / 4 * 4;

  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (const Part& part : parts) {
    if (part.bytes == 0 && part.offset <= record_size) continue;  // it may lie where another does
    if (part.offset < end || part.offset > record_size || part.bytes > record_size - part.offset)
      throw std::invalid_argument("shared leaves: leaves that overlap or end past the record");
    end = part.offset + part.bytes;
  }
  record_end_ = end;
}

bool SharedForm::same_rows(const SharedForm& other) const {
  const auto leaf = [](const SharedLeaf& a, const SharedLeaf& b) {
    return a.offset == b.offset && a.next_offset == b.next_offset && a.bytes == b.bytes &&
           a.frames == b.frames && a.inner == b.inner;
  };
  const auto kept = [](const KeptLeaf& a, const KeptLeaf& b) {
    return a.offset == b.offset && a.bytes == b.bytes;
  };
  return std::equal(leaves_.begin(), leaves_.end(), other.leaves_.begin(), other.leaves_.end(),
                    leaf) &&
         std::equal(kept_.begin(), kept_.end(), other.kept_.begin(), other.kept_.end(), kept);
}

uint64_t SharedForm::stored(uint64_t offset) const {
  if (leaves_.empty()) return offset;
  for (const KeptLeaf& leaf : kept_)
    if (offset >= leaf.offset && offset - leaf.offset < leaf.bytes)
      return leaf.stored + (offset - leaf.offset);
  for (const KeptLeaf& leaf : kept_)  // one without bytes
    if (offset == leaf.offset) return leaf.stored;
  throw std::invalid_argument("a leaf that rows do not have at byte " + std::to_string(offset));
}

bool SharedForm::find(uint64_t offset, size_t* leaf, bool* next) const {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (leaves_[i].offset != offset && leaves_[i].next_offset != offset) continue;
    *leaf = i;
    *next = leaves_[i].next_offset == offset;
    return true;
  }
  return false;
}

void SharedForm::take_frame(const SharedLeaf& leaf, const uint8_t* from, uint64_t number,
                            uint8_t* to) {
  const uint64_t pieces = leaf.pieces, step = leaf.frames * leaf.inner;
  from += number * leaf.inner;
  if (leaf.inner == 1) {
    for (uint64_t i = 0; i < pieces; ++i) copy_fixed<1>(to + i, from + i * step);
    return;
  }
  for (uint64_t i = 0; i < pieces; ++i)
    copy_bytes(to + i * leaf.inner, from + i * step, leaf.inner);
}

void SharedForm::put_frame(const SharedLeaf& leaf, const uint8_t* frame, uint64_t number,
                           uint8_t* to) {
  const uint64_t pieces = leaf.pieces, step = leaf.frames * leaf.inner;
  to += number * leaf.inner;
  if (leaf.inner == 1) {
    for (uint64_t i = 0; i < pieces; ++i) copy_fixed<1>(to + i * step, frame + i);
    return;
  }
  for (uint64_t i = 0; i < pieces; ++i)
    copy_bytes(to + i * step, frame + i * leaf.inner, leaf.inner);
}

}  // namespace contig
