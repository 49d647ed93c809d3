// Slots that came over a connection, for frames behind them: those leave out what is here, and are
// completed to what they would have been without (docs/design/wire.md, "Carried slots").
//
//   header | runs | fields | n, n x (own number, how many came since) | rows | slots | bytes
//
// Whoever sent it may mean no good. Not thread-safe: it belongs to its connection.
#pragma once

#include <cstdint>
#include <vector>

#include "native/wire/items.h"
#include "native/wire/slot_window.h"

namespace contig {

class CarriedSlots {
 public:
  // How many bytes of slots are kept; 0 at first: none.
  void allow(uint64_t bytes) { window_.restart(bytes); }
  uint64_t allowed() const { return window_.most(); }
  bool keeps(uint64_t slot_bytes) const { return window_.keeps(slot_bytes); }

  // Whether what a frame with `kCarriedSlots` left out is here, and how long it will be with that;
  // `most` at most.
  Refusal check(const Frame& frame, const uint8_t* body, const ItemShape& shape, uint64_t most,
                uint64_t* length);
  // Puts it in, into the frame that was checked last: its body has room for the new length.
  void put_in(uint8_t* body, const ItemShape& shape, Frame* frame);

  // The slots of a frame that was taken in, as it was checked last or without anything left out:
  // those that came with it are kept.
  void keep(const uint8_t* slots, uint64_t n, uint64_t slot_bytes);
  // A frame was taken in, kept or not.
  void done() { left_out_.clear(); }

 private:
  SlotWindow window_;
  // Of the frame that was checked last:
  std::vector<CarriedSlot> left_out_;
  std::vector<bool> used_;
  uint64_t table_at_ = 0, n_slots_ = 0, n_bytes_ = 0;
};

}  // namespace contig
