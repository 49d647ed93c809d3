// Frames of compact rows once more with whole records: for a server that came back and stores its
// observations in another way, or does not know compact rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "native/tape/shared_form.h"
#include "native/wire/out_frame.h"

namespace contig {

// Records as they were packed from.
struct WholeRecords {
  uint64_t size;
  const std::vector<uint64_t>& variable;  // where they have positions of leaves of any size
};

// The same items, in as many frames as they need if one is not to have more than `frame_bytes`
// behind its header, unless it has one item only. Sealed.
std::vector<std::shared_ptr<OutFrame>> whole_frames(const OutFrame& frame, const SharedForm& form,
                                                    const WholeRecords& records,
                                                    uint64_t frame_bytes);

}  // namespace contig
