#include "native/tape/trajectories.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace contig {

namespace {
constexpr size_t kOpenIds = 1u << 20;

template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float v;
  std::memcpy(&v, &wide, sizeof(v));
  return v;
}

float from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float v;
  if (exponent == 31)
    v = fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                      : std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    v = std::ldexp(static_cast<float>(fraction), -24);
  else
    v = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -v : v;
}

template <class F>
auto visit(const Mark& m, const uint8_t* p, F f) {
  switch (m.kind) {
    case Mark::i8:
      return f(load<int8_t>(p));
    case Mark::i16:
      return f(load<int16_t>(p));
    case Mark::u16:
      return f(load<uint16_t>(p));
    case Mark::i32:
      return f(load<int32_t>(p));
    case Mark::u32:
      return f(load<uint32_t>(p));
    case Mark::i64:
      return f(load<int64_t>(p));
    case Mark::u64:
      return f(load<uint64_t>(p));
    case Mark::f16:
      return f(from_f16(load<uint16_t>(p)));
    case Mark::bf16:
      return f(from_bf16(load<uint16_t>(p)));
    case Mark::f32:
      return f(load<float>(p));
    case Mark::f64:
      return f(load<double>(p));
    default:  // b1, u8
      return f(load<uint8_t>(p));
  }
}

size_t item_bytes(Mark::Kind kind) {
  switch (kind) {
    case Mark::i16:
    case Mark::u16:
    case Mark::f16:
    case Mark::bf16:
      return 2;
    case Mark::i32:
    case Mark::u32:
    case Mark::f32:
      return 4;
    case Mark::i64:
    case Mark::u64:
    case Mark::f64:
      return 8;
    default:
      return 1;
  }
}
}  // namespace

bool Mark::truth(uint64_t row) const {
  return kind != none && visit(*this, data + row * stride, [](auto v) { return v != 0; });
}

int64_t Mark::integer(uint64_t row) const {
  return visit(*this, data + row * stride, [](auto v) { return static_cast<int64_t>(v); });
}

double Mark::sum(uint64_t row) const {
  if (kind == none) return std::numeric_limits<double>::quiet_NaN();
  const uint8_t* p = data + row * stride;
  double total = 0;
  for (size_t i = 0; i < count; ++i, p += item_bytes(kind))
    total += visit(*this, p, [](auto v) { return static_cast<double>(v); });
  return total;
}

namespace {
// Of an array of bytes, the first that is not zero, from `at` on; `end` if there is none.
uint64_t first_set(const uint8_t* bytes, uint64_t at, uint64_t end) {
  for (; at + 8 <= end && load<uint64_t>(bytes + at) == 0; at += 8) {
  }
  while (at < end && bytes[at] == 0) ++at;
  return at;
}
}  // namespace

uint64_t Mark::next_true(uint64_t row, uint64_t end) const {
  if (kind == none) return end;
  if (stride == 1) return first_set(data, row, end);
  while (row < end && !truth(row)) ++row;
  return row;
}

uint64_t Mark::next_other(int64_t value, uint64_t row, uint64_t end) const {
  if (kind == none) return end;
  if (kind == i64) {
    while (row < end && load<int64_t>(data + row * stride) == value) ++row;
    return row;
  }
  while (row < end && integer(row) == value) ++row;
  return row;
}

double Mark::add_to(double total, uint64_t row, uint64_t end) const {
  if (kind == f32 && count == 1) {
    for (; row < end; ++row) total += static_cast<double>(load<float>(data + row * stride));
    return total;
  }
  for (; row < end; ++row) total += sum(row);
  return total;
}

uint64_t Marks::quiet_until(uint64_t row, uint64_t end) const {
  end = std::min(end, row + 64);  // where much happens, no mark is read far ahead
  end = init.next_true(row, end);
  end = done.next_true(row, end);
  if (!done) {  // else it decides
    end = terminated.next_true(row, end);
    end = truncated.next_true(row, end);
  }
  if (id) end = id.next_other(id.integer(row - 1), row, end);
  if (version) end = version.next_other(version.integer(row - 1), row, end);
  return end;
}

bool Trajectories::ended(const Slot& slot) const {
  return slot.stamp == stamp_ ? slot.ended : (slot.track.flags & kEnded) != 0;
}

void Trajectories::prepare(uint64_t index_tail) {
  ++stamp_;
  runs_.clear();
  if (by_id_.size() > prune_at_) prune(index_tail);
}

void Trajectories::add_lanes(uint64_t from, uint64_t n, uint64_t lanes, const Marks& marks,
                             Continue rule, const Given& given, const SenderOpen& sender) {
  // The first slot is a single lane's: rows one after another never go on with one of several.
  const uint64_t first = !marks.id && lanes > 1 ? 1 : 0;
  if (!marks.id && lanes_.size() < first + lanes) lanes_.resize(first + lanes);
  const uint64_t steps = n / lanes;
  in_item_.clear();
  for (uint64_t lane = 0; lane < lanes; ++lane) {
    const size_t runs = runs_.size();
    const LaneRows rows{first + lane, from + lane * steps, steps, sender, sender.has(lane)};
    split_lane(marks, lanes_, rows, rule);
    if (given) give(runs, given, lane, from + lane * steps);
  }
}

void Trajectories::add_rows(uint64_t from, uint64_t n, const int64_t* envs, const Marks& marks,
                            Continue rule, const Given& given, const SenderOpen& sender) {
  in_item_.clear();
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t env = envs != nullptr ? static_cast<uint64_t>(envs[i]) : i;
    if (!marks.id && envs_.size() <= env) envs_.resize(env + 1);
    const size_t runs = runs_.size();
    const LaneRows rows{env, from + i, 1, sender, sender.has(i)};
    split_lane(marks, envs_, rows, rule);
    if (given) give(runs, given, i, from + i);
  }
}

void Trajectories::give(size_t first_run, const Given& given, uint64_t lane, uint64_t row) {
  for (size_t i = first_run; i < runs_.size(); ++i) {
    row += runs_[i].rows;
    given.to(&runs_[i], lane, row - 1);
  }
}

void Trajectories::split_lane(const Marks& marks, std::deque<Slot>& slots, const LaneRows& rows,
                              Continue rule) {
  const auto [lane, from, steps, sender, leads_open] = rows;
  const uint64_t lane_tag = lane + (&slots == &envs_ && !marks.id ? kFirstEnv : kFirstLane);
  Slot* slot = marks.id ? nullptr : &slots[lane];
  int64_t id = -1, version = -1;
  for (uint64_t t = 0; t < steps; ++t) {
    const uint64_t row = from + t;
    const bool init = marks.init.truth(row);
    const int64_t row_version = marks.version ? marks.version.integer(row) : -1;
    bool new_run = t == 0 || row_version != version;
    if (marks.id) {
      const int64_t row_id = marks.id.integer(row);
      if (slot == nullptr || row_id != id) {
        id = row_id;
        slot = &by_id_[Key{lane, id}];
        new_run = true;
      }
    }
    // Where a trajectory starts: an unknown id, after a done row, at is_init.
    const bool was_open = open(*slot), after_end = ended(*slot);
    bool starts, begins;
    if (marks.id && marks.id_alone) {
      starts = !was_open && !after_end;
      begins = starts && (!marks.init || init);
    } else {
      starts = !was_open || init;
      if (t == 0 && !marks.id && was_open && rule == Continue::no) starts = true;
      begins = starts && (!marks.init || init || after_end);
      // Told to continue what this writer does not hold: it is no beginning.
      const bool told = t == 0 && !marks.id && rule == Continue::told && !sender.is_known;
      if (told && !was_open && !after_end && !init) begins = false;
    }
    bool is_open = t == 0 && leads_open;
    if (sender.by_trajectory) {
      const size_t number = in_item_.size();
      is_open = in_item_.insert(slot).second && sender.has(number);
    }
    // Open for the sender and unknown here: its beginning is on another tape, or evicted.
    if (starts && is_open && missed_ && !known(*slot)) begins = false;
    if (slot->orphan && slot->stamp != stamp_ && !slot->track.known && !init) begins = false;
    if (starts || new_run) {
      Run run{&slot->track, 0, begins ? kBegins : uint64_t{0}, starts, 0, id, row_version};
      run.lane = lane_tag;
      runs_.push_back(run);
      version = row_version;
    }
    Run& run = runs_.back();
    run.rows += 1;
    run.reward += marks.reward.sum(row);
    uint64_t end = (marks.terminated.truth(row) ? kTerminated : uint64_t{0}) |
                   (marks.truncated.truth(row) ? kTruncated : uint64_t{0});
    if (marks.done) {  // it decides; without it, either of the others does
      if (!marks.done.truth(row))
        end = 0;
      else if (end == 0)
        end = marks.terminated || marks.truncated ? kTruncated : kTerminated;
    }
    run.flags = (run.flags & kBegins) | end;
    slot->stamp = stamp_;
    slot->ended = end != 0;
    if (end != 0 || t + 1 == steps) continue;
    // Rows of which no mark says anything only make the run longer.
    const uint64_t until = marks.quiet_until(row + 1, from + steps);
    run.rows += until - row - 1;
    run.reward = marks.reward.add_to(run.reward, row + 1, until);
    t += until - row - 1;
  }
}

size_t Trajectories::bytes() const {
  // A node of the map has its hash and the next one's address beside it.
  constexpr size_t node = sizeof(std::pair<const Key, Slot>) + 2 * sizeof(void*);
  return lanes_.size() * sizeof(Slot) + by_id_.size() * node +
         by_id_.bucket_count() * sizeof(void*);
}

void Trajectories::let_go() {
  ++stamp_;
  const auto release = [this](Slot& slot) {
    const bool orphan = open(slot) || (slot.orphan && !slot.track.known);
    slot = Slot{};
    slot.orphan = orphan;
  };
  for (Slot& slot : lanes_) release(slot);
  for (Slot& slot : envs_) release(slot);
  for (auto& item : by_id_) release(item.second);
}

void Trajectories::prune(uint64_t index_tail) {
  // Ids that ended, and, if there are very many that never did, those of which no row is left. An
  // open one is kept as long as possible: forgotten, it would seem to begin when it goes on.
  const bool many = by_id_.size() > kOpenIds;
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    const Track& track = it->second.track;
    const bool gone = track.last_entry == kNone || track.last_entry < index_tail;
    if ((track.flags & kEnded) != 0 || (many && gone))
      it = by_id_.erase(it);
    else
      ++it;
  }
  prune_at_ = by_id_.size() * 2 + 1024;
}

}  // namespace contig
