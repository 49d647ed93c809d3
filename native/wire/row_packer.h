// Rows on their way into a frame, each observation once: as the frame's slots, which its rows refer
// to. Looks for an observation where it is to be expected: in what the row before of the same lane,
// or of the same trajectory, led to. For one thread at a time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "native/tape/shared_form.h"
#include "native/tape/slots.h"
#include "native/wire/out_frame.h"

namespace contig {

class RowPacker {
 public:
  explicit RowPacker(SharedForm form) : form_(std::move(form)) {}
  const SharedForm& form() const { return form_; }

  // Nothing of what comes is in the frame yet.
  void restart();
  // Some records are to go behind what a frame holds; they and the frame stay until `finish`.
  // Nothing of the frame's counts changes here. Throws if a leaf has no column.
  void start(const Rows& rows, uint64_t record_size, OutFrame* frame);
  // The next of them, as so many lanes of equal length, or as rows of the trajectory of this id.
  void add_lanes(uint64_t n, uint64_t lanes);
  void add_part(uint64_t n, int64_t traj_id);
  uint64_t row_bytes() const { return packed_ * form_.row_bytes(); }
  uint64_t slot_bytes() const { return new_slots_ * form_.slot_bytes(); }

 private:
  static constexpr uint32_t kNothing = ~uint32_t{0};
  using Trail = std::vector<uint32_t>;  // slots that the next observation is expected to have

  // A leaf that stays in the row.
  struct Piece {
    const uint8_t* data;
    uint64_t stride, bytes, stored;
  };
  struct Wanted {
    uint64_t row;
    bool next;
    uint32_t number;  // of the slots of an observation
  };

  // Frames of a stack that are not adjacent in an observation, so that they are; or nothing.
  struct Split {
    std::vector<uint8_t> bytes;
  };

  void pack_row(uint64_t row, Trail* trail);
  void split_row(uint64_t row);
  const uint8_t* frame_at(size_t leaf, const Wanted& wanted, uint64_t frame) const;
  uint32_t find(const Wanted& wanted, const uint32_t* candidates, size_t n);
  bool same(const Wanted& wanted, uint32_t slot) const;
  void write_slot(const Wanted& wanted, uint8_t* slot) const;
  uint32_t next_slot() const;

  const SharedForm form_;
  std::vector<Trail> lanes_;
  std::unordered_map<int64_t, Trail> parts_;
  // Of the rows that are being packed:
  OutFrame* frame_ = nullptr;
  std::vector<Observations> from_;  // one, or none
  std::vector<Piece> pieces_;
  std::vector<uint32_t> now_;
  std::vector<Split> splits_;  // of each leaf, of an observation and of the next one
  uint64_t given_ = 0, packed_ = 0, new_slots_ = 0;
};

}  // namespace contig
