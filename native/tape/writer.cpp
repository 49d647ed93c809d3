#include "native/tape/writer.h"

#include <cstring>
#include <utility>

namespace contig {

namespace {
constexpr uint64_t kEnvs = uint64_t{1} << 32;  // of an `Open`: more than there are lanes
}  // namespace

void Writer::start(const Rows& rows) {
  rows_ = rows;
  prepare(tape_.header().index_tail.load(std::memory_order_acquire));
}

void Writer::add_told(Slot& slot, uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                      bool starts) {
  const uint64_t end = from + n, ended = told.flags & kEnded;
  const bool own_versions = told.version == -1 && marks.version;
  for (uint64_t row = from, until; row < end; row = until) {
    const int64_t version = own_versions ? marks.version.integer(row) : told.version;
    until = own_versions ? marks.version.next_other(version, row + 1, end) : end;
    const bool first = row == from;
    const uint64_t flags = (first ? told.flags & kBegins : 0) | (until == end ? ended : 0);
    Run run{&slot.track, until - row, flags, first && starts, 0, told.traj_id, version};
    run.reward = marks.reward.add_to(0, row, until);
    if (told.given) told.given.to(&run, 0, until - 1);
    runs_.push_back(run);
  }
  slot.stamp = stamp_;
  slot.ended = ended != 0;
}

void Writer::add_whole(uint64_t from, uint64_t n, const Marks& marks, const Told& told) {
  // No lane goes on from it, and none before it goes on in it.
  Slot& slot = by_id_[Key{kNone, 0}];
  const Told whole{told.flags | kBegins, told.traj_id, told.version, told.given};
  add_told(slot, from, n, marks, whole, true);
  slot.ended = true;
}

void Writer::add_part(uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                      uint64_t last_entry) {
  Slot& slot = by_id_[Key{kNone - 1, told.traj_id}];
  Told part = told;
  if ((told.flags & kRowIds) != 0 && marks.id) part.traj_id = marks.id.integer(from);
  const bool begins = (told.flags & (kBegins | kStarts)) != 0;
  // Also behind a done row: where ids alone decide, that is no end.
  const bool goes_on = !begins && (known(slot) || resume(&slot, part.traj_id, last_entry));
  add_told(slot, from, n, marks, part, !goes_on);
}

void Writer::give_fields(size_t first, const uint8_t* given, uint64_t size, uint64_t steps) {
  uint64_t rows = 0;
  for (size_t i = first; i < runs_.size(); ++i) {
    const uint8_t* own = given + (steps > 0 ? rows / steps : 0) * size;
    std::memcpy(&runs_[i].field_mask, own, sizeof runs_[i].field_mask);
    runs_[i].fields = own + sizeof runs_[i].field_mask;
    rows += runs_[i].rows;
  }
}

bool Writer::resume(Slot* slot, int64_t traj_id, uint64_t last_entry) const {
  if (traj_id == -1) return false;  // it names none: the entry may be one that a lane goes on with
  if (slot->stamp == stamp_ || slot->track.known) return false;
  Track track;
  int64_t found;
  if (!track_of(last_entry, &track, &found) || found != traj_id) return false;
  slot->track = std::move(track);
  return true;
}

// What a writer knows of a trajectory that goes on, from its last run on the tape.
bool Writer::track_of(uint64_t entry, Track* track, int64_t* traj_id) const {
  const Header& h = tape_.header();
  using W = EntryWords;
  uint64_t w[W::count];
  if (entry >= h.index_head.load(std::memory_order_relaxed)) return false;
  if (tape_.read_entry_words(entry, h.head.load(std::memory_order_relaxed), w) != Tape::Read::ok)
    return false;
  const uint64_t sf = w[W::steps_flags];
  if ((sf & (kEnded | kCut)) != 0) return false;
  *traj_id = static_cast<int64_t>(w[W::traj_id]);
  track->last_entry = entry;
  track->ordinal = w[W::ordinal];
  track->steps = w[W::before] + (sf >> kFlagBits);
  track->flags = static_cast<uint32_t>(sf & kFlagMask);
  std::memcpy(&track->ret, &w[W::ret], sizeof(double));
  track->known = true;
  if (tape_.fields_size() != 0) tape_.read_fields(entry, track->record(tape_.fields().room()));
  return true;
}

bool Writer::adopt(uint64_t env, uint64_t entry) {
  Track track;
  int64_t traj_id;
  if (!track_of(entry, &track, &traj_id)) return false;
  if (envs_.size() <= env) envs_.resize(env + 1);
  envs_[env] = Slot{};
  envs_[env].track = std::move(track);
  return true;
}

// A checkpoint was loaded since: entry numbers and steps are those of other trajectories.
void Writer::forget_restored() {
  const uint64_t restores = tape_.header().restores.load(std::memory_order_relaxed);
  if (restores != restores_) {
    restores_ = restores;
    for (Slot& slot : lanes_) slot.track = Track{};
    for (Slot& slot : envs_) slot.track = Track{};
    for (auto& item : by_id_) item.second.track = Track{};
    for (Run& run : runs_) {
      if (!run.starts) run.flags &= ~kBegins;
    }
  }
}

Append Writer::append_of(const Sender& sender, bool stored, const BlobRoom& room) {
  Append a;
  a.rows = rows_;
  a.runs = runs_.data();
  a.n_runs = runs_.size();
  a.writer = id_;
  a.producer = sender.producer;
  a.producer_seq = sender.seq;
  a.producer_before = sender.before;
  a.stored = stored;
  a.blob_room = room;
  return a;
}

const SlotPlan& Writer::plan_stored(const BlobRoom& room, const SlotReader& older) {
  forget_restored();
  return tape_.plan_stored(append_of({}, true, room), older);
}

uint64_t Writer::commit(const Sender& sender, bool stored, const BlobRoom& room) {
  forget_restored();
  const uint64_t first = tape_.append(append_of(sender, stored, room));
  kept_ = tape_.header().head.load(std::memory_order_relaxed) - first;
  return first;
}

void Writer::restart(uint64_t id) {
  id_ = id;
  let_go();
}

std::vector<Writer::Open> Writer::open_trajectories() const {
  std::vector<Open> out;
  const auto held = [this](const Slot& slot) {
    return open(slot) || (slot.orphan && !slot.track.known);
  };
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    if (held(lanes_[lane])) out.push_back(Open{lane, -1, false});
  for (size_t env = 0; env < envs_.size(); ++env)
    if (held(envs_[env])) out.push_back(Open{kEnvs + env, -1, false});
  for (const auto& item : by_id_)
    if (held(item.second)) out.push_back(Open{item.first.lane, item.first.id, true});
  return out;
}

void Writer::orphan(const Open& open) {
  if (open.by_id) {
    by_id_[Key{open.lane, open.id}].orphan = true;
    return;
  }
  std::deque<Slot>& slots = open.lane < kEnvs ? lanes_ : envs_;
  const uint64_t lane = open.lane % kEnvs;
  if (slots.size() <= lane) slots.resize(lane + 1);
  slots[lane].orphan = true;
}

}  // namespace contig
