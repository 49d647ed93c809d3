#include "native/tape/writer.h"

#include <cstring>

namespace contig {

namespace {
constexpr uint64_t kEnvs = uint64_t{1} << 32;  // of an `Open`: more than there are lanes
}  // namespace

void Writer::start(const Rows& rows) {
  rows_ = rows;
  prepare(tape_.header().index_tail.load(std::memory_order_acquire));
}

void Writer::add_run(Slot& slot, uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                     bool starts) {
  Run run{&slot.track, n, told.flags, starts, 0, told.traj_id, told.version};
  for (uint64_t row = from; row < from + n; ++row) run.reward += marks.reward.sum(row);
  slot.stamp = stamp_;
  slot.ended = (told.flags & kEnded) != 0;
  runs_.push_back(run);
}

void Writer::add_whole(uint64_t from, uint64_t n, const Marks& marks, const Told& told) {
  // No lane goes on from it, and none before it goes on in it.
  Slot& slot = by_id_[Key{kNone, 0}];
  add_run(slot, from, n, marks, Told{told.flags | kBegins, told.traj_id, told.version}, true);
  slot.ended = true;
}

void Writer::add_part(uint64_t from, uint64_t n, const Marks& marks, const Told& told,
                      uint64_t last_entry) {
  Slot& slot = by_id_[Key{kNone - 1, told.traj_id}];
  const bool begins = (told.flags & kBegins) != 0;
  // Also behind a done row: where ids alone decide, that is no end.
  const bool goes_on = !begins && (known(slot) || resume(&slot, told.traj_id, last_entry));
  add_run(slot, from, n, marks, told, !goes_on);
}

bool Writer::resume(Slot* slot, int64_t traj_id, uint64_t last_entry) const {
  const Header& h = tape_.header();
  const uint64_t bound = h.index_head.load(std::memory_order_relaxed);
  using W = EntryWords;
  uint64_t w[W::count];
  if (traj_id == -1) return false;  // it names none: the entry may be one that a lane goes on with
  if (slot->stamp == stamp_ || slot->track.known || last_entry >= bound) return false;
  if (tape_.read_entry_words(last_entry, h.head.load(std::memory_order_relaxed), w) !=
      Tape::Read::ok)
    return false;
  const uint64_t sf = w[W::steps_flags];
  if (static_cast<int64_t>(w[W::traj_id]) != traj_id || (sf & (kEnded | kCut)) != 0) return false;
  slot->track.last_entry = last_entry;
  slot->track.ordinal = w[W::ordinal];
  slot->track.steps = w[W::before] + (sf >> kFlagBits);
  slot->track.flags = sf & kFlagMask;
  std::memcpy(&slot->track.ret, &w[W::ret], sizeof(double));
  slot->track.known = true;
  return true;
}

uint64_t Writer::commit(const Sender& sender, bool stored) {
  // A checkpoint was loaded since: entry numbers and steps are those of other trajectories.
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
  Append a;
  a.rows = rows_;
  a.runs = runs_.data();
  a.n_runs = runs_.size();
  a.writer = id_;
  a.producer = sender.producer;
  a.producer_seq = sender.seq;
  a.producer_before = sender.before;
  a.stored = stored;
  return tape_.append(a);
}

void Writer::restart(uint64_t id) {
  id_ = id;
  ++stamp_;
  const auto let_go = [this](Slot& slot) {
    const bool orphan = open(slot) || (slot.orphan && !slot.track.known);
    slot = Slot{};
    slot.orphan = orphan;
  };
  for (Slot& slot : lanes_) let_go(slot);
  for (Slot& slot : envs_) let_go(slot);
  for (auto& item : by_id_) let_go(item.second);
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
