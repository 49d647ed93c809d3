// Which leaves of a record say where trajectories begin and end, as Python gives them.
#include <nanobind/stl/string.h>

#include "handles.h"

namespace contig {

namespace {
Mark::Kind mark_kind(char kind, size_t itemsize) {
  const int log = itemsize == 1 ? 0 : itemsize == 2 ? 1 : itemsize == 4 ? 2 : 3;
  static constexpr Mark::Kind ints[] = {Mark::i8, Mark::i16, Mark::i32, Mark::i64};
  static constexpr Mark::Kind uints[] = {Mark::u8, Mark::u16, Mark::u32, Mark::u64};
  switch (kind) {
    case 'b':
      return Mark::b1;
    case 'i':
      return ints[log];
    case 'u':
      return uints[log];
    case 'f':
      return itemsize == 2 ? Mark::f16 : itemsize == 4 ? Mark::f32 : Mark::f64;
    case 'V':  // what numpy has no kind for
      return Mark::bf16;
    default:
      return Mark::none;
  }
}

enum Role { r_id, r_done, r_terminated, r_truncated, r_init, r_version, r_reward };
constexpr const char* kRoles[] = {"id",   "done",    "terminated", "truncated",
                                  "init", "version", "reward"};

Mark* mark_of(Marks& m, int role) {
  Mark* const all[] = {&m.id, &m.done, &m.terminated, &m.truncated, &m.init, &m.version, &m.reward};
  return all[role];
}

}  // namespace

MarkSpecs::MarkSpecs(nb::dict marks, bool id_alone) : id_alone_(id_alone) {
  for (int role = 0; role < 7; ++role) {
    if (!marks.contains(kRoles[role])) continue;
    const auto t = nb::cast<nb::tuple>(marks[kRoles[role]]);
    const auto itemsize = nb::cast<size_t>(t[1]);
    MarkSpec spec;
    spec.kind = mark_kind(nb::cast<std::string>(t[0])[0], itemsize);
    spec.offset = nb::cast<size_t>(t[2]);
    spec.count = nb::cast<size_t>(t[3]);
    spec.bytes = spec.count * itemsize;
    specs_.emplace_back(role, spec);
  }
}

bool MarkSpecs::by_id() const {
  for (const auto& item : specs_)
    if (item.first == r_id) return true;
  return false;
}

void MarkSpecs::check(uint64_t record_size) const {
  for (const auto& item : specs_)
    check_place(item.second.offset, item.second.bytes, record_size, "Writer");
}

Marks MarkSpecs::of(const Rows& rows, size_t record_size) const {
  Marks m;
  m.id_alone = id_alone_;
  for (const auto& item : specs_) {
    Mark& mark = *mark_of(m, item.first);
    mark.count = item.second.count;
    if (rows.records != nullptr) {
      mark.data = rows.records + item.second.offset;
      mark.stride = record_size;
    } else {
      for (size_t c = 0; c < rows.n_columns; ++c)
        if (rows.columns[c].offset == item.second.offset && rows.columns[c].bytes > 0) {
          mark.data = rows.columns[c].data;
          mark.stride = rows.columns[c].stride;
        }
      if (mark.data == nullptr) continue;
    }
    mark.kind = item.second.kind;
  }
  return m;
}

Marks MarkSpecs::of_compact(const Rows& rows, const SharedForm& form,
                            std::vector<std::vector<uint8_t>>* values) const {
  Marks m = of(rows, 0);
  values->clear();
  for (const auto& item : specs_) {
    size_t leaf;
    bool next;
    if (!form.find(item.second.offset, &leaf, &next)) continue;
    const uint64_t bytes = form.leaves()[leaf].bytes;
    values->emplace_back(rows.n * bytes);
    gather_shared(form, *rows.compact, rows.n, leaf, next, values->back().data(), bytes);
    *mark_of(m, item.first) =
        Mark{item.second.kind, values->back().data(), bytes, item.second.count};
  }
  return m;
}

}  // namespace contig
