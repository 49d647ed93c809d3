// Leaves that a row has twice, as its observation and as its next one, are stored once: in slots
// beside the rows. A slot is one observation, of a stack of frames one frame; a row refers to those
// that its two observations consist of. Other leaves stay in the row, closer together.
//
//   as it comes in   [ observation | action | next observation | reward ... ]   a record
//   as it is stored  [ references, 2k | action | reward ... ]   a row       [ frame ]   slots
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace contig {

// A leaf at the root of a record and the same below `next`: a stack of `frames`, `inner` adjacent
// bytes of each in turn. (One frame after another: inner is a frame.) Or a stack that is not below
// `next` as well.
struct SharedLeaf {
  static constexpr uint64_t kNoNext = ~uint64_t{0};
  uint64_t offset, next_offset, bytes;
  uint64_t frames, inner;
  uint64_t frame_bytes = 0;  // all that follows is the form's
  uint64_t pieces = 1;       // of a frame
  uint64_t at = 0;           // within a slot
  uint64_t first = 0;        // of the slots of an observation, the one that has its first frame
};

// A leaf that stays in the row.
struct KeptLeaf {
  uint64_t offset, bytes;
  uint64_t stored = 0;  // where it is in the row
};

class SharedForm {
 public:
  SharedForm() = default;
  // Throws unless they are leaves of a record of so many bytes, none of them twice; and all of
  // those that are shared have a next one, or none has.
  SharedForm(std::vector<SharedLeaf> leaves, std::vector<KeptLeaf> kept, uint64_t record_size,
             bool encoded = false);

  explicit operator bool() const { return !leaves_.empty(); }
  const std::vector<SharedLeaf>& leaves() const { return leaves_; }
  const std::vector<KeptLeaf>& kept() const { return kept_; }
  // Slots of one observation: the largest stack. A row has references to those of its observation,
  // then to those of its next one.
  uint64_t stack() const { return stack_; }
  bool paired() const { return leaves_.front().next_offset != SharedLeaf::kNoNext; }
  uint64_t references() const { return paired() ? 2 * stack_ : stack_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  bool encoded() const { return encoded_; }  // whether a tape keeps slots as lz4 blocks
  uint64_t row_bytes() const { return row_bytes_; }
  uint64_t record_end() const { return record_end_; }  // of a record, behind its last leaf

  // Whether compact rows of another form are the same; not whether slots are encoded.
  bool same_rows(const SharedForm& other) const;

  // Where a row has a leaf that comes in at `offset` of a record. Throws if it is none that stays.
  uint64_t stored(uint64_t offset) const;
  // Whether what comes in at `offset` is in slots: which leaf, and whether it is the next one's.
  bool find(uint64_t offset, size_t* leaf, bool* next) const;

  // Frame `number` of a leaf, out of and into an observation.
  static void take_frame(const SharedLeaf& leaf, const uint8_t* from, uint64_t number, uint8_t* to);
  static void put_frame(const SharedLeaf& leaf, const uint8_t* frame, uint64_t number, uint8_t* to);

 private:
  std::vector<SharedLeaf> leaves_;
  std::vector<KeptLeaf> kept_;
  uint64_t stack_ = 0, slot_bytes_ = 0, row_bytes_ = 0, record_end_ = 0;
  bool encoded_ = false;
};

}  // namespace contig
