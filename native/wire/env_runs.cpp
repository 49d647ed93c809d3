#include "native/wire/env_runs.h"

namespace contig {

const std::vector<WireRun>& EnvRuns::tell(uint64_t n, const int64_t* envs, const Marks& marks,
                                          int64_t next_id, bool with_fields) {
  const uint32_t fields = with_fields ? 1 : 0;
  prepare(0);
  add_rows(0, n, envs, marks, Continue::if_open);
  told_.clear();
  for (const Run& run : runs_) {  // one for each row
    const auto made = static_cast<int64_t>((static_cast<uint64_t>(next_id) + told_.size()) &
                                           static_cast<uint64_t>(INT64_MAX));
    const int64_t id = run.starts ? made : static_cast<int64_t>(run.track->ordinal);
    const uint64_t named = marks.id ? kRowIds | (run.starts ? kStarts : 0) : 0;
    const uint64_t flags = run.flags | fields * kHasFields | named;
    told_.push_back(WireRun{1, static_cast<uint32_t>(flags), id, run.version, 0, fields});
  }
  return told_;
}

void EnvRuns::commit(uint64_t ended) {
  if (!runs_.empty()) runs_.back().flags |= ended & kEnded;
  for (size_t i = 0; i < runs_.size(); ++i) {
    Track& track = *runs_[i].track;
    track.ordinal = static_cast<uint64_t>(told_[i].traj_id);
    track.flags = static_cast<uint32_t>(runs_[i].flags & kFlagMask);
    track.last_entry = 0;  // no index here that it could be gone from
    track.known = true;
  }
}

}  // namespace contig
