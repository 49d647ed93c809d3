// Frames of items on their way into a tape, through the writer of their producer: one append each.
#pragma once

#include <cstdint>
#include <functional>

#include "native/tape/writer.h"
#include "native/wire/receive_loop.h"

namespace contig {

// What became of a frame's items.
struct AcceptedRuns {
  uint64_t seen = 0;             // of the producer's items that are in
  uint64_t items = 0, rows = 0;  // added
  bool gap = false;              // the frame begins behind what comes next: nothing was added
};

// Rows of a frame, as a tape takes them in, and what they refer to besides the frame.
struct IntakeRows {
  Rows rows;
  CompactRows compact;
  std::vector<Column> columns;
};

// The boundary marks of rows.
using MarksOf = std::function<Marks(const Rows&)>;

// A checked frame, for a table whose items have this shape.
struct CheckedItems {
  const Frame& frame;
  const ItemShape& shape;
  ItemParts parts;
};

// With the lock: prepares what of a frame the producer's number does not say is in already; no more
// than `most_rows`, but at least one item. Of a producer that is not known, items below `next` are
// in. Then the rows of them, if any, are to be committed, as the sender's; until then they stay
// where they are.
AcceptedRuns prepare_runs(Tape& tape, Writer& writer, const MarksOf& marks,
                          const CheckedItems& items, uint64_t producer, uint64_t most_rows,
                          uint64_t next, IntakeRows* in, Sender* sender);

class TapeIntake : public Intake {
 public:
  // What bounds it. A rate limiter gives room for `most_rows` as long as nobody else has inserted
  // any since there were `inserted`. Not more than `most_open` bytes of open trajectories are
  // remembered, but for those of one frame.
  struct Bounds {
    uint64_t most_rows, inserted, most_open;
    double lock_s;
  };
  TapeIntake(Tape& tape, Writer& writer, MarksOf marks, uint64_t producer, const Bounds& bounds)
      : tape_(tape), writer_(writer), marks_(std::move(marks)), producer_(producer), b_(bounds) {}
  uint64_t items_of(const Frame& frame) const override { return frame.runs; }
  uint64_t accept(Receiver& in, uint64_t next, double deadline) override;

 private:
  Tape& tape_;
  Writer& writer_;
  const MarksOf marks_;
  const uint64_t producer_;
  Bounds b_;
};

}  // namespace contig
