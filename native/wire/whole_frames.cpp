#include "native/wire/whole_frames.h"

#include <cstring>

#include "native/kernels/crc32c.h"
#include "native/tape/compact_rows.h"

namespace contig {

namespace {
uint64_t word(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Some of a frame's parts: those of one item.
struct Item {
  WireRun run;
  uint64_t row = 0;  // the first
  const uint8_t *fields = nullptr, *bytes = nullptr;
  uint64_t field_bytes = 0, first_byte = 0, n_bytes = 0;
};

// Which bytes of leaves of any size an item has, by its records.
void find_bytes(const OutFrame& from, const WholeRecords& records, const uint8_t* whole,
                Item* item) {
  if (records.variable.empty()) return;
  const uint8_t* last = whole + (item->run.rows - 1) * records.size + records.variable.back();
  item->first_byte = word(whole + records.variable.front());
  item->n_bytes = word(last) + word(last + 8) - item->first_byte;
  item->bytes = from.bytes.data + item->first_byte;
}

void add(OutFrame* to, const Item& item, const WholeRecords& records,
         const std::vector<uint8_t>& whole) {
  const auto* run = reinterpret_cast<const uint8_t*>(&item.run);
  to->runs.insert(to->runs.end(), run, run + kRunBytes);
  to->fields.insert(to->fields.end(), item.fields, item.fields + item.field_bytes);
  uint8_t* at = to->records.behind(0, whole.size());
  std::memcpy(at, whole.data(), whole.size());
  const uint64_t moved = to->bytes.used - item.first_byte;
  for (uint64_t row = 0; row < item.run.rows; ++row)
    for (const uint64_t offset : records.variable) {
      const uint64_t position = word(at + row * records.size + offset) + moved;
      std::memcpy(at + row * records.size + offset, &position, sizeof position);
    }
  to->records.used += whole.size();
  if (item.n_bytes > 0) std::memcpy(to->bytes.behind(0, item.n_bytes), item.bytes, item.n_bytes);
  to->bytes.used += item.n_bytes;
  to->gathered += kRunBytes + item.field_bytes + whole.size() + item.n_bytes;
  to->rows += item.run.rows;
  ++to->items;
}

// Bytes of one run's fields.
uint64_t field_bytes(const OutFrame& frame) {
  uint64_t n = 0;
  for (size_t at = 0; at < frame.runs.size(); at += kRunBytes) {
    const WireRun run = read_run(frame.runs.data() + at);
    n += (run.flags & kHasFields) != 0 ? run.fields : 0;
  }
  return n > 0 ? frame.fields.size() / n : 0;
}
}  // namespace

std::vector<std::shared_ptr<OutFrame>> whole_frames(const OutFrame& frame, const SharedForm& form,
                                                    const WholeRecords& records,
                                                    uint64_t frame_bytes) {
  std::vector<std::shared_ptr<OutFrame>> out;
  const uint64_t given = field_bytes(frame);
  const uint8_t* fields = frame.fields.data();
  std::vector<uint8_t> whole;
  Item item;
  for (size_t at = 0; at < frame.runs.size(); at += kRunBytes, item.row += item.run.rows) {
    item.run = read_run(frame.runs.data() + at);
    item.fields = fields;
    item.field_bytes = (item.run.flags & kHasFields) != 0 ? item.run.fields * given : 0;
    fields += item.field_bytes;
    whole.assign(item.run.rows * records.size, 0);
    const CompactRows rows{frame.records.data + item.row * form.row_bytes(), frame.slots.data,
                           frame.slots.used / form.slot_bytes()};
    expand_rows(form, rows, item.run.rows, records.size, whole.data());
    find_bytes(frame, records, whole.data(), &item);
    const uint64_t more = kRunBytes + item.field_bytes + whole.size() + item.n_bytes;
    if (out.empty() || out.back()->gathered + more > frame_bytes) {
      out.push_back(std::make_shared<OutFrame>());
      out.back()->first = frame.first + at / kRunBytes;
    }
    add(out.back().get(), item, records, whole);
  }
  for (const std::shared_ptr<OutFrame>& made : out) {
    made->records.crc = crc32c(0, made->records.data, made->records.used);
    made->bytes.crc = crc32c(0, made->bytes.data, made->bytes.used);
    made->seal();
  }
  return out;
}

}  // namespace contig
