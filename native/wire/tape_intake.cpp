#include "native/wire/tape_intake.h"

#include <algorithm>
#include <exception>

#include "native/wire/open_lanes.h"

namespace contig {

namespace {
constexpr uint64_t kUnlimited = uint64_t{1} << 62;

void add_run(Writer& writer, uint64_t at, const WireRun& run, const Marks& marks) {
  if ((run.flags & kMarked) == 0) {
    writer.add_part(at, run.rows, marks, Told{run.flags, run.traj_id, run.version});
    return;
  }
  const SenderOpen sender{static_cast<uint64_t>(run.traj_id), (run.flags & kSeveral) != 0, true};
  if (is_step(run))
    writer.add_rows(at, run.rows, nullptr, marks, rule_of(run), {}, sender);
  else
    writer.add_lanes(at, run.rows, run.lanes, marks, rule_of(run), {}, sender);
}

// The rows of a frame but for the first ones.
Rows& rows_from(const CheckedItems& items, uint64_t skipped, IntakeRows* in) {
  const ItemParts& parts = items.parts;
  const uint8_t* first = parts.records + skipped * parts.row_bytes;
  Rows& rows = in->rows = Rows{};
  rows.n = items.frame.rows - skipped;
  if (parts.slots == nullptr) {
    rows.records = first;
  } else {
    in->compact = CompactRows{first, parts.slots, parts.n_slots};
    kept_columns(items.shape.form, first, &in->columns);
    rows.columns = in->columns.data();
    rows.n_columns = in->columns.size();
    rows.compact = &in->compact;
  }
  if (!items.shape.variable.empty()) {
    rows.blob_first = first_byte(first, parts.variable(items.shape));
    rows.blobs = parts.bytes + rows.blob_first;
    rows.blob_bytes = parts.n_bytes - rows.blob_first;
  }
  return rows;
}
}  // namespace

AcceptedRuns prepare_runs(Tape& tape, Writer& writer, const MarksOf& marks,
                          const CheckedItems& items, uint64_t producer, uint64_t most_rows,
                          uint64_t next, IntakeRows* in, Sender* sender) {
  const Frame& frame = items.frame;
  const uint64_t seen = tape.seen(producer, std::max(frame.number, next));
  AcceptedRuns out;
  out.seen = seen;
  out.gap = frame.number > seen;
  if (out.gap) return out;
  const uint64_t again = std::min<uint64_t>(seen - frame.number, frame.runs);
  if (again == frame.runs) return out;
  const uint64_t given_bytes = items.shape.given_bytes();
  const uint8_t* given = items.parts.fields;
  uint64_t skipped = 0;
  for (uint64_t i = 0; i < again; ++i) {
    const WireRun run = read_run(items.parts.runs + i * kRunBytes);
    skipped += run.rows;
    if ((run.flags & kHasFields) != 0) given += run.fields * given_bytes;
  }
  Rows& rows = rows_from(items, skipped, in);
  const Marks m = marks(rows);
  writer.start(rows);
  for (uint64_t i = again; i < frame.runs; ++i, ++out.items) {
    const WireRun run = read_run(items.parts.runs + i * kRunBytes);
    if (out.items > 0 && out.rows + run.rows > most_rows) break;
    const size_t first = writer.runs();
    add_run(writer, out.rows, run, m);
    if ((run.flags & kHasFields) != 0) {
      writer.give_fields(first, given, given_bytes, run.fields > 1 ? run.rows / run.lanes : 0);
      given += run.fields * given_bytes;
    }
    out.rows += run.rows;
  }
  if (out.rows < rows.n) {  // only some of them
    rows.n = out.rows;
    if (rows.blobs != nullptr) {
      const uint64_t last = skipped + out.rows - 1;
      const uint8_t* record = items.parts.records + last * items.parts.row_bytes;
      rows.blob_bytes = past_bytes(record, items.parts.variable(items.shape)) - rows.blob_first;
    }
    writer.shorten(out.rows, rows.blob_bytes);
  }
  *sender = Sender{producer, seen + out.items, seen};
  out.seen += out.items;
  return out;
}

uint64_t TapeIntake::accept(Receiver& in, uint64_t next, double) {
  const Frame& frame = in.frame();
  const uint64_t size = tape_.record_size();
  if (frame.type != static_cast<uint8_t>(FrameType::items) || frame.number != next) return 0;
  if (frame.rows > b_.most_rows || writer_.bytes() > b_.most_open) return 0;
  CheckedItems items{frame, in.shape(), {}};
  if (in.refusal_of_items(size, true, &items.parts) != Refusal::none) return 0;
  Header& h = tape_.header();
  if (!lock_try(h.lock) && !lock_until(h.lock, b_.lock_s)) return 0;
  struct Release {
    Lock& lock;
    ~Release() { lock_release(lock); }
  } release{h.lock};
  try {
    tape_.repair();
    const bool limited = b_.most_rows < kUnlimited;
    if (limited && h.inserted_base.load() + h.head.load() != b_.inserted) return 0;
    if (tape_.seen(producer_, next) != next) return 0;
    IntakeRows rows;
    Sender sender;
    prepare_runs(tape_, writer_, marks_, items, producer_, frame.rows, next, &rows, &sender);
    writer_.commit(sender);
    if (limited) {
      b_.most_rows -= frame.rows;
      b_.inserted = h.inserted_base.load() + h.head.load();
    }
    return frame.runs;
  } catch (const std::exception&) {
    return 0;  // nothing was appended: its caller tries again, and says why
  }
}

}  // namespace contig
