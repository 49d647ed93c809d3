// Index entries as 16 words each: what checkpoints, storages on disk and Python have of them.
#include <algorithm>

#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
using W = EntryWords;

// A link as the entry has it: how far back. One that is too far, or leads nowhere, is none; what it
// would lead to is evicted.
uint64_t distance(uint64_t number, uint64_t link) {
  return link < number && number - link <= UINT32_MAX ? number - link : 0;
}

uint64_t linked(uint64_t number, uint64_t distance) {
  return distance != 0 && distance <= number ? number - distance : kNone;
}

// The rank of an entry's skip link. Entries of contig 0.1 have their depth instead: the rank is in
// the difference, if the other entry is among the words; else unknown, and later skips are shorter.
uint64_t rank_of(const uint64_t* w, uint64_t number, const uint64_t* all, uint64_t base) {
  if ((w[W::depth] & W::kRanked) != 0) return std::min<uint64_t>(w[W::depth] & ~W::kRanked, 63);
  const uint64_t jump = w[W::jump];
  if (jump < base || jump >= number) return 0;
  const uint64_t skipped = w[W::depth] - all[(jump - base) * W::count + W::depth];
  for (uint64_t rank = 1; rank < 64; ++rank)
    if (skipped == (uint64_t{1} << rank) - 1) return rank;
  return 0;
}

bool same_stamp(const uint64_t* a, const uint64_t* b) {
  return a[W::writer] == b[W::writer] && a[W::time_ns] == b[W::time_ns];
}
}  // namespace

Tape::Read Tape::read_entry_words(uint64_t number, uint64_t h, uint64_t out[W::count]) const {
  const Entry& e = entry(number);
  const uint64_t loaded = h;
  std::fill(out, out + W::count, 0);
  for (int tries = 0; tries < 1000; ++tries) {
    const uint64_t sf = e.steps_flags.load(acquire);
    const uint64_t before_stamp = e.before_stamp.load(acquire);
    const uint64_t links = e.links.load(acquire), ordinal_rank = e.ordinal_rank.load(acquire);
    const Stamp& s = stamp(number, before_stamp);
    out[W::number] = number;
    out[W::first] = e.first.load(acquire);
    out[W::steps_flags] = sf;
    out[W::prev] = linked(number, links >> 32);
    out[W::jump] = linked(number, links & UINT32_MAX);
    out[W::before] = before_stamp >> kStampBits;
    out[W::ordinal] = ordinal_of(ordinal_rank);
    out[W::version] = e.version.load(acquire);
    out[W::ret] = e.ret.load(acquire);
    out[W::traj_id] = e.traj_id.load(acquire);
    out[W::writer] = s.writer.load(acquire);
    out[W::time_ns] = s.time_ns.load(acquire);
    out[W::depth] = W::kRanked | (ordinal_rank & ((uint64_t{1} << kRankBits) - 1));
    const uint64_t again = e.steps_flags.load(acquire);
    std::atomic_thread_fence(acquire);
    if (number < h_->index_tail.load(relaxed)) return Read::gone;
    if (out[W::first] >= h) return Read::gone;  // not committed when h was loaded
    if (sf == again && out[W::first] + run_rows(sf) <= h)
      return h == loaded ? Read::ok : Read::grew;
    h = h_->head.load(acquire);  // it is growing: start again
  }
  return Read::unsettled;
}

uint64_t Tape::check_words(const uint64_t* words, uint64_t n, uint64_t base) const {
  uint64_t slot = 0, most = 1;
  for (uint64_t i = 0; i < n; ++i, words += W::count) {
    if (words[W::before] >= kMostBefore ||
        ordinal_of(words[W::ordinal] << kRankBits) != words[W::ordinal])
      throw std::invalid_argument(
          "index entry " + std::to_string(base + i) + ": " + std::to_string(words[W::before]) +
          " steps before it of trajectory " + std::to_string(words[W::ordinal]) +
          ", more than a tape counts; the index is damaged");
    if (((base + i) & chunk_mask_) == 0)
      slot = 0;
    else if (i > 0 && !same_stamp(words, words - W::count))
      ++slot;
    most = std::max(most, slot + 1);
  }
  return most;
}

void Tape::write_words(const uint64_t* words, uint64_t number, uint64_t slot, const uint64_t* all,
                       uint64_t base) {
  Stamp& s = stamp(number, slot);
  s.writer.store(words[W::writer], relaxed);
  s.time_ns.store(words[W::time_ns], relaxed);
  const uint64_t prev = distance(number, words[W::prev]), jump = distance(number, words[W::jump]);
  Entry& e = entry(number);
  e.first.store(words[W::first], relaxed);
  e.steps_flags.store(words[W::steps_flags], relaxed);
  e.ret.store(words[W::ret], relaxed);
  e.version.store(words[W::version], relaxed);
  e.traj_id.store(words[W::traj_id], relaxed);
  e.links.store(prev << 32 | jump, relaxed);
  e.ordinal_rank.store(words[W::ordinal] << kRankBits | rank_of(words, number, all, base), relaxed);
  e.before_stamp.store(words[W::before] << kStampBits | slot, relaxed);
}

void Tape::write_index(const uint64_t* words, uint64_t n, uint64_t base) {
  uint64_t slot = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t* w = words + i * W::count;
    if (((base + i) & chunk_mask_) == 0)
      slot = 0;
    else if (i > 0 && !same_stamp(w, w - W::count))
      ++slot;
    write_words(w, base + i, slot, words, base);
  }
}

}  // namespace contig
