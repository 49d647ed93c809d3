// Gathering rows of a tape into the columns of a batch, as Python sees it.
#include "native/tape/gather.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>

#include "blob_columns.h"
#include "filling.h"
#include "handles.h"
#include "native/kernels/marks.h"
#include "native/tape/nstep.h"
#include "slot_columns.h"

namespace contig {

namespace {

// Bytes that the calling thread's batches may have: those of leaves of any size are known only when
// their rows are drawn.
thread_local uint64_t most_gathered = UINT64_MAX;

// Where stored leaves go among all leaves of a batch, and which column takes the seqs. With `fold`,
// a batch's row is several of the tape's, folded into one.
class Gatherer {
 public:
  // `sizes`: bytes per row of every column; `stored`: [column, offset, bytes] of each stored leaf.
  // `blobs`: [column, offset, element] of those of any size: their columns are offsets, one more
  // than rows, and their values lie behind all columns, in this order.
  Gatherer(TapeHandle& t, Seqs sizes, Seqs stored, int index, std::optional<Seqs> blobs)
      : tape_(t), sizes_(sizes.data(), sizes.data() + sizes.shape(0)), index_(index) {
    if (!t.tape.attached()) throw std::invalid_argument("Gatherer: the tape has no rows yet");
    first_ = places(stored, false);
    if (blobs) blobs_.add(tape_.tape, *blobs, sizes_);
    const size_t n = sizes_.size();
    if (index_ >= 0 && (static_cast<size_t>(index_) >= n || sizes_[index_] != sizeof(int64_t)))
      throw std::invalid_argument("Gatherer: the index is no int64 column");
    find_extra();
  }

  // Columns that somebody else fills: they are not even made zeros.
  void leave(Seqs columns) {
    for (size_t i = 0; i < columns.shape(0); ++i) {
      const int64_t column = columns.data()[i];
      if (column < 0 || static_cast<size_t>(column) >= sizes_.size())
        throw std::invalid_argument("leave: no such column");
      left_.push_back(static_cast<size_t>(column));
    }
    find_extra();
  }

  // Says that rows are folded: leaves that come from the last row of each group, and the columns of
  // its steps and its summed reward. `reward`: [column, offset, itemsize, count]; `done`: [offset,
  // bytes], or no bytes. `last_blobs`: columns of those leaves of any size that do, too.
  void fold(Seqs last, int steps, const std::string& kinds, Seqs reward, Seqs done, Reals discount,
            std::optional<Seqs> last_blobs) {
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
    f.reward.offset = tape_.tape.form().stored(f.reward.offset);
    if (f.done.bytes > 0) f.done.offset = tape_.tape.form().stored(f.done.offset);
    const uint64_t column = at(reward, 0);
    if (column >= sizes_.size() ||
        static_cast<uint64_t>(sizes_[column]) != f.reward.folded_bytes() || steps < 0 ||
        static_cast<size_t>(steps) >= sizes_.size() || sizes_[steps] != sizeof(int64_t))
      throw std::invalid_argument("fold: a column of the wrong size");
    last_ = places(last, true);
    if (last_blobs) blobs_.take_last(*last_blobs);
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

  // A sample in one call: the view caught up, rows drawn, those that follow found if rows are
  // folded, and all of them gathered. None if something is in the way (nothing is eligible, rows
  // were lost meanwhile, another checkpoint was taken in): then the caller goes step by step.
  nb::object sample(ViewHandle& v, State rng, nb::handle window, size_t n) {
    std::vector<int64_t> seqs(n), damaged;
    Slices groups;
    const Rng from = rng_of(rng);
    const Window w = window_of(window);
    const bool drawn = v.call([&](View& view) {
      view.refresh();
      if (!view.draw_rows(from, w, seqs.data(), n)) return false;
      if (!fold_.discount.empty()) {
        ask_for_folded(tape_.tape, fold_, seqs.data(), n);
        view.follow(seqs.data(), n, fold_.discount.size(), &groups);
      }
      return true;
    });
    if (!drawn) return nb::none();
    Filling f;
    f.seqs = seqs.data(), f.n = n;
    if (!fold_.discount.empty()) {
      f.lengths = groups.lengths.data();
      f.to.asked = true;
    }
    const std::vector<int64_t>& rows = f.lengths == nullptr ? seqs : groups.seqs;
    if (fill(&f, rows.data(), rows.size(), &damaged) != 0 || !damaged.empty() || is_stale(v))
      return nb::none();
    return nb::cast(f.own.release(), nb::rv_policy::take_ownership);
  }

  // The same for slices: drawn, gathered and marked. `marks`: for init, done, terminated, truncated
  // and slice_end the column and what "true" looks like in it, or None; then whether only `ends`
  // says how trajectories ended. (block, rows), or None as before.
  nb::object sample_slices(ViewHandle& v, State rng, nb::handle window, const SliceSpec& spec,
                           size_t n, const nb::tuple& marks) {
    if (!fold_.discount.empty())
      throw std::invalid_argument("sample_slices: rows are to be folded");
    if (nb::len(marks) != 6) throw std::invalid_argument("sample_slices: five columns and a flag");
    Slices s;
    const Rng from = rng_of(rng);
    const Window w = window_of(window);
    const bool drawn = v.call([&](View& view) {
      view.refresh();
      return view.draw_slices(from, w, spec, n, &s);
    });
    if (!drawn) return nb::none();
    std::vector<int64_t> damaged;
    Filling f;
    f.seqs = s.seqs.data(), f.n = s.seqs.size();
    if (fill(&f, f.seqs, f.n, &damaged) != 0 || !damaged.empty() || is_stale(v)) return nb::none();
    const SliceFlags flags{flags_in(f, marks[0]), flags_in(f, marks[1]), flags_in(f, marks[2]),
                           flags_in(f, marks[3]), flags_in(f, marks[4]), nb::cast<bool>(marks[5])};
    mark_slices(flags, s.lengths.data(), s.lengths.data(), s.ends.data(), s.lengths.size());
    return nb::make_tuple(nb::cast(f.own.release(), nb::rv_policy::take_ownership), f.n);
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

  static bool is_stale(const ViewHandle& v) {
    return v.call([](const View& view) { return view.stale(); });
  }

  // A column of flags of a block.
  FlagColumn flags_in(const Filling& f, nb::handle mark) const {
    FlagColumn c;
    if (mark.is_none()) return c;
    const auto t = nb::borrow<nb::tuple>(mark);
    const auto column = nb::cast<size_t>(t[0]);
    const auto one = nb::borrow<nb::bytes>(t[1]);
    if (column >= sizes_.size() || one.size() != static_cast<size_t>(sizes_[column]))
      throw std::invalid_argument("sample_slices: a flag without a column of its size");
    c.bytes = one.size();
    c.one = reinterpret_cast<const uint8_t*>(one.c_str());
    c.data = f.block()->data + f.columns->starts[column];
    return c;
  }

  nb::tuple gather_to(const Seqs& seqs, Block* block, BlockPart part) {
    if (!fold_.discount.empty()) throw std::invalid_argument("gather: rows are to be folded");
    const size_t n = seqs.shape(0);
    return gather_into(seqs.data(), n, seqs.data(), n, nullptr, block, part);
  }

  nb::tuple fold_to(const Seqs& seqs, const Seqs& rows, const Seqs& lengths, Block* block,
                    BlockPart part) {
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

  // Of leaves that are in rows; those that are stored once are put aside.
  std::vector<Place> places(const Seqs& stored, bool of_last) {
    if (stored.shape(0) % 3 != 0) throw std::invalid_argument("Gatherer: three values per leaf");
    std::vector<Place> out;
    for (size_t i = 0; i < stored.shape(0); i += 3) {
      const int64_t* p = stored.data() + i;
      Place place{static_cast<size_t>(p[0]), static_cast<size_t>(p[1]), static_cast<size_t>(p[2])};
      if (place.column >= sizes_.size() || p[2] != sizes_[place.column])
        throw std::invalid_argument("Gatherer: a leaf without a column of its size");
      check_place(place.offset, place.bytes, tape_.tape.record_size(), "Gatherer");
      // The place of a leaf without elements is also that of the leaf behind it.
      if (place.bytes == 0) continue;
      if (slots_.take(tape_.tape, place.column, place.offset, of_last)) continue;
      place.offset = tape_.tape.form().stored(place.offset);
      out.push_back(place);
    }
    return out;
  }

  void find_extra() {
    std::vector<bool> filled(sizes_.size(), false);
    for (const auto* list : {&first_, &last_})
      for (const Place& place : *list) filled[place.column] = true;
    for (const size_t column : left_) filled[column] = true;
    if (index_ >= 0) filled[static_cast<size_t>(index_)] = true;
    if (!fold_.discount.empty()) filled[steps_column_] = filled[reward_column_] = true;
    extra_.clear();
    for (size_t c = 0; c < sizes_.size(); ++c)
      if (!filled[c] && !blobs_.has(c) && !slots_.has(c)) extra_.push_back(c);
  }

  static std::vector<Target> targets(const std::vector<Place>& list, const size_t* starts,
                                     uint8_t* block) {
    std::vector<Target> out(list.size());
    std::transform(list.begin(), list.end(), out.begin(), [&](const Place& p) {
      return Target{block + starts[p.column], p.offset, p.bytes};
    });
    return out;
  }

  nb::tuple gather_into(const int64_t* seqs, size_t n, const int64_t* rows, size_t n_rows,
                        const int64_t* lengths, Block* given, BlockPart part) {
    Filling f;
    f.seqs = seqs, f.n = n, f.lengths = lengths, f.part = part, f.given = given;
    std::vector<int64_t> damaged;
    const uint64_t lost = fill(&f, rows, n_rows, &damaged);
    nb::object bad = damaged.empty() ? nb::none() : to_array(damaged);
    if (given != nullptr) return nb::make_tuple(lost, bad);
    nb::object owner = nb::cast(f.own.release(), nb::rv_policy::take_ownership);
    return nb::make_tuple(owner, lost, bad);
  }

  // Makes the block and copies rows into it; 0, or the tail below which some were lost.
  uint64_t fill(Filling* filling, const int64_t* rows, size_t n_rows,
                std::vector<int64_t>* damaged) {
    Filling& f = *filling;
    const size_t n = f.n;
    f.columns = place_columns(f);
    const Tape& tape = tape_.tape;
    // How large a block with leaves of any size is, rows say; those in files only once they are
    // checked.
    const bool stored = tape.checked(), later = stored && !blobs_.empty();
    const bool wait = stored && cold_.load(std::memory_order_relaxed);
    if (!later) start(&f, rows);
    const auto copy = [&] {
      const auto began =
          stored ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
      if (wait) read_ahead(tape, rows, n_rows);
      const auto prepare = [&](const int64_t* from) {
        if (later) start(&f, from);
      };
      const auto gather_from = [&](const int64_t* from) {
        uint64_t tail;
        if (f.lengths != nullptr)
          tail = slots_.empty() ? fold_rows(tape, fold_, from, f.lengths, n, f.to)
                                : slots_.fold(tape, fold_, from, f);
        else if (slots_.empty())
          tail = gather_columns(tape, from, n, f.to.first.data(), f.to.first.size());
        else
          tail = slots_.gather(tape, from, f);
        return blobs_.empty() ? tail : blobs_.copy(tape, f);
      };
      const uint64_t tail = stored ? gather_whole(tape, rows, n_rows, prepare, gather_from, damaged)
                                   : gather_from(rows);
      if (stored) judge(std::chrono::steady_clock::now() - began, n_rows, f.bytes);
      return lost_below(f.seqs, n, tail);
    };
    uint64_t lost;
    if (n_rows * tape.record_size() + f.bytes < kKeepGil && !wait && !later) {
      lost = copy();
    } else {
      NoGil no_gil;
      lost = copy();
    }
    if (f.block() == nullptr) start(&f, nullptr);  // all are damaged
    if (index_ >= 0) count(f.seqs, n);             // a sample, which has its rows' numbers
    return lost;
  }

  // Where columns begin: mostly where they did the last time. Others may gather meanwhile, into
  // blocks of other sizes: what was handed out is never changed.
  std::shared_ptr<const PlacedColumns> place_columns(const Filling& f) {
    const size_t all = f.given != nullptr ? f.part.rows : f.n;
    if (f.part.first > all || f.n > all - f.part.first)
      throw std::invalid_argument("gather: more rows than the block has");
    if (f.given != nullptr && !blobs_.empty())
      throw std::invalid_argument("gather: leaves of any size go into a block of their own");
    if (placed_ != nullptr && placed_->rows == all && placed_->first == f.part.first)
      return placed_;
    auto placed = std::make_shared<PlacedColumns>();
    placed->rows = all, placed->first = f.part.first;
    for (size_t c = 0; c < sizes_.size(); ++c) {
      const auto size = static_cast<size_t>(sizes_[c]);
      placed->starts.push_back(placed->bytes + size * f.part.first);
      placed->bytes += round_column(size * (all + blobs_.has(c)));
    }
    return placed_ = std::move(placed);
  }

  // Makes the block, of what rows `from` say of leaves of any size; null: they have none. What is
  // not copied from rows is written.
  void start(Filling* f, const int64_t* from) const {
    const size_t* starts = f->columns->starts.data();
    size_t at = f->columns->bytes;
    if (!blobs_.empty()) at = blobs_.measure(tape_.tape, fold_, from, f);
    if (at > most_gathered)
      throw std::invalid_argument(
          "a sample of " + std::to_string(f->n) + " rows has " + std::to_string(at) +
          " bytes, more than a frame may have: " + "max_frame is " + std::to_string(most_gathered));
    if (f->given != nullptr && f->given->bytes < at)
      throw std::invalid_argument("gather: a block that is too small");
    if (f->given == nullptr) f->own = std::make_unique<Block>(at);
    uint8_t* data = f->block()->data;
    if (from == nullptr) std::memset(data, 0, at);
    for (const size_t c : extra_)  // leaves that are not stored start as zeros
      std::memset(data + starts[c], 0, static_cast<size_t>(sizes_[c]) * f->n);
    if (index_ >= 0 && f->n > 0) {
      auto* index = reinterpret_cast<int64_t*>(data + starts[static_cast<size_t>(index_)]);
      std::memcpy(index, f->seqs, f->n * sizeof(int64_t));
      for (size_t i = 0; f->part.base != 0 && i < f->n; ++i) index[i] += f->part.base;
    }
    f->to.first = targets(first_, starts, data);
    if (fold_.discount.empty()) return;
    f->to.last = targets(last_, starts, data);
    f->to.steps = reinterpret_cast<int64_t*>(data + starts[steps_column_]);
    f->to.rewards = data + starts[reward_column_];
  }

  // Rows that took longer than from memory came from the disk: the next ones are asked for
  // together, and nobody waits for the GIL meanwhile.
  void judge(std::chrono::nanoseconds took, size_t n, uint64_t bytes) {
    const uint64_t from_memory = n * (3000 + tape_.tape.record_size() / 2) + bytes / 2;
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
  std::vector<size_t> extra_, left_;
  BlobColumns blobs_;
  SlotColumns slots_;
  std::shared_ptr<const PlacedColumns> placed_;  // the last time; with the GIL only
  Fold fold_;
  size_t steps_column_ = 0, reward_column_ = 0;
  std::atomic<bool> cold_{true};  // of a storage on disk: the last rows were not in memory
};

}  // namespace

void bind_gather(nb::module_& m) {
  m.def(
      "limit_gather",
      [](uint64_t bytes) {
        const uint64_t before = most_gathered;
        most_gathered = bytes;
        return before;
      },
      nb::arg("bytes"),
      "From now on, batches that this thread gathers have at most so many bytes, or a ValueError "
      "says how many it would have been. How many it was before.");
  m.def("can_fold", [](const std::string& kind, size_t itemsize) {
    return kind.size() == 1 && Fold::knows(kind[0], itemsize);
  });
  nb::class_<Gatherer>(m, "Gatherer")
      .def(nb::init<TapeHandle&, Seqs, Seqs, int, std::optional<Seqs>>(), nb::arg("tape"),
           nb::arg("sizes").noconvert(), nb::arg("stored").noconvert(), nb::arg("index"),
           nb::arg("blobs").noconvert() = nb::none(), nb::keep_alive<1, 2>())
      .def("leave", &Gatherer::leave, nb::arg().noconvert())
      .def("fold", &Gatherer::fold, nb::arg("last").noconvert(), nb::arg("steps"), nb::arg("kinds"),
           nb::arg("reward").noconvert(), nb::arg("done").noconvert(),
           nb::arg("discount").noconvert(), nb::arg("last_blobs").noconvert() = nb::none())
      .def("gather", &Gatherer::gather, nb::arg().noconvert())
      .def("sample", &Gatherer::sample, nb::arg("view"), nb::arg("rng").noconvert(),
           nb::arg("window").none(), nb::arg("n"))
      .def("sample_slices", &Gatherer::sample_slices, nb::arg("view"), nb::arg("rng").noconvert(),
           nb::arg("window").none(), nb::arg("spec"), nb::arg("n"), nb::arg("marks"))
      .def("gather_at", &Gatherer::gather_at, nb::arg().noconvert(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg())
      .def("gather_folded_at", &Gatherer::gather_folded_at, nb::arg().noconvert(),
           nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(), nb::arg(), nb::arg(), nb::arg())
      .def("gather_folded", &Gatherer::gather_folded, nb::arg().noconvert(), nb::arg().noconvert(),
           nb::arg().noconvert());
}

}  // namespace contig
