#include "native/wire/items.h"

#include <cstring>
#include <stdexcept>
#include <utility>

namespace contig {

namespace {
uint64_t word(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The runs: what they say themselves, how many rows they have, and how many fields follow them.
Refusal check_runs(const Frame& f, const uint8_t* body, bool with_fields, uint64_t* n_rows,
                   uint64_t* n_fields) {
  uint64_t rows = 0, given = 0;
  for (uint32_t i = 0; i < f.runs; ++i) {
    const WireRun run = read_run(body + i * kRunBytes);
    const bool marked = (run.flags & kMarked) != 0;
    const uint32_t known_marked = kMarked | kGoesOn | kTold | kSeveral;
    uint32_t known = marked ? known_marked : kBegins | kEnded | kRowIds | kStarts;
    if (with_fields) known |= kHasFields;
    if (run.rows == 0 || (run.flags & ~known) != 0) return Refusal::shape;
    if (marked ? run.lanes == 0 || run.lanes > kMaxLanes || run.rows % run.lanes != 0
               : run.lanes != 0)
      return Refusal::shape;
    if ((run.flags & kHasFields) != 0) {
      // One for all of it, or one for each lane.
      if (run.fields != 1 && (!marked || run.fields != run.lanes)) return Refusal::shape;
      given += run.fields;
    }
    rows += run.rows;
  }
  *n_rows = rows;
  *n_fields = given;
  return Refusal::none;
}

// Masks of leaves that there are, and bools that are some.
Refusal check_fields(const uint8_t* given, uint64_t n, const ItemShape& shape) {
  const uint64_t size = shape.given_bytes();
  const uint64_t beyond = shape.field_leaves < 64 ? ~uint64_t{0} << shape.field_leaves : 0;
  for (uint64_t i = 0; i < n; ++i)
    if ((word(given + i * size) & beyond) != 0) return Refusal::shape;
  for (const Bools& where : shape.field_bools)
    if (!are_bools(given + 8, n, size, where)) return Refusal::value;
  return Refusal::none;
}

bool fits(const VariableLeaf& leaf, const uint8_t* bytes, uint64_t n) {
  if (leaf.unit == 0 ? n != 0 : n % leaf.unit != 0) return false;
  if (leaf.content == VariableLeaf::text) return is_utf8(bytes, n);
  return leaf.content == VariableLeaf::any || are_bools(bytes, 1, n, Bools{0, n});
}

// Positions and lengths in packed order: row by row, leaf by leaf, without gaps, to the last byte.
Refusal check_bytes(const ItemParts& parts, uint64_t rows, const ItemShape& shape) {
  uint64_t at = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint8_t* record = parts.records + row * parts.row_bytes;
    for (const VariableLeaf& leaf : parts.variable(shape)) {
      const uint64_t position = word(record + leaf.offset), n = word(record + leaf.offset + 8);
      if (position != at || n > parts.n_bytes - at) return Refusal::shape;
      if (!fits(leaf, parts.bytes + at, n)) return Refusal::value;
      at += n;
    }
  }
  return at == parts.n_bytes ? Refusal::none : Refusal::shape;
}

bool bools_fit(const uint8_t* records, uint64_t n, uint64_t size, const std::vector<Bools>& all) {
  for (const Bools& where : all) {
    if (where.offset > size || where.bytes > size - where.offset) return false;
    if (!are_bools(records, n, size, where)) return false;
  }
  return true;
}

// Rows, and the slots that they refer to, at the front of what is `left`.
Refusal check_rows(const Frame& f, uint64_t left, uint64_t record_size, const ItemShape& shape,
                   ItemParts* parts) {
  const bool compact = (f.flags & kCompactRows) != 0;
  if ((compact && !shape.form) || (f.flags & kCarriedSlots) != 0) return Refusal::shape;
  parts->row_bytes = compact ? shape.form.row_bytes() : record_size;
  if (f.rows > left / parts->row_bytes) return Refusal::shape;
  left -= f.rows * parts->row_bytes;
  parts->bytes = parts->records + f.rows * parts->row_bytes;
  if (compact) {
    const uint64_t size = shape.form.slot_bytes();
    if (!check_references(shape.form, parts->records, f.rows, left / size, &parts->n_slots))
      return Refusal::shape;
    parts->slots = parts->bytes;
    parts->bytes += parts->n_slots * size;
    left -= parts->n_slots * size;
    if (!bools_fit(parts->slots, parts->n_slots, size, shape.slot_bools)) return Refusal::value;
  }
  parts->n_bytes = left;
  const std::vector<VariableLeaf>& variable = parts->variable(shape);
  if (left > 0 && variable.empty()) return Refusal::shape;
  const std::vector<Bools>& bools = compact ? shape.kept_bools : shape.bools;
  if (!bools_fit(parts->records, f.rows, parts->row_bytes, bools)) return Refusal::value;
  for (const VariableLeaf& leaf : variable)
    if (parts->row_bytes < 16 || leaf.offset > parts->row_bytes - 16) return Refusal::shape;
  return Refusal::none;
}
}  // namespace

void ItemShape::share(SharedForm shared) {
  if (!shared) throw std::invalid_argument("share: no leaves that are stored once");
  kept_bools.clear();
  slot_bools.clear();
  kept_variable.clear();
  for (const Bools& where : bools) {
    size_t leaf;
    bool next;
    if (!shared.find(where.offset, &leaf, &next))
      kept_bools.push_back(Bools{shared.stored(where.offset), where.bytes});
    else if (!next)
      slot_bools.push_back(Bools{shared.leaves()[leaf].at,
                                 shared.leaves()[leaf].bytes / shared.leaves()[leaf].frames});
  }
  for (const VariableLeaf& leaf : variable)
    kept_variable.push_back(VariableLeaf{shared.stored(leaf.offset), leaf.unit, leaf.content});
  form = std::move(shared);
}

Refusal check_front(const Frame& f, const uint8_t* body, bool runs, const ItemShape& shape,
                    ItemParts* parts, uint64_t* left) {
  if (f.rows == 0 || runs != (f.runs > 0)) return Refusal::shape;
  uint64_t rows = f.rows, given = 0;
  const Refusal said = check_runs(f, body, shape.fields > 0, &rows, &given);
  if (said != Refusal::none) return said;
  if (runs && rows != f.rows) return Refusal::shape;
  *left = f.length - uint64_t{f.runs} * kRunBytes;
  *parts = ItemParts{};
  parts->runs = body;
  parts->fields = body + uint64_t{f.runs} * kRunBytes;
  if (given > 0) {
    const uint64_t size = shape.given_bytes();
    if (given > *left / size) return Refusal::shape;
    *left -= given * size;
    const Refusal refusal = check_fields(parts->fields, given, shape);
    if (refusal != Refusal::none) return refusal;
  }
  parts->records = parts->fields + given * shape.given_bytes();
  return Refusal::none;
}

Refusal check_items(const Frame& f, const uint8_t* body, uint64_t record_size, bool runs,
                    const ItemShape& shape, ItemParts* parts) {
  if (record_size == 0) return Refusal::shape;
  uint64_t left;
  Refusal refused = check_front(f, body, runs, shape, parts, &left);
  if (refused != Refusal::none) return refused;
  refused = check_rows(f, left, record_size, shape, parts);
  if (refused != Refusal::none || shape.variable.empty()) return refused;
  return check_bytes(*parts, f.rows, shape);
}

ItemParts parts_of(const Frame& f, const uint8_t* body, uint64_t record_size,
                   const ItemShape& shape) {
  uint64_t given = 0;
  for (uint32_t i = 0; shape.fields > 0 && i < f.runs; ++i) {
    const WireRun run = read_run(body + i * kRunBytes);
    if ((run.flags & kHasFields) != 0) given += run.fields;
  }
  ItemParts parts;
  parts.runs = body;
  parts.fields = body + uint64_t{f.runs} * kRunBytes;
  parts.records = parts.fields + given * shape.given_bytes();
  const bool compact = shape.form && (f.flags & kCompactRows) != 0;
  parts.row_bytes = compact ? shape.form.row_bytes() : record_size;
  parts.bytes = parts.records + f.rows * parts.row_bytes;
  if (compact) {
    parts.slots = parts.bytes;
    parts.n_slots = slots_of(shape.form, parts.records, f.rows);
    parts.bytes += parts.n_slots * shape.form.slot_bytes();
  }
  parts.n_bytes = static_cast<uint64_t>(body + f.length - parts.bytes);
  return parts;
}

uint64_t first_byte(const uint8_t* record, const std::vector<VariableLeaf>& variable) {
  return word(record + variable.front().offset);
}

uint64_t past_bytes(const uint8_t* record, const std::vector<VariableLeaf>& variable) {
  const uint8_t* last = record + variable.back().offset;
  return word(last) + word(last + 8);
}

bool are_bools(const uint8_t* records, uint64_t n, uint64_t record_size, const Bools& where) {
  uint8_t any = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint8_t* p = records + i * record_size + where.offset;
    for (uint64_t k = 0; k < where.bytes; ++k) any |= p[k];
  }
  return any <= 1;
}

bool is_utf8(const uint8_t* p, uint64_t bytes) {
  const uint8_t* const end = p + bytes;
  while (p < end) {
    if (end - p >= 8 && (word(p) & 0x8080808080808080ull) == 0) {
      p += 8;
      continue;
    }
    const uint8_t first = *p++;
    if (first < 0x80) continue;
    // How many follow, and between what the first of them is: no longer than needed, no halves of
    // UTF-16, nothing beyond the last character.
    int more = 0;
    uint8_t low = 0x80, high = 0xBF;
    if (first >= 0xC2 && first <= 0xDF) {
      more = 1;
    } else if (first >= 0xE0 && first <= 0xEF) {
      more = 2;
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
    } else if (first >= 0xF0 && first <= 0xF4) {
      more = 3;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    } else {
      return false;
    }
    for (; more > 0; --more, low = 0x80, high = 0xBF)
      if (p == end || *p < low || *p++ > high) return false;
  }
  return true;
}

}  // namespace contig
