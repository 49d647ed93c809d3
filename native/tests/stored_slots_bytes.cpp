// Observations that are stored once, into files and out of them, beside a naive model: the same
// bytes, and the same rows of them, whatever byte is damaged. Nothing is read that is not there:
// all memory is as large as it must be, for the address sanitizer.
#include <memory>

#include "native/tape/stored_slots.h"
#include "native/tape/tape.h"
#include "stored_model.h"

namespace {

using namespace contig;
using namespace stored_model;
using rows::fail;

constexpr uint64_t kFirst = 5;  // seq

// Rows in memory of exactly their size.
struct Exact {
  explicit Exact(const Bytes& from) : size(from.size()), data(new uint8_t[from.size()]) {
    std::copy(from.begin(), from.end(), data.get());
  }
  uint64_t size;
  std::unique_ptr<uint8_t[]> data;
};

struct Case {
  Shape shape;
  SharedForm form;
  uint64_t stride, reach;
  std::vector<uint64_t> salts, other_salts;
  Script script;
  Model model;
  Bytes stored, slots;  // as encoded

  Case(const Shape& s, uint64_t n, uint64_t seed)
      : shape(s),
        form(s.form()),
        stride(stored_bytes(form) + 8 + 8 * (seed % 2)),
        reach(seed % 3 == 0 ? 3 : 1000),
        salts{0, seed % 2 == 0 ? 0 : seed, kFirst + n / 2, seed + 7},
        other_salts{0, seed + 9},
        script(s, n, seed),
        model(s, form, stride, reach) {}
  RowSums sums() const { return RowSums(salts.data(), salts.size() / 2); }
  StoredShape stored_shape() const { return {&form, shape.record_size, stride}; }
};

// In pieces, as they come from a checkpoint; or as columns.
void encode(Case* c, uint64_t seed) {
  rows::Random random(seed);
  SlotEncoder encoder(c->form, c->shape.record_size, c->stride, c->reach);
  const RowSums sums(c->salts.data(), c->salts.size() / 2);
  const std::vector<uint64_t>& of = c->script.trajectories;
  for (uint64_t first = 0; first < of.size();) {
    const uint64_t n = std::min<uint64_t>(1 + random.below(9), of.size() - first);
    std::vector<SlotEncoder::Part> parts;
    for (uint64_t i = first; i < first + n; ++i) {
      if (parts.empty() || parts.back().trajectory != of[i]) parts.push_back({of[i], 0});
      ++parts.back().rows;
    }
    const uint64_t size = c->shape.record_size;
    const uint8_t* records = c->script.records.data() + first * size;
    std::vector<Column> columns;
    for (const Place& leaf : c->shape.places())
      columns.push_back(Column{records + leaf.offset, leaf.offset, leaf.bytes, size});
    Rows given;
    given.n = n;
    if (random.below(2) == 0)
      given.records = records;
    else
      given.columns = columns.data(), given.n_columns = columns.size();
    Bytes out(n * c->stride), slots;
    if (encoder.head() != c->slots.size()) fail("an encoder that is elsewhere");
    encoder.encode(given, parts, sums, kFirst + first, out.data(), &slots);
    c->stored.insert(c->stored.end(), out.begin(), out.end());
    c->slots.insert(c->slots.end(), slots.begin(), slots.end());
    first += n;
  }
}

void check_encoded(Case* c) {
  c->model.encode(c->script, kFirst, c->salts);
  if (c->slots != c->model.slot_bytes()) fail("slots are not those of the model");
  if (c->stored != c->model.stored) fail("stored rows are not those of the model");
  const uint64_t plain = c->script.trajectories.size() * c->form.references();
  if (c->reach > 3 && plain > 100 && c->model.slots.size() * 5 > plain * 4)
    fail("nothing is stored once: void");
}

// Rows and the bytes of slots from `base` on are read: those that the model can read come out as it
// says, the others are reported, and are zeros. How many are.
size_t check_read(const Case& c, const RowSums& sums, const Exact& stored, const Exact& slots,
                  uint64_t base) {
  const uint64_t n = stored.size / c.stride, size = c.shape.record_size;
  const StoredPart part{stored.data.get(), n, kFirst, slots.data.get(), slots.size, base};
  Bytes records(n * size, 0xA5), sealed(n * c.stride, 0xA5), wanted, wanted_sealed;
  std::vector<int64_t> damaged, refused, expected;
  expand_slots(c.stored_shape(), part, sums, records.data(), &damaged);
  const RowSums now(c.other_salts.data(), c.other_salts.size() / 2);
  reseal_slots(c.stored_shape(), part, sums, now, sealed.data(), &refused);
  const View view{slots.data.get(), slots.size, base};
  for (uint64_t i = 0; i < n; ++i) {
    const uint8_t* row = stored.data.get() + i * c.stride;
    Bytes record(size), again(c.stride);
    if (c.model.read(row, kFirst + i, c.salts, view, record.data())) {
      again = c.model.sealed(Bytes(row, row + c.stride), kFirst + i, c.other_salts, view);
    } else {
      expected.push_back(static_cast<int64_t>(i));
      record.assign(size, 0);
    }
    wanted.insert(wanted.end(), record.begin(), record.end());
    wanted_sealed.insert(wanted_sealed.end(), again.begin(), again.end());
  }
  if (damaged != expected || refused != expected) fail("other rows are reported as damaged");
  if (records != wanted) fail("rows are not what was stored");
  if (sealed != wanted_sealed) fail("rows with other salts are not what they were");
  return damaged.size();
}

// A tape in memory that has these rows, as one in files has them.
struct Stored {
  std::unique_ptr<uint64_t[]> control;
  std::unique_ptr<uint8_t[]> data, ring;
  std::unique_ptr<Tape> tape;

  Stored(const Case& c, uint64_t n, uint64_t ring_bytes)
      : control(new uint64_t[Tape::control_bytes(2 * n) / 8]()), ring(new uint8_t[ring_bytes]()) {
    auto* memory = reinterpret_cast<uint8_t*>(control.get());
    Tape::format(memory, 2 * n);
    tape = std::make_unique<Tape>(memory, -1);
    {
      Hold hold(*tape, 5);
      const StoredBlobs blobs{1, ring_bytes, ring_bytes};
      tape->publish_stored(c.shape.record_size, c.stride, 3, 2 * n, 0, blobs);
    }
    data.reset(new uint8_t[tape->data_bytes()]());
    tape->attach_data(data.get());
    tape->attach_stored_slots(c.form, c.reach);
    tape->attach_blobs(ring.get(), {{stored_place(c.form), c.form.slot_bytes()}});
    tape->sums().set(c.salts.data(), c.salts.size() / 2);
  }
  uint8_t* row(uint64_t seq) { return data.get() + (tape->row(seq) - data.get()); }
  void fill(const Case& c) {
    for (uint64_t i = 0; i * c.stride < c.stored.size(); ++i)
      std::memcpy(row(kFirst + i), c.stored.data() + i * c.stride, c.stride);
    const uint64_t size = c.form.slot_bytes();
    for (uint64_t at = 0; at < c.slots.size(); at += size)
      tape->blobs().write(at, size, c.slots.data() + at);
  }
};

// Rows as a reader has them: what is whole comes out as it went in.
void check_tape(const Case& c, Stored* stored, const std::vector<bool>* wanted) {
  const uint64_t n = c.script.trajectories.size(), size = c.shape.record_size;
  std::vector<int64_t> seqs;
  for (uint64_t i = 0; i < n; ++i) seqs.push_back(static_cast<int64_t>(kFirst + i));
  Bytes records(n * size);
  gather_stored_records(*stored->tape, seqs.data(), n, records.data());
  const std::vector<SharedLeaf>& leaves = c.form.leaves();
  std::vector<Bytes> columns;
  std::vector<SlotTarget> targets;
  for (size_t t = 0; t < leaves.size() * (c.form.paired() ? 2 : 1); ++t)
    columns.emplace_back(n * leaves[t % leaves.size()].bytes);
  for (size_t t = 0; t < columns.size(); ++t)
    targets.push_back({columns[t].data(), t % leaves.size(), t >= leaves.size()});
  gather_stored_slots(*stored->tape, seqs.data(), n, targets.data(), targets.size());
  for (uint64_t i = 0; i < n; ++i) {
    ask_for_slots(*stored->tape, kFirst + i);
    read_slots_ahead(*stored->tape, kFirst + i);
    const bool whole = slots_whole(*stored->tape, kFirst + i);
    if (wanted != nullptr && whole != (*wanted)[i]) fail("a row is whole, or is not: wrongly");
    if (!whole) continue;
    const uint8_t* record = c.script.records.data() + i * size;
    if (std::memcmp(records.data() + i * size, record, size) != 0) fail("a row of a tape");
    for (size_t t = 0; t < targets.size(); ++t) {
      const SharedLeaf& leaf = leaves[targets[t].leaf];
      const uint64_t offset = targets[t].next ? leaf.next_offset : leaf.offset;
      if (std::memcmp(columns[t].data() + i * leaf.bytes, record + offset, leaf.bytes) != 0)
        fail("a leaf of a tape's row");
    }
  }
}

// Every byte of rows and of slots in turn, and every place where bytes may end.
uint64_t damage(const Case& c) {
  const RowSums sums(c.salts.data(), c.salts.size() / 2);
  const Exact stored(c.stored), slots(c.slots);
  if (check_read(c, sums, stored, slots, 0) != 0) fail("rows that are whole are reported");
  uint64_t tried = 0;
  for (const uint8_t flip : {0x01, 0x80, 0xFF}) {
    for (const Exact* part : {&stored, &slots})
      for (uint64_t at = 0; at < part->size; ++at, ++tried) {
        part->data[at] ^= flip;
        const bool counts = part == &slots || at % c.stride < stored_bytes(c.form) + 8;
        if ((check_read(c, sums, stored, slots, 0) > 0) != counts)
          fail("a damaged byte is not reported, or one that is nobody's is");
        part->data[at] ^= flip;
      }
  }
  for (uint64_t cut = 0; cut <= c.slots.size(); cut += 1 + cut % 3, ++tried) {
    check_read(c, sums, stored, Exact(Bytes(c.slots.begin(), c.slots.end() - cut)), 0);
    check_read(c, sums, stored, Exact(Bytes(c.slots.begin() + cut, c.slots.end())), cut);
  }
  return tried;
}

// A row that says anything, with checksums that are right: as from somebody who means harm.
void forge_row(const Case& c, uint64_t i, Bytes row, const Exact& slots,
               const std::vector<Stored*>& tapes) {
  row = c.model.sealed(row, kFirst + i, c.salts, View{slots.data.get(), slots.size, 0});
  Bytes all(c.stored);
  std::copy(row.begin(), row.end(), all.begin() + i * c.stride);
  check_read(c, c.sums(), Exact(all), slots, 0);
  for (Stored* stored : tapes) {  // nothing is known of what comes out, but where it is from
    const Tape& tape = *stored->tape;
    const auto seq = static_cast<int64_t>(kFirst + i);
    std::memcpy(stored->row(kFirst + i), row.data(), c.stride);
    slots_whole(tape, kFirst + i);
    ask_for_slots(tape, kFirst + i);
    read_slots_ahead(tape, kFirst + i);
    Bytes record(c.shape.record_size);
    gather_stored_records(tape, &seq, 1, record.data());
    std::memcpy(stored->row(kFirst + i), c.stored.data() + i * c.stride, c.stride);
  }
}

uint64_t forge(const Case& c) {
  const Exact slots(c.slots);
  const uint64_t size = stored_bytes(c.form), slot = c.form.slot_bytes();
  const uint64_t n = c.stored.size() / c.stride;
  Stored enough(c, n, c.slots.size()), small(c, n, slot);
  enough.fill(c);
  small.fill(c);
  const std::vector<Stored*> tapes{&enough, &small};
  const auto stored = [&](uint64_t i) {
    return Bytes(c.stored.begin() + i * c.stride, c.stored.begin() + (i + 1) * c.stride);
  };
  uint64_t tried = 0;
  for (uint64_t at = 0; at < size; ++at)
    for (const uint64_t word :
         {uint64_t{1}, uint64_t{0xFF}, uint64_t{0xFFFFFFFF}, uint64_t{1} << 63, ~uint64_t{0}}) {
      Bytes row = stored(++tried % n);
      for (uint64_t b = 0; b < 8 && at + b < size; ++b) row[at + b] ^= uint8_t(word >> (8 * b));
      forge_row(c, tried % n, row, slots, tapes);
    }
  for (uint64_t i = 0; i < n; ++i) {
    const BlobPlace own = load_place(stored(i).data() + stored_place(c.form));
    const uint64_t end = (own.position + own.bytes) / slot;
    for (uint64_t j = 0; j < c.form.references(); ++j, ++tried) {  // one that later rows have
      Bytes row = stored(i);
      for (int b = 0; b < 4; ++b) row[4 * j + b] = uint8_t(end >> (8 * b));
      forge_row(c, i, row, slots, tapes);
    }
    for (uint64_t more = 0; more < c.form.references() + 2; ++more, ++tried) {
      Bytes row = stored(i);
      store_place(row.data() + stored_place(c.form), {own.position, more * slot});
      forge_row(c, i, row, slots, tapes);
    }
  }
  return tried;
}

// A ring that has them all, or one that has only the newest bytes.
void tapes(const Case& c) {
  const uint64_t n = c.script.trajectories.size(), slot = c.form.slot_bytes();
  for (const uint64_t ring : {c.slots.size() + 3, c.slots.size() * 2 / 3 + 1}) {
    Stored stored(c, n, ring);
    stored.fill(c);
    std::vector<bool> whole;
    for (uint64_t i = 0; i < n; ++i) {
      bool there = true;
      for (const uint64_t number : c.model.references[i])
        there = there && c.slots.size() - number * slot <= ring;
      whole.push_back(there);
    }
    check_tape(c, &stored, &whole);
    for (uint64_t at = 0; at < ring; ++at) {
      stored.ring[at] ^= 0x10;
      check_tape(c, &stored, nullptr);
      stored.ring[at] ^= 0x10;
    }
    check_tape(c, &stored, &whole);
  }
}

}  // namespace

int main() {
  uint64_t damaged = 0, forged = 0, seed = 1;
  for (const Shape& shape : shapes())
    for (int round = 0; round < 2; ++round, ++seed) {
      Case large(shape, 150, seed);
      encode(&large, seed);
      check_encoded(&large);
      check_read(large, large.sums(), Exact(large.stored), Exact(large.slots), 0);
      Case small(shape, 12, seed);
      encode(&small, seed);
      check_encoded(&small);
      tapes(small);
      damaged += damage(small);
      forged += forge(small);
    }
  std::printf("%llu damaged, %llu forged\n", (unsigned long long)damaged,
              (unsigned long long)forged);
  return damaged > 0 && forged > 0 ? 0 : 1;
}
