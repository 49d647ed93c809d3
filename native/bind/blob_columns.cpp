#include "blob_columns.h"

#include <atomic>
#include <stdexcept>

#include "native/sys/bus_guard.h"

namespace contig {

namespace {

struct Ends {
  std::vector<int64_t> first, last;
};

// Of each group of rows. Which of them is the last that counts is known only when they were looked
// at.
Ends ends_of_groups(const Tape& tape, const Fold& fold, const int64_t* rows, const Filling& f) {
  std::vector<int64_t> steps(f.n, 1);
  std::vector<uint8_t> rewards(f.n * fold.reward.folded_bytes());
  Folded to;
  to.steps = steps.data();
  to.rewards = rewards.data();
  // A file that is cut meanwhile is found out when it is copied.
  const auto look = [&] { fold_rows(tape, fold, rows, f.lengths, f.n, to); };
  if (tape.checked())
    unless_cut(look);
  else
    look();
  Ends out;
  const int64_t* group = rows;
  for (size_t i = 0; i < f.n; group += f.lengths[i++]) {
    out.first.push_back(group[0]);
    out.last.push_back(group[steps[i] - 1]);
  }
  return out;
}

}  // namespace

void BlobColumns::add(const Tape& tape, const Seqs& blobs, const std::vector<int64_t>& sizes) {
  if (blobs.shape(0) % 3 != 0) throw std::invalid_argument("Gatherer: three values per leaf");
  if (tape.blobs().data == nullptr)
    throw std::invalid_argument("Gatherer: the tape has no ring of bytes");
  for (size_t i = 0; i < blobs.shape(0); i += 3) {
    const int64_t* p = blobs.data() + i;
    Place place{static_cast<size_t>(p[0]),
                BlobLeaf{static_cast<uint64_t>(p[1]), static_cast<uint64_t>(p[2])}};
    if (place.column >= sizes.size() || sizes[place.column] != sizeof(int64_t) || p[2] <= 0)
      throw std::invalid_argument("Gatherer: a leaf of any size without a column of offsets");
    check_place(place.leaf.offset, kPlaceBytes, tape.record_size(), "Gatherer");
    place.leaf.offset = tape.form().stored(place.leaf.offset);
    places_.push_back(place);
  }
}

void BlobColumns::take_last(const Seqs& columns) {
  for (size_t i = 0; i < columns.shape(0); ++i)
    for (Place& place : places_)
      place.of_last |= place.column == static_cast<size_t>(columns.data()[i]);
}

size_t BlobColumns::measure(const Tape& tape, const Fold& fold, const int64_t* rows,
                            Filling* f) const {
  size_t at = f->columns->bytes;
  f->blobs = BlobGather();
  f->values.clear();
  f->bytes = 0;
  if (rows == nullptr) return at;
  Ends ends;
  if (f->lengths != nullptr) ends = ends_of_groups(tape, fold, rows, *f);
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    const auto& grouped = place.of_last ? ends.last : ends.first;
    f->blobs.measure(tape, place.leaf, f->lengths == nullptr ? rows : grouped.data(), f->n);
    f->values.push_back(at);
    at += round_column(f->blobs.bytes(i));
    f->bytes += f->blobs.bytes(i);
  }
  return at;
}

uint64_t BlobColumns::copy(const Tape& tape, const Filling& f) const {
  uint8_t* data = f.block()->data;
  for (size_t i = 0; i < places_.size(); ++i) {
    uint8_t* offsets = data + f.columns->starts[places_[i].column];
    f.blobs.copy(tape, i, reinterpret_cast<int64_t*>(offsets), data + f.values[i]);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return tape.header().tail.load(std::memory_order_relaxed);
}

}  // namespace contig
