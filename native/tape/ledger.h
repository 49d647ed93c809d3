// What may be drawn under one question, kept up to date.
//
// A question is a slice spec and a window, or a window alone, with the filters that must hold. Its
// items are trajectories, in the order in which they began, or single runs, in the order of the
// tape, for questions about rows. Each has a weight: 1 or the number of its valid starts, or of its
// rows. The weights change only where something was written, evicted, or passed by a bound of the
// window; those items are touched, and computed again before the next draw. So a draw costs what
// has changed since the last one, whatever is stored, and nothing is ever drawn and rejected.
//
// Belongs to its View.
#pragma once

#include <cstdint>
#include <vector>

#include "native/kernels/rng.h"
#include "native/tape/fenwick.h"
#include "native/tape/tape.h"
#include "native/tape/window.h"

namespace contig {

class View;

// Items that changed since a reader of the ledger last asked, or all there are.
struct Changes {
  uint64_t token = 0;  // to be given the next time
  bool all = false;    // `on` is everything; forget what was known
  std::vector<int64_t> on, off;
};

class Ledger {
 public:
  // `rows`: runs are the items, and the spec does not matter.
  Ledger(View& view, const SliceSpec& spec, bool rows, uint64_t filters);

  bool answers(const SliceSpec& spec, bool rows, uint64_t filters) const;
  uint64_t filters() const { return filters_; }

  // From the view: something about a run, or about the trajectory in this slot, has changed.
  void touch(uint64_t number, uint32_t slot);
  void touch_trajectory(uint32_t slot);
  void died(uint64_t ordinal);
  void forget() { built_ = false; }
  // Trajectories have moved to other slots: kept[i] is the old slot of the i-th.
  void move(const std::vector<uint32_t>& kept);

  // Catches up, for this window. Everything below holds for it.
  void sync(const Window& w);

  uint64_t total() const { return sums_.total(); }
  uint64_t items() const { return eligible_; }
  struct Pick {
    uint64_t item, choice;  // a slot or a run; which of its starts or rows
  };
  Pick pick(Rng rng) const;  // total() must not be 0
  // Of a picked run: its first row that counts.
  uint64_t first_row(uint64_t number) const { return items_[number - base_].from; }
  uint64_t rows(uint64_t number) const { return items_[number - base_].count; }

  // Calls visit(slot or run) for every eligible item, in order.
  template <typename Visit>
  void each(Visit visit) const;

  // Rows that became valid starts, or ceased to be, while they are stored: see Changes.
  void changed_rows(uint64_t token, Changes* out);
  // Ordinals of trajectories that became eligible, and of those that are gone for good.
  void changed_ordinals(uint64_t token, Changes* out);

 private:
  struct Item {
    uint64_t from = 0;   // the first valid start, a step of the trajectory; or seq of the run
    uint64_t count = 0;  // of starts, or rows
  };

  bool weighs_count() const { return rows_ || spec_.over_steps; }
  uint64_t weight(uint64_t count) const { return weighs_count() ? count : (count > 0 ? 1 : 0); }
  void touch_item(size_t item);
  void rebuild(const Window& w);
  void pass_low(uint64_t low);
  void settle();
  Item look(size_t item) const;
  void set(size_t item, const Item& now);
  void note_rows(size_t item, const Item& old, const Item& now);
  void trim();
  void hand_over(uint64_t token, Changes* out, bool* tracked);

  View& view_;
  SliceSpec spec_;
  bool rows_, built_ = false;
  uint64_t filters_;  // that its windows have
  Window window_;
  uint64_t low_ = 0;      // rows below it are not counted
  uint64_t low_run_ = 0;  // the run that holds it, or a run before
  uint64_t base_ = 0;     // runs: the number of item 0

  std::vector<Item> items_;
  Fenwick sums_;
  uint64_t eligible_ = 0;
  std::vector<uint8_t> is_touched_;
  std::vector<uint64_t> touched_;

  bool track_rows_ = false, track_ordinals_ = false;
  Changes log_;
};

template <typename Visit>
void Ledger::each(Visit visit) const {
  if (eligible_ * 16 >= items_.size()) {  // about what looking at every item costs
    for (size_t i = 0; i < items_.size(); ++i)
      if (items_[i].count > 0) visit(base_ + i);
    return;
  }
  for (uint64_t sum = 0, rest; sum < sums_.total();) {
    const size_t i = sums_.find(sum, &rest);
    visit(base_ + i);
    sum += weight(items_[i].count);
  }
}

}  // namespace contig
