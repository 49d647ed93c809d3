// What is in a frame of items (docs/design/wire.md): where its parts are, and whether they fit the
// table they are for. Compute only; whoever sent them may mean no good.
//
//   header | runs | fields of those that have some | records | bytes of leaves of any size
//   header | runs | fields of those that have some | compact rows | slots | bytes
//
// Frames that leave out slots that came before are completed first (carried_slots.h).
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/compact_rows.h"
#include "native/wire/frame.h"

namespace contig {

// Bytes of a record that are bools.
struct Bools {
  uint64_t offset, bytes;
};

// A leaf of any size: where a record has its position and length, and what its bytes are.
struct VariableLeaf {
  enum Content : uint64_t { any, text, bools };  // text is UTF-8
  uint64_t offset, unit;                         // of an element, in bytes; 0: it has none
  Content content;
};

// A table's items, as far as frames are concerned.
struct ItemShape {
  std::vector<Bools> bools, field_bools;
  uint64_t fields = 0;        // bytes of a trajectory's fields; 0: it has none
  uint64_t field_leaves = 0;  // leaves of them, each a bit of a mask
  std::vector<VariableLeaf> variable;
  // If observations are stored once: how, and the same of compact rows and of slots.
  SharedForm form;
  std::vector<Bools> kept_bools, slot_bools;
  std::vector<VariableLeaf> kept_variable;

  // Behind all the others: rows may come compact. Throws unless they are of records like these.
  void share(SharedForm form);
  // Fields on the wire: the mask of those that are given, and all of them, padded to words.
  uint64_t given_bytes() const { return 8 + (fields + 7) / 8 * 8; }
};

// Where the parts of a frame are that fits.
struct ItemParts {
  const uint8_t *runs = nullptr, *fields = nullptr, *records = nullptr, *bytes = nullptr;
  uint64_t n_bytes = 0;
  uint64_t row_bytes = 0;          // of a record, or of a compact row
  const uint8_t* slots = nullptr;  // null: records are whole
  uint64_t n_slots = 0;

  const std::vector<VariableLeaf>& variable(const ItemShape& shape) const {
    return slots != nullptr ? shape.kept_variable : shape.variable;
  }
};

// What is in front of an ITEMS frame's rows: `parts` has where that is, and how much is `left`.
Refusal check_front(const Frame& frame, const uint8_t* body, bool runs, const ItemShape& shape,
                    ItemParts* parts, uint64_t* left);
// Does an ITEMS frame fit a table: its records' size, whether it has runs, and `shape`?
Refusal check_items(const Frame& frame, const uint8_t* body, uint64_t record_size, bool runs,
                    const ItemShape& shape, ItemParts* parts);
// The parts of a frame that does.
ItemParts parts_of(const Frame& frame, const uint8_t* body, uint64_t record_size,
                   const ItemShape& shape);
// Of such a frame: position of a record's first byte of any size, and behind its last one.
uint64_t first_byte(const uint8_t* record, const std::vector<VariableLeaf>& variable);
uint64_t past_bytes(const uint8_t* record, const std::vector<VariableLeaf>& variable);

// Are these bytes of n records 0 or 1? Nothing else may be stored as a bool.
bool are_bools(const uint8_t* records, uint64_t n, uint64_t record_size, const Bools& where);
bool is_utf8(const uint8_t* text, uint64_t bytes);

}  // namespace contig
