#include "native/tape/gather_pairs.h"

#include <algorithm>

#include "native/kernels/copy.h"
#include "native/kernels/prefetch.h"

namespace contig {

namespace {
constexpr size_t kGroup = 32;    // rows that are copied at once, leaf by leaf
constexpr size_t kRun = 8;       // so many behind each other are a group of their own
constexpr size_t kAsked = 4096;  // bytes of a run that are asked for; the rest follows by itself

// Some rows, and where their slots are.
struct Group {
  size_t at = 0, n = 0;
  const uint8_t* run = nullptr;    // rows lie behind each other from here on; null: anywhere
  const uint8_t* slots = nullptr;  // of a run: so do its slots, each one's next one behind it
  const uint8_t* rows[kGroup];
  const uint8_t* now[kGroup];
  const uint8_t* next[kGroup];
};

CONTIG_INLINED void ask_for_run(const uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < std::min(bytes, kAsked); i += 64) ask_for(p + i);
}

class Pairs {
 public:
  Pairs(const Tape& tape, const int64_t* seqs, size_t n, const std::vector<Target>& targets,
        const std::vector<SlotTarget>& slots)
      : tape_(tape),
        memory_(tape.slots()),
        seqs_(seqs),
        n_(n),
        targets_(targets),
        slots_(slots),
        find_(tape),
        slot_bytes_(memory_.shape().slot_bytes),
        chunk_((uint64_t{1} << memory_.shape().chunk_shift) - 1) {
    for (const SlotTarget& t : slots) (t.next ? next_ : now_) = true;
  }

  // While a group is copied, the next one's slots are on their way from memory, and the rows of the
  // one after that.
  void gather() {
    Group groups[3];
    find_rows(&groups[0]);
    find_rows(&groups[1]);
    find_slots(&groups[0]);
    for (size_t i = 0; groups[i % 3].n > 0; ++i) {
      find_rows(&groups[(i + 2) % 3]);
      find_slots(&groups[(i + 1) % 3]);
      copy(groups[i % 3]);
    }
  }

 private:
  // The rows that come next, none at the end; all of them are asked for.
  CONTIG_INLINED void find_rows(Group* g) {
    const size_t left = n_ - at_;
    const int64_t* seqs = seqs_ + at_;
    g->at = at_;
    g->n = std::min(kGroup, left);
    g->run = nullptr;
    if (left >= kRun) {
      size_t run = 1;
      while (run < g->n && seqs[run] == seqs[0] + static_cast<int64_t>(run) &&
             !tape_.starts_extent(static_cast<uint64_t>(seqs[run])))
        ++run;
      if (run >= kRun) {
        g->n = run;
        g->run = find_(static_cast<uint64_t>(seqs[0]));
        ask_for_run(g->run, run * tape_.stride());
      }
    }
    at_ += g->n;
    if (g->run != nullptr) return;
    const size_t bytes = tape_.row_bytes();
    for (size_t i = 0; i < g->n; ++i) {
      g->rows[i] = find_(static_cast<uint64_t>(seqs[i]));
      ask_for_all(g->rows[i], bytes);
    }
  }

  CONTIG_INLINED void find_slots(Group* g) const {
    g->slots = nullptr;
    if (g->n == 0 || (!now_ && !next_)) return;
    if (g->run != nullptr) {
      g->slots = slots_of_run(*g);
      if (g->slots != nullptr) return ask_for_run(g->slots, (g->n + next_) * slot_bytes_);
      for (size_t i = 0; i < g->n; ++i) g->rows[i] = g->run + i * tape_.stride();
    }
    if (!next_) {
      for (size_t i = 0; i < g->n; ++i) {
        g->now[i] = memory_.slot(reference(g->rows[i], 0));
        ask_for_all(g->now[i], slot_bytes_);
      }
      return;
    }
    for (size_t i = 0; i < g->n; ++i) {
      const uint32_t now = reference(g->rows[i], 0), next = reference(g->rows[i], 1);
      const uint8_t* slot = memory_.slot(now);
      g->now[i] = slot;
      if (next == now + 1 && (next & chunk_) != 0) {  // mostly it was written behind it
        g->next[i] = slot + slot_bytes_;
        ask_for_all(slot, 2 * slot_bytes_);
      } else {
        g->next[i] = memory_.slot(next);
        ask_for_all(slot, slot_bytes_);
        ask_for_all(g->next[i], slot_bytes_);
      }
    }
  }

  static CONTIG_INLINED uint32_t reference(const uint8_t* row, size_t number) {
    uint32_t low;
    copy_fixed<4>(reinterpret_cast<uint8_t*>(&low), row + 4 * number);
    return low;
  }

  // Where the slots of a run of rows begin, if they lie behind each other; else null.
  CONTIG_INLINED const uint8_t* slots_of_run(const Group& g) const {
    const uint32_t first = reference(g.run, 0);
    if ((first & chunk_) + g.n + next_ > chunk_ + 1) return nullptr;
    uint32_t apart = 0;
    const uint8_t* row = g.run;
    for (size_t i = 0; i < g.n; ++i, row += tape_.stride()) {
      const auto expected = first + static_cast<uint32_t>(i);
      apart |= reference(row, 0) ^ expected;
      if (next_) apart |= reference(row, 1) ^ (expected + 1);
    }
    return apart == 0 ? memory_.slot(first) : nullptr;
  }

  void copy(const Group& g) const {
    for (const Target& t : targets_) {
      uint8_t* to = t.column + g.at * t.bytes;
      if (g.run != nullptr)
        copy_apart(to, t.bytes, g.run + t.offset, tape_.stride(), t.bytes, g.n);
      else
        copy_leaf(to, g.rows, t.offset, t.bytes, g.n);
    }
    for (const SlotTarget& t : slots_) {
      const SharedLeaf& leaf = tape_.form().leaves()[t.leaf];
      uint8_t* to = t.column + g.at * leaf.bytes;
      if (g.slots == nullptr)
        copy_leaf(to, t.next ? g.next : g.now, leaf.at, leaf.bytes, g.n);
      else
        copy_apart(to, leaf.bytes, g.slots + (t.next ? slot_bytes_ : 0) + leaf.at, slot_bytes_,
                   leaf.bytes, g.n);
    }
  }

  const Tape& tape_;
  const SlotMemory memory_;
  const int64_t* seqs_;
  const size_t n_;
  const std::vector<Target>& targets_;
  const std::vector<SlotTarget>& slots_;
  RowFinder find_;
  const size_t slot_bytes_;
  const uint64_t chunk_;
  bool now_ = false, next_ = false;  // which of its slots a row is read for
  size_t at_ = 0;                    // rows that were found
};
}  // namespace

uint64_t gather_pairs(const Tape& tape, const int64_t* seqs, size_t n,
                      const std::vector<Target>& targets, const std::vector<SlotTarget>& slots) {
  Pairs(tape, seqs, n, targets, slots).gather();
  return tail_after(tape);
}

}  // namespace contig
