// Gathering rows of a tape into the columns of a batch, as Python sees it.
#include "native/tape/gather.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "handles.h"
#include "native/tape/nstep.h"

namespace contig {

namespace {

// Where stored leaves go among all leaves of a batch, and which column takes the seqs. With `fold`,
// a batch's row is several of the tape's, folded into one.
class Gatherer {
 public:
  // `sizes`: bytes per row of every column; `stored`: [column, offset, bytes] of each stored leaf.
  Gatherer(TapeHandle& t, Seqs sizes, Seqs stored, int index)
      : tape_(t),
        sizes_(sizes.data(), sizes.data() + sizes.shape(0)),
        index_(index),
        starts_(sizes.shape(0)) {
    if (!t.tape.attached()) throw std::invalid_argument("Gatherer: the tape has no rows yet");
    first_ = places(stored);
    const size_t n = sizes_.size();
    if (index_ >= 0 && (static_cast<size_t>(index_) >= n || sizes_[index_] != sizeof(int64_t)))
      throw std::invalid_argument("Gatherer: the index is no int64 column");
    find_extra();
  }

  // Says that rows are folded: leaves that come from the last row of each group, and the columns of
  // its steps and its summed reward. `reward`: [column, offset, itemsize, count]; `done`: [offset,
  // bytes], or no bytes.
  void fold(Seqs last, int steps, const std::string& kinds, Seqs reward, Seqs done,
            Reals discount) {
    Fold f;
    if (kinds.size() != 2 || reward.shape(0) != 4 || done.shape(0) != 2 || discount.shape(0) == 0)
      throw std::invalid_argument("fold: kinds, a reward and a flag were expected");
    const auto at = [](const Seqs& s, size_t i) { return static_cast<uint64_t>(s.data()[i]); };
    f.reward = {kinds[0], at(reward, 1), at(reward, 2), at(reward, 3)};
    f.done = {kinds[1], at(done, 0), at(done, 1)};
    f.discount.assign(discount.data(), discount.data() + discount.shape(0));
    const uint64_t record = tape_.tape.record_size();
    if (!Fold::knows(f.reward.kind, f.reward.itemsize) || f.reward.count > record)
      throw std::invalid_argument("fold: rewards of this dtype cannot be summed");
    check_place(f.reward.offset, f.reward.bytes(), record, "fold");
    check_place(f.done.offset, f.done.bytes, record, "fold");
    const uint64_t column = at(reward, 0);
    if (column >= sizes_.size() ||
        static_cast<uint64_t>(sizes_[column]) != f.reward.folded_bytes() || steps < 0 ||
        static_cast<size_t>(steps) >= sizes_.size() || sizes_[steps] != sizeof(int64_t))
      throw std::invalid_argument("fold: a column of the wrong size");
    last_ = places(last);
    reward_column_ = column;
    steps_column_ = static_cast<size_t>(steps);
    fold_ = std::move(f);
    find_extra();
  }

  // (block, lost, damaged): lost is 0, or the tail below which rows were lost while they were
  // copied; damaged is None, or the places of rows whose checksum is wrong.
  nb::tuple gather(Seqs seqs) { return gather_to(seqs, nullptr, {}); }

  // The same into a block that has `rows` rows, from its row `first` on: (lost, damaged). `base` is
  // added to the seqs that the batch gets.
  nb::tuple gather_at(Seqs seqs, Block& block, size_t rows, size_t first, int64_t base) {
    return gather_to(seqs, &block, {rows, first, base});
  }

  // The same for groups of rows, one after another; `seqs` are the first of each. Places of damaged
  // rows are those among all rows.
  nb::tuple gather_folded(Seqs seqs, Seqs rows, Seqs lengths) {
    return fold_to(seqs, rows, lengths, nullptr, {});
  }

  nb::tuple gather_folded_at(Seqs seqs, Seqs rows, Seqs lengths, Block& block, size_t all,
                             size_t first, int64_t base) {
    return fold_to(seqs, rows, lengths, &block, {all, first, base});
  }

 private:
  struct Place {
    size_t column, offset, bytes;
  };
  struct Part {
    size_t rows = 0, first = 0;  // of a block that is there: its rows, and the first to be filled
    int64_t base = 0;
  };

  nb::tuple gather_to(const Seqs& seqs, Block* block, Part part) {
    if (!fold_.discount.empty()) throw std::invalid_argument("gather: rows are to be folded");
    const size_t n = seqs.shape(0);
    return gather_into(seqs.data(), n, seqs.data(), n, nullptr, block, part);
  }

  nb::tuple fold_to(const Seqs& seqs, const Seqs& rows, const Seqs& lengths, Block* block,
                    Part part) {
    const size_t groups = lengths.shape(0);
    uint64_t total = 0;
    bool fits = seqs.shape(0) == groups;
    for (size_t i = 0; i < groups; ++i) {
      const auto n = static_cast<uint64_t>(lengths.data()[i]);
      fits = fits && n >= 1 && n <= fold_.discount.size();
      total += n;
    }
    if (!fits || total != rows.shape(0))
      throw std::invalid_argument("gather_folded: groups that do not fit the rows");
    return gather_into(seqs.data(), groups, rows.data(), rows.shape(0), lengths.data(), block,
                       part);
  }

  std::vector<Place> places(const Seqs& stored) const {
    if (stored.shape(0) % 3 != 0) throw std::invalid_argument("Gatherer: three values per leaf");
    std::vector<Place> out;
    for (size_t i = 0; i < stored.shape(0); i += 3) {
      const int64_t* p = stored.data() + i;
      const Place place{static_cast<size_t>(p[0]), static_cast<size_t>(p[1]),
                        static_cast<size_t>(p[2])};
      if (place.column >= sizes_.size() || p[2] != sizes_[place.column])
        throw std::invalid_argument("Gatherer: a leaf without a column of its size");
      check_place(place.offset, place.bytes, tape_.tape.record_size(), "Gatherer");
      out.push_back(place);
    }
    return out;
  }

  void find_extra() {
    std::vector<bool> filled(sizes_.size(), false);
    for (const auto* list : {&first_, &last_})
      for (const Place& place : *list) filled[place.column] = true;
    if (index_ >= 0) filled[static_cast<size_t>(index_)] = true;
    if (!fold_.discount.empty()) filled[steps_column_] = filled[reward_column_] = true;
    extra_.clear();
    for (size_t c = 0; c < sizes_.size(); ++c)
      if (!filled[c]) extra_.push_back(c);
  }

  std::vector<Target> targets(const std::vector<Place>& list, uint8_t* block) const {
    std::vector<Target> out(list.size());
    std::transform(list.begin(), list.end(), out.begin(), [&](const Place& p) {
      return Target{block + starts_[p.column], p.offset, p.bytes};
    });
    return out;
  }

  nb::tuple gather_into(const int64_t* seqs, size_t n, const int64_t* rows, size_t n_rows,
                        const int64_t* lengths, Block* given, Part part) {
    size_t at = 0;
    const size_t all = given != nullptr ? part.rows : n;
    if (part.first > all || n > all - part.first)
      throw std::invalid_argument("gather: more rows than the block has");
    for (size_t c = 0; c < sizes_.size(); ++c) {
      const auto size = static_cast<size_t>(sizes_[c]);
      starts_[c] = at + size * part.first;
      at += (size * all + kColumnAlign - 1) / kColumnAlign * kColumnAlign;
    }
    if (given != nullptr && given->bytes < at)
      throw std::invalid_argument("gather: a block that is too small");
    auto* block = given != nullptr ? given : new Block(at);
    nb::object owner =
        given != nullptr ? nb::none() : nb::cast(block, nb::rv_policy::take_ownership);
    for (const size_t c : extra_)  // leaves that are not stored start as zeros
      std::memset(block->data + starts_[c], 0, static_cast<size_t>(sizes_[c]) * n);
    if (index_ >= 0 && n > 0)
      std::memcpy(block->data + starts_[static_cast<size_t>(index_)], seqs, n * sizeof(int64_t));
    if (index_ >= 0 && part.base != 0) {
      auto* index = reinterpret_cast<int64_t*>(block->data + starts_[static_cast<size_t>(index_)]);
      for (size_t i = 0; i < n; ++i) index[i] += part.base;
    }
    Folded to;
    to.first = targets(first_, block->data);
    to.last = targets(last_, block->data);
    to.steps = reinterpret_cast<int64_t*>(block->data + starts_[steps_column_]);
    to.rewards = block->data + starts_[reward_column_];
    const Tape& tape = tape_.tape;
    std::vector<int64_t> damaged;
    const bool stored = tape.checked(), wait = stored && cold_.load(std::memory_order_relaxed);
    const auto copy = [&] {
      const auto began = std::chrono::steady_clock::now();
      if (wait) read_ahead(tape, rows, n_rows);
      const auto gather_from = [&](const int64_t* from) {
        return lengths != nullptr ? fold_rows(tape, fold_, from, lengths, n, to)
                                  : gather_columns(tape, from, n, to.first.data(), to.first.size());
      };
      const uint64_t tail =
          stored ? gather_whole(tape, rows, n_rows, gather_from, &damaged) : gather_from(rows);
      if (stored) judge(std::chrono::steady_clock::now() - began, n_rows);
      return lost_below(seqs, n, tail);
    };
    uint64_t lost;
    if (n_rows * tape.record_size() < kKeepGil && !wait) {
      lost = copy();
    } else {
      NoGil no_gil;
      lost = copy();
    }
    if (index_ >= 0) count(seqs, n);  // a sample, which has its rows' numbers
    nb::object bad = damaged.empty() ? nb::none() : to_array(damaged);
    return given != nullptr ? nb::make_tuple(lost, bad) : nb::make_tuple(owner, lost, bad);
  }

  // Rows that took longer than from memory came from the disk: the next ones are asked for
  // together, and nobody waits for the GIL meanwhile.
  void judge(std::chrono::nanoseconds took, size_t n) {
    const uint64_t from_memory = n * (3000 + tape_.tape.record_size() / 2);
    cold_.store(static_cast<uint64_t>(took.count()) > from_memory, std::memory_order_relaxed);
  }

  // How old what readers draw is, in rows written since.
  void count(const int64_t* seqs, size_t n) const {
    Header& h = tape_.tape.header();
    const auto head = static_cast<int64_t>(h.head.load(std::memory_order_relaxed));
    int64_t age = 0;
    for (size_t i = 0; i < n; ++i) age += head - seqs[i];
    h.drawn.fetch_add(n, std::memory_order_relaxed);
    h.drawn_age.fetch_add(static_cast<uint64_t>(age), std::memory_order_relaxed);
  }

  TapeHandle& tape_;
  std::vector<int64_t> sizes_;
  std::vector<Place> first_, last_;  // leaves of a group's first row, and of its last
  int index_;
  std::vector<size_t> starts_, extra_;
  Fold fold_;
  size_t steps_column_ = 0, reward_column_ = 0;
  std::atomic<bool> cold_{true};  // of a storage on disk: the last rows were not in memory
};

}  // namespace

void bind_gather(nb::module_& m) {
  m.def("can_fold", [](const std::string& kind, size_t itemsize) {
    return kind.size() == 1 && Fold::knows(kind[0], itemsize);
  });
  nb::class_<Gatherer>(m, "Gatherer")
      .def(nb::init<TapeHandle&, Seqs, Seqs, int>(), nb::arg("tape"), nb::arg("sizes").noconvert(),
           nb::arg("stored").noconvert(), nb::arg("index"), nb::keep_alive<1, 2>())
      .def("fold", &Gatherer::fold, nb::arg("last").noconvert(), nb::arg("steps"), nb::arg("kinds"),
           nb::arg("reward").noconvert(), nb::arg("done").noconvert(),
           nb::arg("discount").noconvert())
      .def("gather", &Gatherer::gather, nb::arg().noconvert())
      .def("gather_at", &Gatherer::gather_at, nb::arg().noconvert(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg())
      .def("gather_folded_at", &Gatherer::gather_folded_at, nb::arg().noconvert(),
           nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
      .def("gather_folded", &Gatherer::gather_folded, nb::arg().noconvert(), nb::arg().noconvert(),
           nb::arg().noconvert());
}

}  // namespace contig
