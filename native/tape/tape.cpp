// Appending to a tape, and repairing what a killed append left.
#include "native/tape/tape.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "native/kernels/copy.h"
#include "native/sys/wait.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

uint64_t bits_of(double x) {
  uint64_t u;
  std::memcpy(&u, &x, 8);
  return u;
}

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}
}  // namespace

Busy::Busy(uint64_t holder, double timeout_s)
    : std::runtime_error("the tape's lock was held for more than " + std::to_string(timeout_s) +
                         " s by process " + std::to_string(holder) +
                         "; it may be stopped (SIGSTOP, a debugger). Continue or kill it."),
      pid(holder) {}

// What an append was about to change is only put back if the index then ends where the rows do.
void Tape::check_undo(uint64_t grown) const {
  const uint64_t end = h_->undo_index_head.load(relaxed),
                 producer = h_->undo_producer.load(relaxed);
  bool sound = (grown == kNone || grown + 1 == end) && (producer == kNone || producer < kProducers);
  if (const uint64_t oldest = h_->index_tail.load(relaxed); end > oldest && h_->row_crc == 0) {
    const Entry& newest = entry(end - 1);
    const Word& steps_flags = grown != kNone ? h_->undo_steps_flags : newest.steps_flags;
    sound =
        sound && end - oldest <= h_->capacity &&
        newest.first.load(relaxed) + run_rows(steps_flags.load(relaxed)) == h_->head.load(relaxed);
  }
  if (!sound) throw Damaged("what its last append was about to change cannot be");
}

void Tape::repair() {
  if (h_->restores.load(acquire) % 2 != 0) {  // killed while it took a checkpoint in: empty
    const uint64_t head = std::max(h_->head.load(relaxed), h_->tail.load(relaxed));
    const uint64_t index_head =
        std::max(h_->index_head.load(relaxed), h_->index_tail.load(relaxed));
    h_->undo_head.store(kNone, release);
    h_->tail.store(head, release);
    h_->head.store(head, release);
    h_->index_head.store(index_head, release);
    h_->index_tail.store(index_head, release);
    h_->restores.fetch_add(1, std::memory_order_seq_cst);
  }
  if (h_->fields_pending.load(relaxed) != 0) repair_fields();
  if (h_->undo_head.load(acquire) != h_->head.load(relaxed)) return;
  const uint64_t grown = h_->undo_entry.load(relaxed);
  check_undo(grown);
  if (grown != kNone) {
    Entry& e = entry(grown);
    e.ret.store(h_->undo_ret.load(relaxed), release);
    e.steps_flags.store(h_->undo_steps_flags.load(relaxed) | kCut, release);
  }
  const uint64_t producer = h_->undo_producer.load(relaxed);
  if (producer != kNone)
    producers_[producer].seq.store(h_->undo_producer_seq.load(relaxed), release);
  h_->trajectories.store(h_->undo_trajectories.load(relaxed), release);
  h_->index_head.store(h_->undo_index_head.load(relaxed), release);
  h_->undo_head.store(kNone, release);
}

void Tape::copy_in(const Rows& rows, uint64_t skip, uint64_t seq) {
  const uint64_t n = rows.n - skip, per_extent = mask_ + 1;
  uint64_t done = 0;
  while (done < n) {
    auto* dst = const_cast<uint8_t*>(row(seq + done));
    const uint64_t chunk = std::min(n - done, per_extent - ((seq + done) & mask_));
    const uint64_t from = skip + done;
    if (rows.records != nullptr && stride_ == record_size_) {
      store_bytes(dst, rows.records + from * record_size_, chunk * record_size_);
    } else if (rows.records != nullptr) {
      for (uint64_t i = 0; i < chunk; ++i, dst += stride_)
        store_bytes(dst, rows.records + (from + i) * record_size_, record_size_);
    } else {
      for (uint64_t i = 0; i < chunk; ++i, dst += stride_)
        for (size_t c = 0; c < rows.n_columns; ++c) {
          const Column& col = rows.columns[c];
          store_bytes(dst + col.offset, col.data + (from + i) * col.stride, col.bytes);
        }
    }
    done += chunk;
  }
}

uint64_t Tape::seen(uint64_t producer, uint64_t next) {
  if (producers_.find(producer) == kProducers) return next;
  return producers_[producers_.take(producer, next)].seq.load(relaxed);
}

void Tape::skip(uint64_t producer, uint64_t next) {
  const uint64_t slot = producers_.find(producer);
  if (slot == kProducers) return;  // it is not known, and goes on where it says
  Producer& p = producers_[slot];
  if (p.seq.load(relaxed) < next) p.seq.store(next, release);
}

void Tape::recall(uint64_t producer, uint64_t seq) {
  producers_.take(producer, seq);
  producers_.leave(producer);
}

Tape::Room Tape::find_room(const Append& a) const {
  Room r;
  r.head = h_->head.load(relaxed);
  r.index_head = h_->index_head.load(relaxed);
  r.index_tail = h_->index_tail.load(relaxed);
  const uint64_t capacity = h_->capacity;

  // Of more rows than fit, the leading ones get no seq.
  r.skip = a.rows.n > capacity ? a.rows.n - capacity : 0;
  if (h_->blob_leaves != 0) {
    r.blobs = a.stored ? a.blob_room : blob_room(a.rows);
    r.skip = r.blobs.skip;
  }
  r.skip_in_run = r.skip;
  while (r.first_run < a.n_runs && a.runs[r.first_run].rows <= r.skip_in_run)
    r.skip_in_run -= a.runs[r.first_run++].rows;
  r.new_head = r.head + a.rows.n - r.skip;
  r.new_runs = a.n_runs - r.first_run;

  // What gives way.
  r.tail = std::max(h_->tail.load(relaxed), r.new_head > capacity ? r.new_head - capacity : 0);
  if (h_->blob_leaves != 0) {
    const uint64_t end = h_->blob_head.load(relaxed) + r.blobs.bytes;
    // Of rows in files, those in the way are gone already.
    if (!a.stored && end > ring_.size) r.tail = first_beyond(end - ring_.size, r.tail, r.head);
    // Rows before those that get no seq go first: a trajectory that goes on has no hole.
    if (r.skip != 0) r.tail = r.head;
  }
  while (r.index_tail < r.index_head) {
    const Entry& oldest = entry(r.index_tail);
    const uint64_t end = oldest.first.load(relaxed) + run_rows(oldest.steps_flags.load(relaxed));
    if (end > r.tail && r.index_head + r.new_runs - r.index_tail <= capacity) break;
    r.tail = std::max(r.tail, std::min(end, r.head));
    ++r.index_tail;
  }
  return r;
}

uint64_t Tape::reserve(const Append& a, const Room& r) {
  if (!a.stored) reserve_data(r.head, r.new_head);
  if (r.blobs.bytes > 0 && !a.stored) reserve_blobs(h_->blob_head.load(relaxed) + r.blobs.bytes);
  if (has_slots()) reserve_slots(r.tail, r.head);
  reserve_chunks(r.index_tail, r.index_head + r.new_runs);
  const uint64_t first_stamp = next_stamp(r.index_head);
  if (first_stamp > 0)  // in a chunk that has its place already
    reserve_stamps(map_[slot_of_chunk(r.index_head >> chunk_shift_)].load(relaxed),
                   first_stamp + 1);
  if (h_->trajectories.load(relaxed) + r.new_runs > kMostOrdinals)
    throw std::invalid_argument("append: a tape has no more than 2^57 trajectories");
  return first_stamp;
}

bool Tape::grows_newest(const Append& a, const Room& r) const {
  const Run& lead = a.runs[r.first_run];
  const Track& track = *lead.track;
  if (r.skip != 0 || lead.starts || !track.known || r.index_head <= r.index_tail ||
      track.last_entry != r.index_head - 1)
    return false;
  // An entry's fields are those it was committed with, so that there is nothing to undo.
  if (lead.field_mask != 0 && changes_fields(r.index_head - 1, lead)) return false;
  const Entry& newest = entry(r.index_head - 1);
  const uint64_t sf = newest.steps_flags.load(relaxed);
  return newest.first.load(relaxed) + run_rows(sf) == r.head && (sf & kCut) == 0 &&
         run_rows(sf) + lead.rows <= kMostRunRows &&
         static_cast<int64_t>(newest.version.load(relaxed)) == lead.version;
}

void Tape::write_undo(const Append& a, const Room& r, bool grows, uint64_t producer) {
  h_->undo_index_head.store(r.index_head, relaxed);
  h_->undo_trajectories.store(h_->trajectories.load(relaxed), relaxed);
  h_->undo_entry.store(grows ? r.index_head - 1 : kNone, relaxed);
  if (grows) {
    h_->undo_steps_flags.store(entry(r.index_head - 1).steps_flags.load(relaxed), relaxed);
    h_->undo_ret.store(entry(r.index_head - 1).ret.load(relaxed), relaxed);
  }
  h_->undo_producer.store(a.producer != 0 ? producer : kNone, relaxed);
  if (a.producer != 0) {
    h_->undo_producer_seq.store(producers_[producer].seq.load(relaxed), relaxed);
  }
  h_->undo_head.store(r.head, release);
  std::atomic_thread_fence(release);
}

uint64_t Tape::append(const Append& a) {
  check_open();
  check_bounds();
  if (a.rows.compact != nullptr && !a.stored && !has_slots())
    throw std::invalid_argument("append: rows with slots, for a tape without any");
  const Room r = find_room(a);
  if (has_slots()) plan_slots(a, r);
  // Everything that can fail comes before anything changes.
  const uint64_t first_stamp = reserve(a, r);
  const uint64_t producer = a.producer != 0 ? producers_.take(a.producer, a.producer_before) : 0;

  save_fields(r.index_tail);
  // Tail, then the index, then a full fence before the first overwriting store.
  h_->tail.store(r.tail, release);
  h_->index_tail.store(r.index_tail, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  map_chunks(r.index_tail, r.index_head + r.new_runs);

  const uint64_t blob_head = h_->blob_head.load(relaxed);
  if (r.blobs.bytes > 0) h_->blob_head.store(blob_head + r.blobs.bytes, release);
  if (has_slots()) {
    map_slots();
    give_slots();
    copy_slots_in(a.rows, r.skip, r.head);
    h_->slots_at.store(r.new_head, release);
  }
  if (!a.stored) {
    if (!has_slots()) copy_in(a.rows, r.skip, r.head);
    if (h_->blob_leaves != 0) copy_blobs_in(a.rows, r.blobs, blob_head, r.head);
  }

  const bool grows = grows_newest(a, r);
  write_undo(a, r, grows, producer);
  const uint64_t index_head = write_runs(a, r, grows, first_stamp);
  if (a.producer != 0) {
    Producer& p = producers_[producer];
    producers_.use(producer);
    p.seq.store(a.producer_seq, release);
  }
  h_->index_head.store(index_head, release);
  h_->head.store(r.new_head, release);

  h_->appends.fetch_add(1, relaxed);
  wake(h_->wake_word, h_->waiters);
  return r.head;
}

uint64_t Tape::write_runs(const Append& a, const Room& r, bool grows, uint64_t slot) {
  const uint64_t now = now_ns();
  uint64_t number = r.index_head, seq = r.head;
  for (size_t i = 0; i < a.n_runs; ++i) {
    const Run& run = a.runs[i];
    if (i < r.first_run) {  // dropped whole: only the track moves on
      if (run.starts) *run.track = Track{};
      run.track->steps += run.rows;
      run.track->ret += run.reward;
      run.track->flags = static_cast<uint32_t>(run.flags);
      run.track->known = true;
      if (fields_.size() != 0) take_fields(run, r.index_tail);
      run.track->last_entry = kNone;
      run.track->slots.reset();
      continue;
    }
    const uint64_t dropped = i == r.first_run ? r.skip_in_run : 0;
    const uint64_t rows = run.rows - dropped;
    if (i == r.first_run && grows) {
      grow_newest(run, rows);
    } else {
      if ((number & chunk_mask_) == 0) slot = 0;
      if (slot == 0 || number == r.index_head) {
        Stamp& s = stamp(number, slot);
        s.writer.store(a.writer, relaxed);
        s.time_ns.store(now, relaxed);
      }
      const uint64_t lane = a.producer != 0 && run.lane <= kNamedLane ? run.lane : 0;
      write_run(number++, run, seq, rows, dropped, r.index_tail, slot, lane);
    }
    seq += rows;
    if (form_) keep_slots(run.track, seq - r.head - 1);
  }
  return number;
}

void Tape::grow_newest(const Run& run, uint64_t rows) {
  Track& t = *run.track;
  Entry& e = entry(t.last_entry);
  const uint64_t sf = e.steps_flags.load(relaxed);
  t.steps += rows;
  t.ret += run.reward;
  t.flags = static_cast<uint32_t>(run.flags);
  const uint64_t steps = run_rows(sf) + rows;
  const uint64_t kept = sf & (~uint64_t{0} << kLaneShift | kBegins);
  e.steps_flags.store(kept | steps << kFlagBits | run.flags, release);
  e.ret.store(bits_of(t.ret), release);
  if (fields_.size() != 0) keep_fields(&t);
}

void Tape::write_run(uint64_t number, const Run& run, uint64_t first, uint64_t rows,
                     uint64_t dropped, uint64_t index_tail, uint64_t stamp, uint64_t lane) {
  Track& t = *run.track;
  if (run.starts) t = Track{};
  // What is too far for a link is as good as evicted: a trajectory of which nothing is left.
  const bool near = t.last_entry != kNone && number - t.last_entry <= UINT32_MAX;
  const bool countable = t.steps + dropped < kMostBefore;
  const uint64_t before = countable ? t.steps + dropped : 1;
  const bool linked = near && countable && t.last_entry >= index_tail;
  uint64_t flags = run.flags;
  if (before > 0) flags &= ~static_cast<uint64_t>(kBegins);
  // Before it has another ordinal.
  if (fields_.size() != 0) fields_.fill(fields_slot(number), take_fields(run, index_tail));
  if (!linked) {
    t.ordinal = h_->trajectories.load(relaxed);
    h_->trajectories.store(t.ordinal + 1, release);
  }
  t.steps = before + rows;
  t.ret += run.reward;
  t.flags = static_cast<uint32_t>(run.flags);
  t.known = true;

  // Skip links as in a skew-binary list: any earlier run is O(log runs) away.
  uint64_t prev = 0, jump = 0, rank = 0;  // links are distances
  if (linked) {
    constexpr uint64_t mask = (uint64_t{1} << kRankBits) - 1;
    const auto skip_of = [&](uint64_t n) {
      return n - (entry(n).links.load(relaxed) & UINT32_MAX);
    };
    const auto rank_of = [&](uint64_t n) { return entry(n).ordinal_rank.load(relaxed) & mask; };
    prev = jump = number - t.last_entry;
    rank = 1;
    const uint64_t p = t.last_entry, pj = skip_of(p);
    if (pj != p && pj >= index_tail) {
      const uint64_t pjj = skip_of(pj), r = rank_of(p);
      if (pjj != pj && pjj >= index_tail && r != 0 && r == rank_of(pj) &&
          number - pjj <= UINT32_MAX) {
        jump = number - pjj;
        rank = r + 1;
      }
    }
  }
  Entry& e = entry(number);
  e.first.store(first, relaxed);
  e.steps_flags.store(lane << kLaneShift | rows << kFlagBits | flags, relaxed);
  e.ret.store(bits_of(t.ret), relaxed);
  e.version.store(static_cast<uint64_t>(run.version), relaxed);
  e.traj_id.store(static_cast<uint64_t>(run.traj_id), relaxed);
  e.links.store(prev << 32 | jump, relaxed);
  e.ordinal_rank.store(t.ordinal << kRankBits | rank, relaxed);
  e.before_stamp.store(before << kStampBits | stamp, relaxed);
  t.last_entry = number;
}

Hold::Hold(Tape& tape, double timeout_s) : tape_(tape) {
  Lock& lock = tape.header().lock;
  if (!lock_try(lock) && !lock_until(lock, timeout_s)) throw Busy(lock_holder(lock), timeout_s);
  try {
    tape.repair();
  } catch (...) {
    lock_release(lock);
    throw;
  }
}

Hold::~Hold() { lock_release(tape_.header().lock); }

}  // namespace contig
