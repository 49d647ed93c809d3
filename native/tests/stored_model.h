// How rows whose observations are stored once lie in files, said naively: everything by itself, one
// byte after another, with a checksum that goes bit by bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "native/tape/stored_slots.h"
#include "rows.h"

namespace stored_model {

using Bytes = std::vector<uint8_t>;
constexpr uint64_t kNoSlot = ~uint64_t{0};

inline uint32_t crc32c_bits(uint32_t crc, const uint8_t* p, uint64_t n) {
  crc = ~crc;
  for (uint64_t i = 0; i < n; ++i) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

template <class Word>
Word load(const uint8_t* p) {
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Leaves of a record, in a shape that a test names.
struct Place {
  uint64_t offset, bytes;
};
struct Shape {
  struct Stacked {
    uint64_t frames, inner, pieces;
  };
  std::vector<Stacked> stacks;
  bool paired;
  std::vector<uint64_t> kept;
  uint64_t record_size = 0;
  std::vector<contig::SharedLeaf> shared;
  std::vector<contig::KeptLeaf> alone;

  Shape(std::vector<Stacked> s, bool both, std::vector<uint64_t> k)
      : stacks(std::move(s)), paired(both), kept(std::move(k)) {
    for (const Stacked& x : stacks) {
      const uint64_t bytes = x.frames * x.inner * x.pieces, at = record_size + 3;
      const uint64_t next = paired ? at + bytes : contig::SharedLeaf::kNoNext;
      shared.push_back(contig::SharedLeaf{at, next, bytes, x.frames, x.inner});
      record_size = at + (paired ? 2 : 1) * bytes;
    }
    for (const uint64_t bytes : kept) {
      alone.push_back(contig::KeptLeaf{record_size, bytes});
      record_size += bytes;
    }
  }
  contig::SharedForm form() const { return contig::SharedForm(shared, alone, record_size); }
  std::vector<Place> places() const {
    std::vector<Place> out;
    for (const contig::SharedLeaf& x : shared) {
      out.push_back({x.offset, x.bytes});
      if (paired) out.push_back({x.next_offset, x.bytes});
    }
    for (const contig::KeptLeaf& x : alone) out.push_back({x.offset, x.bytes});
    return out;
  }
};

inline std::vector<Shape> shapes() {
  return {
      Shape({{1, 12, 1}}, true, {8, 1, 2}),          // vectors
      Shape({{3, 10, 1}, {1, 5, 1}}, true, {4, 8}),  // frames first, beside a vector
      Shape({{4, 1, 7}}, true, {1}),                 // frames last
      Shape({{2, 2, 3}, {4, 1, 5}}, true, {0, 3}),   // two of them, and a leaf without bytes
      Shape({{3, 2, 3}}, false, {8}),                // not below next
  };
}

// Rows of a few trajectories in turn; often a frame is that before, and sometimes a step leads
// to what the next one does not begin with.
struct Script {
  Bytes records;
  std::vector<uint64_t> trajectories;

  Script(const Shape& shape, uint64_t n, uint64_t seed) {
    rows::Random random(seed);
    uint64_t steps[3] = {}, lives[3] = {}, lane = 0;
    for (uint64_t i = 0; i < n; ++i) {
      if (random.below(3) == 0) lane = random.below(3);
      if (random.below(9) == 0) ++lives[lane], steps[lane] = 0;
      trajectories.push_back(lives[lane] * 3 + lane);
      Bytes record(shape.record_size);
      for (const contig::KeptLeaf& leaf : shape.alone)
        for (uint64_t b = 0; b < leaf.bytes; ++b) record[leaf.offset + b] = uint8_t(random.next());
      const uint64_t odd = random.below(6) == 0 ? i + 1 : 0;
      for (size_t l = 0; l < shape.shared.size(); ++l) {
        const contig::SharedLeaf& leaf = shape.shared[l];
        const uint64_t of = trajectories.back() * 16 + l;
        observe(leaf, of, steps[lane], &record[leaf.offset]);
        if (shape.paired)
          observe(leaf, of + odd * 4096, steps[lane] + 1, &record[leaf.next_offset]);
      }
      ++steps[lane];
      records.insert(records.end(), record.begin(), record.end());
    }
  }

 private:
  static void observe(const contig::SharedLeaf& leaf, uint64_t of, uint64_t step, uint8_t* to) {
    for (uint64_t b = 0; b < leaf.bytes; ++b) {
      const uint64_t frame = b / leaf.inner % leaf.frames, in = b / (leaf.inner * leaf.frames);
      uint64_t number = step + frame + 1 < leaf.frames ? 0 : step + frame + 1 - leaf.frames;
      if (number % 5 == 4) --number;
      to[b] = uint8_t(rows::mix(of * 1000003 + number * 64 + in * leaf.inner + b % leaf.inner));
    }
  }
};

// Bytes of slots, from a position on.
struct View {
  const uint8_t* data;
  uint64_t bytes, base;
  bool has(uint64_t position, uint64_t n) const {
    for (uint64_t i = 0; i < n; ++i)
      if (position + i < position || position + i < base || position + i - base >= bytes)
        return false;
    return true;
  }
};

class Model {
 public:
  using Slot = std::vector<Bytes>;  // a frame of each leaf
  std::vector<Slot> slots;
  std::vector<std::vector<uint64_t>> references;  // by row
  Bytes stored;

  Model(const Shape& shape, const contig::SharedForm& form, uint64_t stride, uint64_t reach)
      : shape_(shape), form_(form), stride_(stride), reach_(reach) {}

  void encode(const Script& script, uint64_t seq, const std::vector<uint64_t>& salts) {
    std::map<uint64_t, std::vector<uint64_t>> expected;  // by trajectory
    std::vector<uint64_t> own;                           // the first that is new with a row
    for (size_t i = 0; i < script.trajectories.size(); ++i) {
      own.push_back(slots.size());
      refer(&script.records[i * shape_.record_size], &expected[script.trajectories[i]]);
    }
    own.push_back(slots.size());
    const Bytes all = slot_bytes();
    const View view{all.data(), all.size(), 0};
    for (size_t i = 0; i < script.trajectories.size(); ++i) {
      Bytes row(stride_);
      const uint64_t place[2] = {own[i] * form_.slot_bytes(),
                                 (own[i + 1] - own[i]) * form_.slot_bytes()};
      for (size_t j = 0; j < references[i].size(); ++j)
        for (int b = 0; b < 4; ++b) row[4 * j + b] = uint8_t(references[i][j] >> (8 * b));
      for (const contig::KeptLeaf& leaf : form_.kept())
        for (uint64_t b = 0; b < leaf.bytes; ++b)
          row[leaf.stored + b] = script.records[i * shape_.record_size + leaf.offset + b];
      std::memcpy(&row[size() - 16], place, 16);
      row = sealed(row, seq + i, salts, view);
      stored.insert(stored.end(), row.begin(), row.end());
    }
  }

  Bytes slot_bytes() const {
    Bytes out;
    for (const Slot& slot : slots) {
      for (const Bytes& frame : slot) out.insert(out.end(), frame.begin(), frame.end());
      while (out.size() % 4 != 0) out.push_back(0);
    }
    return out;
  }

  // A row with the checksums that it should have; the second, if what it refers to can be read.
  Bytes sealed(Bytes row, uint64_t seq, const std::vector<uint64_t>& salts,
               const View& view) const {
    uint32_t crc = first_sum(row.data(), seq, salts);
    std::memcpy(&row[size()], &crc, 4);
    std::vector<uint64_t> numbers;
    resolve(row.data(), view, &numbers);
    if (numbers.size() == form_.references()) {
      crc = second_sum(row.data(), crc, numbers, view);
      std::memcpy(&row[size() + 4], &crc, 4);
    }
    std::fill(row.begin() + static_cast<std::ptrdiff_t>(size() + 8), row.end(), 0);
    return row;
  }

  // What a stored row was; false: it is damaged.
  bool read(const uint8_t* row, uint64_t seq, const std::vector<uint64_t>& salts, const View& view,
            uint8_t* record) const {
    const uint32_t crc = first_sum(row, seq, salts);
    std::vector<uint64_t> numbers;
    if (crc != load<uint32_t>(row + size()) || !resolve(row, view, &numbers) ||
        second_sum(row, crc, numbers, view) != load<uint32_t>(row + size() + 4))
      return false;
    for (const contig::KeptLeaf& leaf : form_.kept())
      for (uint64_t b = 0; b < leaf.bytes; ++b) record[leaf.offset + b] = row[leaf.stored + b];
    uint64_t at = 0;  // of the leaf's frame in a slot
    for (const contig::SharedLeaf& leaf : shape_.shared) {
      for (uint64_t b = 0; b < leaf.bytes; ++b) {
        const uint64_t frame = b / leaf.inner % leaf.frames;
        const uint64_t in = b / (leaf.inner * leaf.frames) * leaf.inner + b % leaf.inner;
        const uint64_t j = form_.stack() - leaf.frames + frame;
        const auto byte = [&](uint64_t slot) {
          return view.data[slot * form_.slot_bytes() + at + in - view.base];
        };
        record[leaf.offset + b] = byte(numbers[j]);
        if (shape_.paired) record[leaf.next_offset + b] = byte(numbers[form_.stack() + j]);
      }
      at += leaf.bytes / leaf.frames;
    }
    return true;
  }

 private:
  uint64_t size() const { return (form_.row_bytes() + 7) / 8 * 8 + 16; }

  uint32_t first_sum(const uint8_t* row, uint64_t seq, const std::vector<uint64_t>& salts) const {
    uint64_t salt = 0;
    for (size_t i = 0; i < salts.size(); i += 2)
      if (salts[i] <= seq) salt = salts[i + 1];
    uint32_t crc = 0;
    if (salt != 0) {
      crc = crc32c_bits(crc, reinterpret_cast<const uint8_t*>(&salt), 8);
      crc = crc32c_bits(crc, reinterpret_cast<const uint8_t*>(&seq), 8);
    }
    return crc32c_bits(crc, row, size());
  }

  uint32_t second_sum(const uint8_t* row, uint32_t crc, const std::vector<uint64_t>& numbers,
                      const View& view) const {
    const auto position = load<uint64_t>(row + size() - 16);
    const auto bytes = load<uint64_t>(row + size() - 8);
    const uint64_t own = position / form_.slot_bytes() * form_.slot_bytes();
    if (bytes > 0) crc = crc32c_bits(crc, view.data + (own - view.base), bytes);
    std::vector<uint64_t> seen;
    for (const uint64_t number : numbers) {
      const uint64_t at = number * form_.slot_bytes();
      if (at >= own || std::count(seen.begin(), seen.end(), number) != 0) continue;
      seen.push_back(number);
      crc = crc32c_bits(crc, view.data + (at - view.base), form_.slot_bytes());
    }
    return crc;
  }

  // The slots that a row refers to; false: it says what no row says, or one is not there. All of
  // them, if somebody who looks less closely could read them.
  bool resolve(const uint8_t* row, const View& view, std::vector<uint64_t>* numbers) const {
    const auto position = load<uint64_t>(row + size() - 16);
    const auto bytes = load<uint64_t>(row + size() - 8);
    const uint64_t slot = form_.slot_bytes();
    if (bytes / slot > form_.references() || position + bytes < position ||
        (bytes > 0 && !view.has(position / slot * slot, bytes)))
      return false;
    bool right = position % slot == 0 && bytes % slot == 0;
    const uint64_t end = position / slot + bytes / slot;
    for (uint64_t j = 0; j < form_.references(); ++j) {
      // The newest one below the end whose number ends so.
      const auto low = load<uint32_t>(row + 4 * j);
      uint64_t number = (end & ~uint64_t{0xFFFFFFFF}) | low;
      if (number >= end) {
        right = right && number >= uint64_t{1} << 32;
        if (number >= uint64_t{1} << 32) number -= uint64_t{1} << 32;
      }
      if (!view.has(number * slot, slot)) return false;
      numbers->push_back(number);
    }
    return right;
  }

  Slot frames(const uint8_t* record, bool next, uint64_t j) const {
    Slot out;
    for (const contig::SharedLeaf& leaf : shape_.shared) {
      const uint64_t first = form_.stack() - leaf.frames, frame = j < first ? 0 : j - first;
      out.emplace_back();
      for (uint64_t b = 0; b < leaf.bytes; ++b)
        if (b / leaf.inner % leaf.frames == frame)
          out.back().push_back(record[(next ? leaf.next_offset : leaf.offset) + b]);
    }
    return out;
  }

  uint64_t find(const Slot& wanted, uint64_t j, const std::vector<uint64_t>& candidates) {
    for (const uint64_t slot : candidates) {
      if (slot == kNoSlot || slots.size() - slot > reach_) continue;
      bool same = true;  // leaves that have fewer frames have none before
      for (size_t l = 0; l < wanted.size(); ++l)
        if (j >= form_.stack() - shape_.shared[l].frames)
          same = same && slots[slot][l] == wanted[l];
      if (same) return slot;
    }
    slots.push_back(wanted);
    return slots.size() - 1;
  }

  void refer(const uint8_t* record, std::vector<uint64_t>* expected) {
    const uint64_t k = form_.stack();
    std::vector<uint64_t> now, next;
    expected->resize(k, kNoSlot);
    for (uint64_t j = 0; j < k; ++j)
      now.push_back(
          find(frames(record, false, j), j, {(*expected)[j], j > 0 ? now[j - 1] : kNoSlot}));
    for (uint64_t j = 0; j < k && shape_.paired; ++j)
      next.push_back(
          find(frames(record, true, j), j,
               {j + 1 < k ? now[j + 1] : kNoSlot, now[j], j > 0 ? next[j - 1] : kNoSlot}));
    *expected = next;
    if (!shape_.paired) {
      expected->assign(now.begin() + 1, now.end());
      expected->push_back(kNoSlot);
    }
    now.insert(now.end(), next.begin(), next.end());
    references.push_back(now);
  }

  const Shape shape_;
  const contig::SharedForm form_;
  uint64_t stride_, reach_;
};

}  // namespace stored_model
