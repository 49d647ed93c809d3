// Observations that are stored once, of rows in files. A row has the bytes of the slots that are
// new with it as a leaf of any size has its bytes: in files of their own, by position; slot n is at
// n times its size. Where those of a row are tells its slots' full numbers.
//
//   [ references | leaves that stay in the row | zeros | position, bytes ]   a stored record
//
// Its second checksum goes on over the row's own slots, and then over those of earlier rows that it
// refers to, each once: a row is whole if all that it consists of is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "native/tape/blobs.h"
#include "native/tape/gather_slots.h"
#include "native/tape/row_sums.h"
#include "native/tape/slots.h"

namespace contig {

// Where a stored record has its place, and how many bytes it has.
inline uint64_t stored_place(const SharedForm& form) { return (form.row_bytes() + 7) / 8 * 8; }
inline uint64_t stored_bytes(const SharedForm& form) { return stored_place(form) + kPlaceBytes; }
// Where the last leaf of a record ends.
uint64_t record_end(const SharedForm& form);

// Slots of a mapped ring, copied before they are looked at: their file may be cut at any time.
class RingSlots : public SlotReader {
 public:
  RingSlots(const BlobRing& ring, uint64_t slot_bytes) : ring_(ring), bytes_(slot_bytes) {}
  const uint8_t* slot(uint64_t number) const override;

 private:
  BlobRing ring_;
  uint64_t bytes_;
  mutable std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>> read_;
};

// What a stored record refers to.
struct StoredSlots {
  static constexpr size_t kMost = 128;  // references of a row
  // False: no record says that.
  bool find(const SharedForm& form, const uint8_t* record);
  // Whether all of them are among `bytes` bytes from a position on.
  bool inside(uint64_t base, uint64_t bytes) const;
  // Calls `each` with those of them that other rows have introduced, each once.
  template <class Each>
  void others(const Each& each) const {
    for (size_t j = 0; j < count; ++j) {
      bool known = numbers[j] >= own_first;
      for (size_t i = 0; i < j && !known; ++i) known = numbers[i] == numbers[j];
      if (!known) each(numbers[j]);
    }
  }

  uint64_t numbers[kMost];
  size_t count = 0;
  uint64_t slot_bytes = 0, own_first = 0;
  BlobPlace own{0, 0};
};

// Whether a row of a tape in files is as it was written. Its file may be cut meanwhile: call it in
// `unless_cut`.
bool slots_whole(const Tape& tape, uint64_t seq);
// Asks for what is in the slots of a row, which may be any row: nothing is checked.
void ask_for_slots(const Tape& tape, uint64_t seq);
// Asks the system to read the slots of a row.
void read_slots_ahead(const Tape& tape, uint64_t seq);
// As `gather_slots` and `gather_whole_records`, of rows in files. Nothing is owned meanwhile: a
// file may be cut.
uint64_t gather_stored_slots(const Tape& tape, const int64_t* seqs, size_t n,
                             const SlotTarget* targets, size_t n_targets);
uint64_t gather_stored_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out);

// How rows lie in files.
struct StoredShape {
  const SharedForm* form;
  uint64_t record_size;  // of rows as they come in
  uint64_t stride;
};

// Rows of a plan as they are going to be in files, from `skip` on, the first with this seq; and the
// bytes of its new slots. `older` has those that rows refer to besides.
void seal_slots(const StoredShape& shape, const SlotPlan& plan, const Rows& rows, uint64_t skip,
                const RowSums& sums, uint64_t seq, const SlotReader& older, uint8_t* out,
                uint8_t* bytes);

// Rows that were read from files, and the bytes of slots from a position on.
struct StoredPart {
  const uint8_t* rows;
  size_t n;
  uint64_t first;  // seq
  const uint8_t* bytes;
  uint64_t count, base;
};
// Their records as they came in; places of those that are not as they were written.
void expand_slots(const StoredShape& shape, const StoredPart& part, const RowSums& sums,
                  uint8_t* out, std::vector<int64_t>* damaged);
// The same rows with other salts.
void reseal_slots(const StoredShape& shape, const StoredPart& part, const RowSums& sums,
                  const RowSums& now, uint8_t* out, std::vector<int64_t>* damaged);

// Rows on their way from a checkpoint into files, a piece at a time. Its memory is that of the
// slots that later rows may refer to.
class SlotEncoder : SlotReader {
 public:
  SlotEncoder(const SharedForm& form, uint64_t record_size, uint64_t stride, uint64_t reach);
  struct Part {
    uint64_t trajectory, rows;
  };
  // Rows in their order, of trajectories as `parts` says. Throws if that is not all of them.
  void encode(const Rows& rows, const std::vector<Part>& parts, const RowSums& sums, uint64_t seq,
              uint8_t* out, std::vector<uint8_t>* bytes);
  uint64_t stride() const { return stride_; }
  uint64_t record_size() const { return record_size_; }
  uint64_t head() const { return head_ * form_.slot_bytes(); }  // a position

 private:
  const uint8_t* slot(uint64_t number) const override;
  void keep(const std::vector<uint8_t>& bytes);
  SharedForm form_;
  uint64_t record_size_, stride_, reach_, head_ = 0;
  SlotPlan plan_;
  std::vector<uint8_t> window_;  // of the newest slots, by their numbers
  std::unordered_map<uint64_t, std::vector<uint64_t>> trails_;
};

}  // namespace contig
