#include "native/tape/writer.h"

#include <cstring>
#include <utility>

namespace contig {

namespace {
constexpr uint64_t kEnvs = uint64_t{1} << 32;  // of an `Open`: more than there are lanes
// Of a `Key`, for trajectories that the sender names: by its name, and, of those that were taken up
// from the tape, by the id that the index has.
constexpr uint64_t kNamed = kNone - 1, kTaken = kNone - 2;
}  // namespace

void Writer::start(const Rows& rows) {
  rows_ = rows;
  prepare(tape_.header().index_tail.load(std::memory_order_acquire));
}

void Writer::add_told(Slot& slot, uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                      bool starts, uint64_t lane) {
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
    run.lane = lane;
    runs_.push_back(run);
  }
  slot.stamp = stamp_;
  slot.ended = ended != 0;
}

void Writer::add_whole(uint64_t from, uint64_t n, const Marks& marks, const Told& told) {
  // No lane goes on from it, and none before it goes on in it.
  Slot& slot = by_id_[Key{kNone, 0}];
  const Told whole{told.flags | kBegins, told.traj_id, told.version, told.given};
  add_told(slot, from, n, marks, whole, true, 0);
  slot.ended = true;
}

void Writer::add_part(uint64_t from, uint64_t n, const Marks& marks, const Told& told) {
  Slot& slot = by_id_[Key{kNamed, told.traj_id}];
  Told part = told;
  if ((told.flags & kRowIds) != 0 && marks.id) part.traj_id = marks.id.integer(from);
  const bool begins = (told.flags & (kBegins | kStarts)) != 0;
  // Also behind a done row: where ids alone decide, that is no end.
  const bool goes_on = !begins && (known(slot) || go_on_with_taken(slot, part.traj_id));
  add_told(slot, from, n, marks, part, !goes_on, kNamedLane);
}

bool Writer::go_on_with_taken(Slot& slot, int64_t traj_id) {
  const auto taken = by_id_.find(Key{kTaken, traj_id});
  if (taken == by_id_.end() || !taken->second.track.known) return false;
  slot.track = std::move(taken->second.track);
  by_id_.erase(taken);
  return true;
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

bool Writer::read_run(uint64_t entry, uint64_t* words) const {
  const Header& h = tape_.header();
  if (entry >= h.index_head.load(std::memory_order_relaxed)) return false;
  const uint64_t head = h.head.load(std::memory_order_relaxed);
  if (tape_.read_entry_words(entry, head, words) != Tape::Read::ok) return false;
  return (words[EntryWords::steps_flags] & kCut) == 0;
}

// What a writer knows of a trajectory that goes on, from its last run on the tape.
Track Writer::track_of(const uint64_t* w) const {
  using W = EntryWords;
  Track track;
  track.last_entry = w[W::number];
  track.ordinal = w[W::ordinal];
  track.steps = w[W::before] + run_rows(w[W::steps_flags]);
  track.flags = static_cast<uint32_t>(w[W::steps_flags] & kFlagMask);
  std::memcpy(&track.ret, &w[W::ret], sizeof(double));
  track.known = true;
  if (tape_.fields_size() != 0)
    tape_.read_fields(w[W::number], track.record(tape_.fields().room()));
  return track;
}

bool Writer::adopt(uint64_t env, uint64_t entry) {
  uint64_t words[EntryWords::count];
  if (!read_run(entry, words) || (words[EntryWords::steps_flags] & kEnded) != 0) return false;
  if (envs_.size() <= env) envs_.resize(env + 1);
  envs_[env] = Slot{};
  envs_[env].track = track_of(words);
  return true;
}

bool Writer::take_up(uint64_t entry, bool by_id) {
  using W = EntryWords;
  uint64_t words[W::count];
  if (!read_run(entry, words) || words[W::writer] != id_) return false;
  const uint64_t lane = lane_of(words[W::steps_flags]);
  const auto traj_id = static_cast<int64_t>(words[W::traj_id]);
  const auto at = [](std::deque<Slot>& slots, uint64_t number) -> Slot& {
    if (slots.size() <= number) slots.resize(number + 1);
    return slots[number];
  };
  if (lane == 0) return false;
  Slot& slot = lane == kNamedLane ? by_id_[Key{kTaken, traj_id}]
               : by_id            ? by_id_[Key{lane - kFirstLane, traj_id}]
               : lane < kFirstEnv ? at(lanes_, lane - kFirstLane)
                                  : at(envs_, lane - kFirstEnv);
  slot = Slot{};
  slot.track = track_of(words);
  return true;
}

// A checkpoint was loaded since: entry numbers and steps are those of other trajectories.
void Writer::forget_restored() {
  const uint64_t restores = tape_.header().restores.load(std::memory_order_relaxed);
  if (restores != restores_) {
    restores_ = restores;
    missed_ = true;
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
