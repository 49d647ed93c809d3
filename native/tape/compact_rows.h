// Rows as they are stored, on their way to a tape: their references are numbers of slots that come
// with them, from 0 on, in the order in which they are first referred to (row by row, within a row
// in order).
//
//   [ references | leaves that stay ] rows, one after another      [ slot ] one after another
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/shared_form.h"

namespace contig {

struct Column;

struct CompactRows {
  const uint8_t* rows = nullptr;
  const uint8_t* slots = nullptr;
  uint64_t n_slots = 0;
};

// Whether rows that anybody may have sent refer to slots as they must, to no more than `most`; and
// to how many.
bool check_references(const SharedForm& form, const uint8_t* rows, uint64_t n, uint64_t most,
                      uint64_t* n_slots);
// Whether each of them refers to one of the first `n_slots`, in whatever order.
bool references_below(const SharedForm& form, const uint8_t* rows, uint64_t n, uint64_t n_slots);
// How many slots rows refer to that were checked.
uint64_t slots_of(const SharedForm& form, const uint8_t* rows, uint64_t n);

// The leaves that stay, as columns of records.
void kept_columns(const SharedForm& form, const uint8_t* rows, std::vector<Column>* out);
// One of the others, of a row's observation or of its next one, `stride` bytes from row to row.
void gather_shared(const SharedForm& form, const CompactRows& from, uint64_t n, size_t leaf,
                   bool next, uint8_t* out, uint64_t stride);
// Whole records, as they were before. Bytes between leaves are left as they are.
void expand_rows(const SharedForm& form, const CompactRows& from, uint64_t n, uint64_t record_size,
                 uint8_t* out);

}  // namespace contig
