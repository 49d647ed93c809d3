// Receiving frames natively, for every table.
#pragma once

#include "handles.h"
#include "native/wire/receive_loop.h"
#include "no_gil.h"

namespace contig {

// Seconds that a receiving loop waits for a table's lock at most: who holds it longer may be
// stopped.
constexpr double kIntakeLock = 0.1;

// As many frames as can be taken in without the interpreter: (bytes received, frames, items, rows,
// items of them in the frame at the front, seen).
nb::tuple receive(Intake& table, Receiver& in, int socket, uint64_t next, double patience_s);

// Leaves of any size as Python says it: offset, bytes of an element, content.
std::vector<VariableLeaf> variable_from(const Seqs& leaves);

}  // namespace contig
