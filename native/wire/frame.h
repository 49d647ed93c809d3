// Frames of the wire format (docs/design/wire.md): parsing and sealing. Compute only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "native/tape/run_flags.h"

namespace contig {

constexpr uint32_t kFrameMagic = 0x6D724663;  // "cFrm"
constexpr size_t kFrameHeader = 40, kRunBytes = 32;

enum class FrameType : uint8_t {
  open = 1,
  accept,
  refuse,
  items,
  ack,
  beat = 14
};  // of those that native code makes or reads
constexpr uint8_t kFrameTypes = 17;

// Of a frame of items: its rows refer to slots, which come behind them (tape/compact_rows.h).
constexpr uint8_t kCompactRows = 1;
// And some of these slots came before, and are not sent again; and those that are may be left out
// of frames behind this one.
constexpr uint8_t kCarriedSlots = 2, kKeptSlots = 4;
// A slot that is left out, and how many came since it did.
struct CarriedSlot {
  uint32_t own, since;
};
static_assert(sizeof(CarriedSlot) == 8, "a carried slot has 8 bytes on the wire");

struct Frame {
  uint8_t type, flags;
  uint64_t number;
  uint32_t runs, rows;
  uint64_t length;  // bytes after the header
  uint32_t body_crc;
};

// Of a run: a server keeps where each of them is, a hundred bytes or so.
constexpr uint32_t kMaxLanes = 1 << 18;

struct WireRun {
  uint32_t rows, flags;  // RunFlag
  int64_t traj_id, version;
  uint32_t lanes, fields;  // with kHasFields, how many fields stand behind the runs for it: 1, or
                           // one for each lane
};
static_assert(sizeof(WireRun) == kRunBytes, "a run has 32 bytes on the wire");

// Why a frame is refused; the names are those of the counters.
enum class Refusal : int { none, magic, header_crc, type, size, shape, body_crc, value };
const char* refusal_name(Refusal r);

// Reads a header. `max_frame` bounds the whole frame.
Refusal parse_header(const uint8_t* bytes, uint64_t max_frame, Frame* out);
void write_header(const Frame& frame, uint8_t* out);
WireRun read_run(const uint8_t* bytes);

}  // namespace contig
