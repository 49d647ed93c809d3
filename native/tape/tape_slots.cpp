// Observations that are stored once, as a tape takes them in. The order of what is stored, and why
// it must be that one: docs/design/slots.md, tests/model/slots.py.
#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "native/kernels/copy.h"
#include "native/tape/tape.h"

namespace contig {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto release = std::memory_order_release;
}  // namespace

void Tape::attach_slots(uint8_t* memory, SharedForm form) {
  if (form.slot_bytes() != h_->slot_bytes || form.stack() != h_->slot_stack || !form ||
      form.encoded() != (h_->slots_encoded != 0))
    throw std::invalid_argument("attach_slots: other leaves than the tape was published with");
  slots_ = SlotMemory(memory, SlotShape(h_->capacity, form));
  form_ = std::move(form);
  check_state();
}

uint64_t Tape::slot_head() const {
  return h_->slots_at.load(relaxed) == h_->head.load(relaxed) ? h_->slots_after.load(relaxed)
                                                              : h_->slots_before.load(relaxed);
}

void Tape::plan_slots(const Append& a, const Room& r) {
  plan_.start(&form_, &slots_, r.head, slot_head(), h_->slot_tail.load(relaxed),
              slots_.shape().reach);
  plan_runs(a, r);
}

void Tape::plan_runs(const Append& a, const Room& r) {
  const CompactRows* compact = a.rows.compact;
  if (compact != nullptr)
    plan_.start_compact(compact->n_slots);
  else
    observations_.set(a.rows, form_, record_size_);
  std::optional<DecodedSlots> decoded;
  if (form_.encoded()) plan_.read_through(&decoded.emplace(slots_));
  ++plans_;
  plan_.expect(r.new_head - r.head);
  before_.resize(form_.stack());
  uint64_t row = r.skip;
  // Steps of several trajectories, whose slots lie side by side if their last steps came so, too.
  struct Steps {
    uint64_t row = 0, n = 0, before = 0;
  } steps;
  const auto plan_steps = [&] {
    if (steps.n > 0) plan_.add_steps(observations_, steps.row, steps.n, steps.before);
    steps.n = 0;
  };
  const bool pairs = form_.paired() && form_.stack() == 1 && compact == nullptr;
  for (size_t i = r.first_run; i < a.n_runs; ++i) {
    const Run& run = a.runs[i];
    const uint64_t dropped = i == r.first_run ? r.skip_in_run : 0, n = run.rows - dropped;
    std::unique_ptr<SlotTrail>& trail = run.track->slots;
    const uint64_t* known = nullptr;
    if (trail == nullptr) {
      trail = std::make_unique<SlotTrail>();
    } else if (!run.starts && dropped == 0) {
      known = trail->slots.empty() ? nullptr : trail->slots.data();
      if (trail->plan == plans_) {  // another run of it, in the same append
        plan_steps();
        plan_.led_to(trail->row, before_.data());
        known = before_.data();
      }
    }
    if (pairs && known != nullptr && n == 1) {
      if (steps.n > 0 && *known != steps.before + steps.n) plan_steps();
      if (steps.n == 0) steps = {row, 0, *known};
      ++steps.n;
    } else {
      plan_steps();
      if (compact != nullptr)
        plan_.add_compact_run(*compact, row, n, known);
      else
        plan_.add_run(observations_, row, n, known);
    }
    row += n;
    trail->plan = plans_;
    trail->row = row - r.skip - 1;
  }
  plan_steps();
  if (form_.encoded()) encode_slots(a.rows);
}

// As if the rows of each entry were appended one after another.
void Tape::plan_entries(const Rows* rows, uint64_t tail, const uint64_t* entries, uint64_t n,
                        uint64_t base) {
  using W = EntryWords;
  const uint64_t k = form_.stack(), head = slot_head();
  plan_.start(&form_, &slots_, tail, head, kNone, slots_.shape().reach);
  if (rows == nullptr) return;
  if (rows->compact != nullptr)
    plan_.start_compact(rows->compact->n_slots);
  else
    observations_.set(*rows, form_, record_size_);
  std::vector<uint64_t> led_to(n * k, kNone), before(k);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t* e = entries + i * W::count;
    const uint64_t end = e[W::first] + run_rows(e[W::steps_flags]);
    const uint64_t first = std::max(e[W::first], tail + plan_.rows());
    if (first >= end) continue;
    if (first != tail + plan_.rows() || end - tail > rows->n)
      throw std::invalid_argument("restore: entries that leave rows out");
    // Links to what is gone, or to none, lead outside.
    const uint64_t prev = e[W::prev] - base;
    const bool known = e[W::prev] >= base && prev < i;
    if (known) std::copy_n(led_to.begin() + static_cast<int64_t>(prev * k), k, before.begin());
    const uint64_t* of = known ? before.data() : nullptr;
    if (rows->compact != nullptr)
      plan_.add_compact_run(*rows->compact, first - tail, end - first, of);
    else
      plan_.add_run(observations_, first - tail, end - first, of);
    plan_.led_to(plan_.rows() - 1, led_to.data() + i * k);
  }
  if (plan_.rows() != rows->n) throw std::invalid_argument("restore: rows of no entry");
  if (form_.encoded()) encode_slots(*rows);
  reserve_slots(tail, tail);  // what is there gives way
}

// Memory for chunks of all slots that rows [tail, head) and those of the plan refer to.
void Tape::reserve_slots(uint64_t tail, uint64_t head) {
  const uint64_t next = plan_.head(), end = next + plan_.slots();
  chunks_wanted_ = end > 0 ? slots_.chunk_of(end - 1) + 1 : 0;
  slot_bound_ = h_->slot_tail.load(relaxed);
  bool more = chunks_wanted_ > h_->mapped_slots.load(relaxed);
  if (form_.encoded()) {
    encoded_wanted_ = encoded_.end() > 0 ? slots_.chunk_of_encoded(encoded_.end() - 1) + 1 : 0;
    more = more || encoded_wanted_ > h_->mapped_encoded.load(relaxed);
  }
  if (!more) return;
  const uint64_t least = std::min({slots_.least(tail, head), plan_.low(), next});
  slot_bound_ = std::max(slot_bound_, least);
  const SlotShape& shape = slots_.shape();
  const uint64_t want = chunks_wanted_ - std::min(slots_.chunk_of(slot_bound_), chunks_wanted_);
  reserve_places(&h_->reserved_places, want, shape.places, shape.tables, shape.chunk_bytes());
  if (!form_.encoded()) return;
  // Bytes of a slot lie behind those of all slots before it.
  encoded_bound_ = slot_bound_ < next ? slots_.place_of(slot_bound_).position : encoded_.head();
  reserve_places(
      &h_->reserved_encoded,
      encoded_wanted_ - std::min(slots_.chunk_of_encoded(encoded_bound_), encoded_wanted_),
      shape.encoded_places, shape.encoded_at, shape.encoded_chunk());
}

void Tape::reserve_places(Word* reserved, uint64_t want, uint64_t most, uint64_t from,
                          uint64_t bytes) {
  if (want > most) throw std::logic_error("slots: more than can be live");
  for (uint64_t have = reserved->load(relaxed); have < want; ++have) {
    allocate(h_->slots_offset + from + have * bytes, bytes, "observations");
    if (file_.number() >= 0)
      large_pages_.use(slots_.data() + from, have * bytes, (have + 1) * bytes);
    reserved->store(have + 1, release);
  }
}

// Behind the fence: rows that give way are gone for every reader.
void Tape::map_slots() {
  const uint64_t mapped = h_->mapped_slots.load(relaxed);
  const uint64_t encoded = form_.encoded() ? h_->mapped_encoded.load(relaxed) : 0;
  const bool more = chunks_wanted_ > mapped,
             more_encoded = form_.encoded() && encoded_wanted_ > encoded;
  if (more || more_encoded) h_->slot_tail.store(slot_bound_, release);
  if (more) {
    slots_.map().place(std::min(slots_.chunk_of(slot_bound_), mapped), mapped, chunks_wanted_);
    h_->mapped_slots.store(chunks_wanted_, release);
  }
  if (more_encoded) {
    const uint64_t live = std::min(slots_.chunk_of_encoded(encoded_bound_), encoded);
    slots_.encoded_map().place(live, encoded, encoded_wanted_);
    h_->mapped_encoded.store(encoded_wanted_, release);
  }
}

// Until `slots_at` is the head again, the next slot is the one that it was before.
void Tape::give_slots() {
  h_->slots_before.store(plan_.head(), release);
  if (form_.encoded()) h_->encoded_before.store(encoded_.head(), release);
  h_->slots_at.store(kNone, release);
  h_->slots_after.store(plan_.head() + plan_.slots(), release);
  if (form_.encoded()) h_->encoded_after.store(encoded_.end(), release);
}

void Tape::copy_observations_in() {
  if (form_.encoded()) return put_encoded();
  const SlotSource* sources = plan_.sources().data();
  const uint64_t in_chunk = uint64_t{1} << slots_.shape().chunk_shift;
  for (uint64_t i = 0, n = plan_.slots(), together; i < n; i += together) {
    const uint64_t number = plan_.head() + i;
    const uint64_t left = std::min(n - i, in_chunk - (number & (in_chunk - 1)));
    together = observations_.adjacent(form_, sources + i, left);
    if (together == 1)
      observations_.take(form_, sources[i], slots_.slot(number));
    else
      store_bytes(slots_.slot(number), observations_.at(sources[i].row, 0, sources[i].next),
                  together * form_.slot_bytes());
  }
}

void Tape::copy_slots_in(const Rows& rows, uint64_t skip, uint64_t seq) {
  if (rows.compact != nullptr) {
    copy_compact_in(*rows.compact, skip, seq);
  } else {
    copy_observations_in();
    copy_kept_in(rows, skip, seq);
  }
  for (const BlockMark& mark : plan_.marks()) {
    SlotMemory::Word& low = slots_.low(mark.block);
    // A block that begins here, or has no other rows any more; or one that goes on.
    if (mark.block << kBlockShift >= seq || h_->tail.load(relaxed) >= seq) {
      slots_.start(mark.block).store(mark.start, relaxed);
      low.store(mark.low, relaxed);
    } else {
      low.store(std::min(low.load(relaxed), mark.low), relaxed);
    }
  }
}

void Tape::copy_kept_in(const Rows& rows, uint64_t skip, uint64_t seq) {
  struct Piece {
    const uint8_t* data;
    uint64_t stride, bytes, stored;
  };
  std::vector<Piece> pieces;
  pieces.reserve(std::max(form_.kept().size(), rows.n_columns));
  if (rows.records != nullptr) {
    for (const KeptLeaf& leaf : form_.kept())
      pieces.push_back({rows.records + leaf.offset, record_size_, leaf.bytes, leaf.stored});
  } else {
    size_t leaf;
    bool next;
    for (size_t c = 0; c < rows.n_columns; ++c) {
      const Column& col = rows.columns[c];
      if (!form_.find(col.offset, &leaf, &next))
        pieces.push_back({col.data, col.stride, col.bytes, form_.stored(col.offset)});
    }
  }
  // Leaf by leaf, of so many rows as stay in the nearest cache: what to copy is decided once.
  constexpr uint64_t kAtOnce = 128;
  for (uint64_t i = 0, n = plan_.rows(), together; i < n; i += together) {
    together = std::min({n - i, mask_ + 1 - ((seq + i) & mask_), kAtOnce});
    auto* to = const_cast<uint8_t*>(row(seq + i));
    for (uint64_t k = 0; k < together; ++k) put_references(i + k, to + k * stride_);
    for (const Piece& p : pieces) {
      const uint8_t* from = p.data + (skip + i) * p.stride;
      if (p.bytes < kPastCaches) {
        copy_apart(to + p.stored, stride_, from, p.stride, p.bytes, together);
        continue;
      }
      for (uint64_t k = 0; k < together; ++k)
        store_bytes(to + p.stored + k * stride_, from + k * p.stride, p.bytes);
    }
  }
}

void Tape::keep_slots(Track* track, uint64_t row) const {
  if (track->slots == nullptr) track->slots = std::make_unique<SlotTrail>();
  std::vector<uint64_t>& slots = track->slots->slots;
  if (slots.size() != form_.stack()) slots.resize(form_.stack());
  if (form_.stack() == 1 && form_.paired())
    slots[0] = plan_.references(row)[1];
  else
    plan_.led_to(row, slots.data());
}

}  // namespace contig
