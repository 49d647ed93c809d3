// Which slots the rows of an append refer to: those that are there already where their bytes are
// the same, new ones elsewhere. So what comes out is what went in, byte for byte, always.
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/shared_form.h"

namespace contig {

struct Rows;
struct CompactRows;
class SlotMemory;

// Slots that are not in a tape's memory.
class SlotReader {
 public:
  virtual ~SlotReader() = default;
  // Null: it cannot be read.
  virtual const uint8_t* slot(uint64_t number) const = 0;
};

// A slot's content while it is in nobody's memory but the caller's: frame `number` (of the largest
// stack) of a row's observation, or of its next one.
struct SlotSource {
  // Made where it stays: one that is made elsewhere and moved there waits for its own parts.
  SlotSource(uint64_t row, bool next, uint32_t number) : row(row), next(next), number(number) {}
  uint64_t row;
  bool next;
  uint32_t number;
};

// Rows of an append: where the two observations of each are.
class Observations {
 public:
  Observations() = default;
  Observations(const Rows& rows, const SharedForm& form, uint64_t record_size) {
    set(rows, form, record_size);
  }
  // Throws if a leaf has no column.
  void set(const Rows& rows, const SharedForm& form, uint64_t record_size);
  const uint8_t* at(uint64_t row, size_t leaf, bool next) const {
    const Place& place = places_[2 * leaf + (next ? 1 : 0)];
    return place.data + row * place.stride;
  }
  void take(const SharedForm& form, const SlotSource& source, uint8_t* slot) const;
  // How many of `n` sources, from the first on, lie behind each other as their slots do: at least
  // one.
  size_t adjacent(const SharedForm& form, const SlotSource* sources, size_t n) const;
  // Whether a row's observation has the bytes of another row's observation, or of its next one.
  bool equal(const SharedForm& form, uint64_t row, uint64_t other, bool next) const;
  // To how many of `n` rows, one after another, the row before led: the first of them that are as
  // its next observation.
  uint64_t leads_on(const SharedForm& form, uint64_t row, uint64_t n) const;
  // Whether the observations of `n` rows have the bytes of slots that lie behind each other.
  bool equal_slots(const SharedForm& form, uint64_t row, uint64_t n, const uint8_t* slots) const;

 private:
  struct Place {
    const uint8_t* data;
    uint64_t stride;
  };
  std::vector<Place> places_;
};

// Slots of rows [64 b, 64 b + 64): all that they refer to are at or above `low`, which is at most
// `reach` below `start`, the slot that was the next one when the first of them was written.
struct BlockMark {
  uint64_t block, start, low;
};
constexpr uint64_t kBlockShift = 6;

// Of an open trajectory: the slots that its next observation is expected to have; and the row of a
// plan that says it, if that is the plan being made.
struct SlotTrail {
  std::vector<uint64_t> slots;
  uint64_t plan = 0, row = 0;
};

class SlotPlan {
 public:
  // Begins a plan for rows that get seqs from `seq` on, and slots from `head` on. Slots of others
  // that are at or above `floor` may be referred to, if they are not more than `reach` behind.
  void start(const SharedForm* form, const SlotMemory* memory, uint64_t seq, uint64_t head,
             uint64_t floor, uint64_t reach);
  // Slots of others are read through this, in place of the memory. It is not owned.
  void read_through(const SlotReader* reader) { reader_ = reader; }
  // So many rows will come, before the first of them does.
  void expect(uint64_t n) {
    references_.reserve(n * form_->references());
    sources_.reserve(n + form_->references());
  }
  // The next rows of one trajectory. `before`: what `led_to` says of the last row before them;
  // null: it is not known.
  void add_run(const Observations& from, uint64_t row, uint64_t n, const uint64_t* before);
  // The next row of each of `n` trajectories, of observations without stacks. `before`: what
  // `led_to` says of the first of them; the others' are the slots behind it.
  void add_steps(const Observations& from, uint64_t row, uint64_t n, uint64_t before);
  // As add_run, of rows that come with slots of their own, and say which they refer to: a plan has
  // rows of one kind. `sources` are then numbers of those slots, as rows.
  void start_compact(uint64_t n_slots);
  void add_compact_run(const CompactRows& from, uint64_t row, uint64_t n, const uint64_t* before);

  uint64_t head() const { return head_; }
  uint64_t slots() const { return sources_.size(); }  // that are new
  const std::vector<SlotSource>& sources() const { return sources_; }
  const std::vector<BlockMark>& marks() const { return marks_; }
  uint64_t low() const { return low_; }  // of slots that were there before; kNone: none
  uint64_t rows() const { return rows_; }
  // Of the row so far behind the first: its references, those of its observation before those of
  // its next one.
  const uint64_t* references(uint64_t row) const {
    return references_.data() + row * form_->references();
  }
  // The slots that the observation after a row is expected to have.
  void led_to(uint64_t row, uint64_t* out) const;

 private:
  bool moved_up(const Observations& from, uint64_t row, const uint64_t* before) const;
  uint64_t plan_row(const Observations& from, uint64_t row, const uint64_t* before, uint64_t* now);
  void add_pairs(const Observations& from, uint64_t row, uint64_t n, uint64_t before);
  BlockMark& mark_of(uint64_t seq);
  const uint8_t* there(uint64_t slot) const;  // of others; null: it cannot be read
  bool same(const Observations& from, const SlotSource& wanted, uint64_t slot) const;
  bool same_whole(const Observations& from, uint64_t row, uint64_t slot) const;
  bool in_reach(uint64_t slot) const;
  uint64_t find(const Observations& from, const SlotSource& wanted, const uint64_t* candidates,
                size_t n);
  bool same_local(const CompactRows& from, uint64_t local, uint64_t slot, uint32_t number) const;
  uint64_t find_local(const CompactRows& from, uint64_t local, uint32_t number, uint64_t candidate);

  // Of a slot that came with the rows: the one that it is, and up to which number of an
  // observation's slots that is known.
  struct LocalSlot {
    uint64_t slot = ~uint64_t{0};
    uint32_t upto = 0;
  };

  const SharedForm* form_ = nullptr;
  const SlotMemory* memory_ = nullptr;
  const SlotReader* reader_ = nullptr;
  uint64_t seq_ = 0, head_ = 0, floor_ = 0, reach_ = 0;
  uint64_t rows_ = 0, low_ = 0;
  std::vector<uint64_t> references_, expected_;
  std::vector<SlotSource> sources_;
  std::vector<BlockMark> marks_;
  std::vector<LocalSlot> local_;
};

}  // namespace contig
