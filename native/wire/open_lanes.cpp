#include "native/wire/open_lanes.h"

namespace contig {

namespace {
// Trajectories that never end are remembered for so many items, if there are very many of them.
constexpr uint64_t kRemembered = 1u << 20;
}  // namespace

Continue rule_of(const WireRun& run) {
  if ((run.flags & kTold) != 0) return Continue::told;
  return (run.flags & kGoesOn) != 0 ? Continue::if_open : Continue::no;
}

bool is_step(const WireRun& run) {
  return rule_of(run) == Continue::if_open && run.lanes > 1 && run.lanes == run.rows;
}

void OpenLanes::tell(const Marks& marks, WireRun* run) {
  prepare(items_ > kRemembered ? items_ - kRemembered : 0);
  if (is_step(*run))
    add_rows(0, run->rows, nullptr, marks, rule_of(*run));
  else
    add_lanes(0, run->rows, run->lanes, marks, rule_of(*run));
  const uint64_t steps = run->rows / run->lanes;
  uint64_t lanes = 0, trajectories = 0, row = 0;
  bool come_back = false;  // to an earlier item's trajectory, behind rows of another one
  seen_.clear();
  for (const Run& part : runs_) {
    const bool leads = row % steps == 0;
    // Told to go on with what nobody holds is no beginning either.
    const bool told = !marks.id && rule_of(*run) == Continue::told && (part.flags & kBegins) == 0;
    const bool goes_on = !part.starts || told;
    if (leads && goes_on) lanes |= uint64_t{1} << (row / steps % 64);
    if (marks.id) {
      const size_t number = seen_.size();
      if (seen_.insert(part.track).second && goes_on) {
        trajectories |= uint64_t{1} << (number % 64);
        come_back = come_back || !leads;
      }
    }
    row += part.rows;
  }
  if (come_back) run->flags |= kSeveral;
  run->traj_id = static_cast<int64_t>(come_back ? trajectories : lanes);
  const Run& first = runs_.front();
  may_grow_ = !come_back && (!marks.id || first.starts || first.track == last_);
}

void OpenLanes::commit() {
  ++items_;
  for (const Run& run : runs_) {
    run.track->flags = static_cast<uint32_t>(run.flags);
    run.track->last_entry = items_;  // no index here: the item instead
    run.track->known = true;
  }
  last_ = runs_.back().track;
}

}  // namespace contig
