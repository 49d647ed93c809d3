// Values of leaves of any size, as Python has them: bytes, text, arrays; or columns of such, a list
// of them or a `Ragged`.
#pragma once

#include "plan.h"

namespace contig {

// The bytes of one row's value, added to `out`; false: not understood, or more than `most`.
bool pack_blob(const LeafSpec& leaf, PyObject* value, uint64_t most, std::vector<uint8_t>* out);

// Those of many rows; false: not understood. The set keeps what they point to.
bool blob_column(const LeafSpec& leaf, PyObject* value, ColumnSet* set);

}  // namespace contig
