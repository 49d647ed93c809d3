#include "tape.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "copy.h"
#include "wait.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kExtentBytes = 4u << 20;
constexpr uint64_t kIndexChunk = 8192;  // entries reserved, and given back, at a time

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

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

void allocate(int fd, uint64_t offset, uint64_t bytes, const char* what) {
#if defined(__linux__)
  if (fd < 0) return;
  int rc;
  do {
    rc = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc != 0)
    throw NoSpace("cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " + what +
                  ": " + std::strerror(errno) +
                  "; nothing was written. Use a smaller capacity or a larger /dev/shm.");
#else
  (void)fd, (void)offset, (void)bytes, (void)what;
#endif
}
}  // namespace

Busy::Busy(uint64_t holder, double timeout_s)
    : std::runtime_error("the tape's lock was held for more than " + std::to_string(timeout_s) +
                         " s by process " + std::to_string(holder) +
                         "; it may be stopped (SIGSTOP, a debugger). Continue or kill it."),
      pid(holder) {}

uint64_t Tape::control_bytes(uint64_t capacity) {
  const uint64_t entries = capacity > kIndexChunk ? round_up(capacity, kIndexChunk) : capacity;
  const uint64_t index = round_up(sizeof(Header) + kProducers * sizeof(Producer), kPage);
  return round_up(index + entries * sizeof(Entry), kPage);
}

void Tape::format(uint8_t* control, uint64_t capacity) {
  auto* h = new (control) Header{};
  h->format = kFormat;
  h->capacity = capacity;
  h->index_capacity = capacity > kIndexChunk ? round_up(capacity, kIndexChunk) : capacity;
  h->index_chunk = std::min(capacity, kIndexChunk);
  h->producers_offset = sizeof(Header);
  h->index_offset = round_up(sizeof(Header) + kProducers * sizeof(Producer), kPage);
  h->control_bytes = control_bytes(capacity);
  lock_init(h->lock);
  h->undo_head.store(kNone);
  h->max_version.store(static_cast<uint64_t>(-1));
  h->magic = kMagic;
}

Tape::Tape(uint8_t* control, int fd) : h_(reinterpret_cast<Header*>(control)), fd_(fd) {
  if (h_->magic != kMagic) throw std::invalid_argument("not a contig tape (bad magic)");
  if (h_->format != kFormat)
    throw std::invalid_argument("tape format " + std::to_string(h_->format) +
                                ", this contig reads format " + std::to_string(kFormat));
  producers_ = reinterpret_cast<Producer*>(control + h_->producers_offset);
  index_ = reinterpret_cast<Entry*>(control + h_->index_offset);
}

bool Tape::publish(const char* schema, uint64_t schema_bytes, uint64_t record_size) {
  if (ready()) return false;
  uint64_t shift = 0;
  while ((uint64_t{1} << shift) < h_->capacity && (record_size << (shift + 1)) <= kExtentBytes)
    ++shift;
  const uint64_t rows = uint64_t{1} << shift;
  h_->schema_offset = h_->control_bytes;
  h_->schema_bytes = schema_bytes;
  h_->data_offset = round_up(h_->control_bytes + schema_bytes, kPage);
  h_->record_size = record_size;
  h_->extent_shift = shift;
  h_->n_extents = (h_->capacity + rows - 1) / rows;
#if defined(__linux__)
  if (fd_ >= 0) {
    if (ftruncate(fd_, static_cast<off_t>(round_up(file_bytes(), kPage))) != 0)
      throw NoSpace(std::string("cannot size the tape's file: ") + std::strerror(errno));
    allocate(fd_, h_->schema_offset, schema_bytes, "the schema");
    if (pwrite(fd_, schema, schema_bytes, static_cast<off_t>(h_->schema_offset)) !=
        static_cast<ssize_t>(schema_bytes))
      throw NoSpace(std::string("cannot write the tape's schema: ") + std::strerror(errno));
  }
#endif
  (void)schema;
  h_->ready.store(1, release);
  return true;
}

void Tape::attach_data(uint8_t* data) {
  record_size_ = h_->record_size;
  shift_ = h_->extent_shift;
  mask_ = (uint64_t{1} << shift_) - 1;
  n_extents_ = h_->n_extents;
  extents_.resize(n_extents_);
  for (uint64_t e = 0; e < n_extents_; ++e) extents_[e] = data + (e << shift_) * record_size_;
}

void Tape::reserve_data(uint64_t from, uint64_t to) {
  const uint64_t have = h_->reserved_extents.load(relaxed);
  if (have == n_extents_ || from == to) return;
  const uint64_t want = std::min(((to - 1) >> shift_) + 1, n_extents_);
  if (want <= have) return;
  const uint64_t bytes = record_size_ << shift_;
  if (bytes > 0)
    allocate(fd_, h_->data_offset + have * bytes, (want - have) * bytes, "rows");
  h_->reserved_extents.store(want, release);
}

void Tape::reserve_index(uint64_t to) {
  const uint64_t chunk = h_->index_chunk, cap = h_->index_capacity;
  uint64_t have = h_->reserved_index.load(relaxed);
  if (have >= cap && !punches()) return;
  while (have < to) {
    allocate(fd_, h_->index_offset + (have % cap) * sizeof(Entry), chunk * sizeof(Entry),
             "the index");
    have += chunk;
    h_->reserved_index.store(have, release);
  }
}

bool Tape::punches() const { return h_->index_capacity >= 4 * h_->index_chunk; }

void Tape::punch_index(uint64_t old_tail, uint64_t new_tail) {
#if defined(__linux__)
  const uint64_t chunk = h_->index_chunk, cap = h_->index_capacity;
  if (fd_ < 0 || !punches() || old_tail / chunk == new_tail / chunk) return;
  if ((h_->index_head.load(relaxed) - new_tail) * 2 > cap) return;  // it will be needed soon
  const uint64_t reserved = h_->reserved_index.load(relaxed);
  for (uint64_t c = old_tail / chunk; c < new_tail / chunk; ++c) {
    if (reserved > c * chunk + cap) continue;  // its place is in use again
    // Failing to give memory back is no error.
    (void)!fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(h_->index_offset + (c * chunk % cap) * sizeof(Entry)),
                     static_cast<off_t>(chunk * sizeof(Entry)));
  }
#else
  (void)old_tail, (void)new_tail;
#endif
}

void Tape::repair() {
  if (h_->undo_head.load(acquire) != h_->head.load(relaxed)) return;
  const uint64_t grown = h_->undo_entry.load(relaxed);
  if (grown != kNone) {
    Entry& e = entry(grown);
    e.ret.store(h_->undo_ret.load(relaxed), release);
    e.steps_flags.store(h_->undo_steps_flags.load(relaxed) | kCut, release);
  }
  const uint64_t producer = h_->undo_producer.load(relaxed);
  if (producer != kNone) {
    producers_[producer].seq.store(h_->undo_producer_seq.load(relaxed), release);
    producers_[producer].entry.store(h_->undo_producer_entry.load(relaxed), release);
  }
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
    if (rows.records != nullptr) {
      copy_bytes(dst, rows.records + from * record_size_, chunk * record_size_);
    } else {
      for (uint64_t i = 0; i < chunk; ++i, dst += record_size_)
        for (size_t c = 0; c < rows.n_columns; ++c) {
          const Column& col = rows.columns[c];
          copy_bytes(dst + col.offset, col.data + (from + i) * col.stride, col.bytes);
        }
    }
    done += chunk;
  }
}

size_t Tape::producer_slot(uint64_t id) {
  size_t oldest = 0;
  for (size_t i = 0; i < kProducers; ++i) {
    const uint64_t there = producers_[i].id.load(relaxed);
    if (there == id) return i;
    if (there == 0) {
      oldest = i;
      break;
    }
    if (producers_[i].used.load(relaxed) < producers_[oldest].used.load(relaxed)) oldest = i;
  }
  Producer& p = producers_[oldest];
  p.id.store(0, release);
  p.seq.store(0, release);
  p.entry.store(kNone, release);
  p.id.store(id, release);
  return oldest;
}

uint64_t Tape::append(const Append& a) {
  const uint64_t head = h_->head.load(relaxed), old_tail = h_->tail.load(relaxed);
  const uint64_t index_head = h_->index_head.load(relaxed);
  const uint64_t old_index_tail = h_->index_tail.load(relaxed);
  uint64_t index_tail = old_index_tail;
  const uint64_t capacity = h_->capacity;

  // Of more rows than fit, the leading ones get no seq.
  const uint64_t skip = a.rows.n > capacity ? a.rows.n - capacity : 0;
  const uint64_t n = a.rows.n - skip;
  size_t first_run = 0;
  uint64_t skip_in_run = skip;
  while (first_run < a.n_runs && a.runs[first_run].rows <= skip_in_run)
    skip_in_run -= a.runs[first_run++].rows;

  // Everything that can fail comes before anything changes.
  const uint64_t new_head = head + n;
  reserve_data(head, new_head);
  reserve_index(index_head + (a.n_runs - first_run));
  const size_t producer = a.producer != 0 ? producer_slot(a.producer) : 0;

  // Give way: tail, then the index, then a full fence before the first overwriting store.
  uint64_t tail = std::max(old_tail, new_head > capacity ? new_head - capacity : 0);
  while (index_tail < index_head) {
    const Entry& oldest = entry(index_tail);
    const uint64_t end =
        oldest.first.load(relaxed) + (oldest.steps_flags.load(relaxed) >> kFlagBits);
    const bool room = index_head + (a.n_runs - first_run) - index_tail <= h_->index_capacity;
    if (end > tail && room) break;
    tail = std::max(tail, end);
    ++index_tail;
  }
  h_->tail.store(tail, release);
  h_->index_tail.store(index_tail, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);

  copy_in(a.rows, skip, head);

  // Does the first run grow the newest entry?
  const Run& lead = a.runs[first_run];
  const Track& track = *lead.track;
  bool grows = false;
  if (skip == 0 && !lead.starts && track.known && index_head > index_tail &&
      track.last_entry == index_head - 1) {
    const Entry& newest = entry(index_head - 1);
    const uint64_t sf = newest.steps_flags.load(relaxed);
    grows = newest.first.load(relaxed) + (sf >> kFlagBits) == head && (sf & kCut) == 0 &&
            static_cast<int64_t>(newest.version.load(relaxed)) == lead.version;
  }

  h_->undo_index_head.store(index_head, relaxed);
  h_->undo_trajectories.store(h_->trajectories.load(relaxed), relaxed);
  h_->undo_entry.store(grows ? index_head - 1 : kNone, relaxed);
  if (grows) {
    h_->undo_steps_flags.store(entry(index_head - 1).steps_flags.load(relaxed), relaxed);
    h_->undo_ret.store(entry(index_head - 1).ret.load(relaxed), relaxed);
  }
  h_->undo_producer.store(a.producer != 0 ? producer : kNone, relaxed);
  if (a.producer != 0) {
    h_->undo_producer_seq.store(producers_[producer].seq.load(relaxed), relaxed);
    h_->undo_producer_entry.store(producers_[producer].entry.load(relaxed), relaxed);
  }
  h_->undo_head.store(head, release);
  std::atomic_thread_fence(release);

  const uint64_t now = now_ns();
  uint64_t number = index_head, seq = head;
  int64_t newest_version = static_cast<int64_t>(h_->max_version.load(relaxed));
  for (size_t i = 0; i < a.n_runs; ++i) {
    const Run& run = a.runs[i];
    if (i < first_run) {  // dropped whole: only the track moves on
      if (run.starts) *run.track = Track{};
      run.track->steps += run.rows;
      run.track->ret += run.reward;
      run.track->flags = run.flags;
      run.track->known = true;
      run.track->last_entry = kNone;
      continue;
    }
    const uint64_t dropped = i == first_run ? skip_in_run : 0;
    const uint64_t rows = run.rows - dropped;
    if (i == first_run && grows) {
      Track& t = *run.track;
      Entry& e = entry(index_head - 1);
      const uint64_t sf = e.steps_flags.load(relaxed);
      t.steps += rows;
      t.ret += run.reward;
      t.flags = run.flags;
      const uint64_t steps = (sf >> kFlagBits) + rows;
      e.steps_flags.store(steps << kFlagBits | (sf & kBegins) | run.flags, release);
      e.ret.store(bits_of(t.ret), release);
    } else {
      write_run(number++, run, seq, rows, dropped, index_tail, a.writer, now);
    }
    newest_version = std::max(newest_version, run.version);
    seq += rows;
  }
  if (a.producer != 0) {
    Producer& p = producers_[producer];
    p.entry.store(number - 1, release);
    p.used.store(new_head, release);
    p.seq.store(a.producer_seq, release);
  }
  h_->index_head.store(number, release);
  h_->head.store(new_head, release);

  h_->max_version.store(static_cast<uint64_t>(newest_version), release);
  h_->inserted.fetch_add(n, relaxed);
  h_->appends.fetch_add(1, relaxed);
  punch_index(old_index_tail, index_tail);
  wake(h_->wake_word, h_->waiters);
  return head;
}

void Tape::write_run(uint64_t number, const Run& run, uint64_t first, uint64_t rows,
                     uint64_t dropped, uint64_t index_tail, uint64_t writer, uint64_t now) {
  Track& t = *run.track;
  if (run.starts) t = Track{};
  const uint64_t before = t.steps + dropped;
  const bool linked = t.last_entry != kNone && t.last_entry >= index_tail;
  uint64_t flags = run.flags;
  if (before > 0) flags &= ~static_cast<uint64_t>(kBegins);
  if (!linked) {
    t.ordinal = h_->trajectories.load(relaxed);
    h_->trajectories.store(t.ordinal + 1, release);
  }
  t.steps = before + rows;
  t.ret += run.reward;
  t.flags = run.flags;
  t.known = true;

  // Skip links as in a skew-binary list: any earlier run is O(log runs) away.
  uint64_t jump = kNone, depth = 0;
  if (linked) {
    const Entry& p = entry(t.last_entry);
    depth = p.depth.load(relaxed) + 1;
    jump = t.last_entry;
    const uint64_t pj = p.jump.load(relaxed);
    if (pj != kNone && pj >= index_tail) {
      const Entry& pje = entry(pj);
      const uint64_t pjj = pje.jump.load(relaxed);
      if (pjj != kNone && pjj >= index_tail) {
        const uint64_t pd = depth - 1, pjd = pje.depth.load(relaxed);
        if (pd - pjd == pjd - entry(pjj).depth.load(relaxed)) jump = pjj;
      }
    }
  }
  Entry& e = entry(number);
  e.first.store(first, relaxed);
  e.steps_flags.store(rows << kFlagBits | flags, relaxed);
  e.prev.store(linked ? t.last_entry : kNone, relaxed);
  e.jump.store(jump, relaxed);
  e.before.store(before, relaxed);
  e.ordinal.store(t.ordinal, relaxed);
  e.version.store(static_cast<uint64_t>(run.version), relaxed);
  e.ret.store(bits_of(t.ret), relaxed);
  e.traj_id.store(static_cast<uint64_t>(run.traj_id), relaxed);
  e.writer.store(writer, relaxed);
  e.time_ns.store(now, relaxed);
  e.depth.store(depth, relaxed);
  t.last_entry = number;
}

void Tape::clear() {
  h_->tail.store(h_->head.load(relaxed), release);
  h_->index_tail.store(h_->index_head.load(relaxed), release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Tape::restore(const uint8_t* records, uint64_t tail, uint64_t head, const uint64_t* entries,
                   uint64_t index_tail, uint64_t index_head, uint64_t trajectories) {
  clear();
  h_->undo_head.store(kNone, release);
  h_->restores.fetch_add(1, release);
  reserve_data(0, head - tail > 0 ? h_->capacity : 0);
  h_->reserved_index.store(index_tail / h_->index_chunk * h_->index_chunk, release);
  reserve_index(index_head);
  // Seqs jump forward to those of the checkpoint, so that priorities and indices still fit.
  h_->tail.store(head, release);
  h_->index_tail.store(index_head, release);
  h_->index_head.store(index_head, release);
  h_->head.store(head, release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Rows rows;
  rows.n = head - tail;
  rows.records = records;
  copy_in(rows, 0, tail);
  for (uint64_t n = index_tail; n < index_head; ++n) {
    const uint64_t* words = entries + (n - index_tail) * 16;
    auto* fields = reinterpret_cast<Word*>(&entry(n));
    for (int i = 0; i < 16; ++i) fields[i].store(words[i], relaxed);
    const auto version = static_cast<int64_t>(words[6]);
    if (version > static_cast<int64_t>(h_->max_version.load(relaxed)))
      h_->max_version.store(words[6], relaxed);
  }
  h_->trajectories.store(trajectories, release);
  h_->index_tail.store(index_tail, release);
  h_->tail.store(tail, release);
  wake(h_->wake_word, h_->waiters);
}

Snapshot Tape::snapshot() const {
  Snapshot s;
  s.head = h_->head.load(acquire);
  s.tail = h_->tail.load(acquire);
  s.index_tail = h_->index_tail.load(acquire);
  s.index_head = h_->index_head.load(acquire);
  return s;
}

bool Tape::read_entry(uint64_t number, EntryView* out) const {
  const Entry& e = entry(number);
  out->first = e.first.load(relaxed);
  const uint64_t sf = e.steps_flags.load(acquire);
  out->steps = sf >> kFlagBits;
  out->flags = sf & kFlagMask;
  out->prev = e.prev.load(relaxed);
  out->jump = e.jump.load(relaxed);
  out->before = e.before.load(relaxed);
  out->ordinal = e.ordinal.load(relaxed);
  out->version = static_cast<int64_t>(e.version.load(relaxed));
  std::atomic_thread_fence(acquire);
  return number >= h_->index_tail.load(relaxed);
}

Tape::Read Tape::read_entry_words(uint64_t number, uint64_t h, uint64_t out[16]) const {
  const Entry& e = entry(number);
  const auto* fields = reinterpret_cast<const Word*>(&e);
  for (int tries = 0; tries < 1000; ++tries) {
    const uint64_t sf = e.steps_flags.load(acquire);
    for (int i = 0; i < 16; ++i) out[i] = fields[i].load(acquire);
    out[1] = sf;
    const uint64_t again = e.steps_flags.load(acquire);
    std::atomic_thread_fence(acquire);
    if (number < h_->index_tail.load(relaxed)) return Read::gone;
    if (out[0] >= h) return Read::gone;  // not committed when h was loaded
    if (sf == again && out[0] + (sf >> kFlagBits) <= h) return Read::ok;
    h = h_->head.load(acquire);  // it is growing: start again
  }
  return Read::unsettled;
}

Hold::Hold(Tape& tape, double timeout_s) : tape_(tape) {
  Lock& lock = tape.header().lock;
  if (!lock_try(lock) && !lock_until(lock, timeout_s))
    throw Busy(lock.holder.load(relaxed), timeout_s);
  tape.repair();
}

Hold::~Hold() { lock_release(tape_.header().lock); }

}  // namespace contig
