// What went over a client's connection of slots, for the frames that follow: they need not bring
// them again. Frames themselves have all of theirs; what is left out is decided when one is sent,
// so that it may be sent again, on another connection. Not thread-safe: for who sends.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "native/tape/shared_form.h"
#include "native/wire/out_frame.h"
#include "native/wire/slot_window.h"

namespace contig {

// A frame as it goes over a connection.
struct SentFrame {
  std::vector<uint8_t> head;   // header, runs, fields, and which slots are left out
  std::vector<uint8_t> slots;  // the others
  bool leaves_out = false;     // or else all are sent, from where they are
};

class SentSlots {
 public:
  // A new connection, whose server keeps so many bytes of slots.
  void restart(uint64_t carry);
  // The frame that is sent next, if it is another one than it would be by itself.
  std::shared_ptr<const SentFrame> next(const OutFrame& frame, const SharedForm& form);

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  // Where a lane, or a trajectory, is: the slots that its next observation is expected to have.
  struct Trail {
    uint64_t frame = 0;  // that had rows of it last
    std::vector<uint64_t> numbers;
  };
  template <class F>
  void each_trail(const OutFrame& frame, const F& call);
  void find(const uint8_t* row, const Trail& trail, const OutFrame& frame, const SharedForm& form);
  bool same(uint64_t own, uint64_t number, const OutFrame& frame, const SharedForm& form) const;
  void prune(const SharedForm& form);

  SlotWindow window_;
  uint64_t frames_ = 0;
  std::vector<Trail> lanes_;
  std::unordered_map<int64_t, Trail> parts_;
  size_t prune_at_ = 1024;
  // Of the slots of the frame that is being sent: their numbers here, and of which of an
  // observation's slots they are the last.
  std::vector<uint64_t> numbers_, upto_, taken_;
};

}  // namespace contig
