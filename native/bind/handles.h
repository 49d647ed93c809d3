// What Python holds of the native side: a tape, its writers and its readers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "native/kernels/sumtree.h"
#include "native/sys/block.h"
#include "native/tape/tape.h"
#include "native/tape/view.h"
#include "native/tape/writer.h"
#include "native/wire/tape_intake.h"
#include "no_gil.h"
#include "plan.h"

namespace contig {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Seqs = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Reals = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Record = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using State = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Records = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_fields_size(uint64_t size);

// Whether a leaf of a record lies inside it.
inline void check_place(uint64_t offset, uint64_t bytes, uint64_t record_size, const char* where) {
  if (offset > record_size || bytes > record_size - offset)
    throw std::invalid_argument(std::string(where) + ": a leaf ends past the record");
}

// Headers in shared memory have members that must be aligned.
inline void check_aligned(const uint8_t* memory) {
  if (reinterpret_cast<uintptr_t>(memory) % 64 != 0)
    throw std::invalid_argument("the memory must start at a multiple of 64");
}

// n items of `bytes` each; throws if that is more than there is.
inline void check_room(uint64_t n, uint64_t bytes, uint64_t there, const char* what) {
  if (bytes > 0 && n > there / bytes) throw std::invalid_argument(what);
}

inline Rng rng_of(State& state) {
  if (state.shape(0) != 4) throw std::invalid_argument("rng: expected 4 words of state");
  return Rng(state.data());
}

// Calls that move less than this keep the GIL: handing it over costs more than they do.
constexpr uint64_t kKeepGil = 1u << 20;

// 0 if every row is good, else the tail below which rows were lost.
inline uint64_t lost_below(const int64_t* seqs, size_t n, uint64_t tail) {
  // Without a branch in it, so that it goes by vectors: a difference below zero has the top bit.
  uint64_t below = 0;
  for (size_t i = 0; i < n; ++i) below |= static_cast<uint64_t>(seqs[i]) - tail;
  return below >> 63 != 0 ? tail : 0;
}

// Runs `f` with the tape's lock: tried with the GIL held, waited for without it.
template <class F>
auto with_lock(Tape& tape, double timeout_s, uint64_t bytes, F f) {
  Lock& lock = tape.header().lock;
  const auto locked = [&] {
    struct Release {
      Lock& lock;
      ~Release() { lock_release(lock); }
    } release{lock};
    tape.repair();
    return f();
  };
  if (bytes < kKeepGil && lock_try(lock)) return locked();
  NoGil no_gil;
  if (!lock_until(lock, timeout_s)) throw Busy(lock_holder(lock), timeout_s);
  return locked();
}

struct TapeHandle {
  TapeHandle(Bytes control, int fd)
      : control(control), tape(checked(control), fd, control.shape(0)) {}
  static uint8_t* checked(Bytes& control) {
    if (control.shape(0) < sizeof(Header))
      throw std::invalid_argument("not a contig tape (less than a header)");
    return control.data();
  }
  Held<Bytes> control, data{Bytes()}, blobs{Bytes()}, fields{Bytes()}, slots{Bytes()};
  Tape tape;
  double lock_timeout_s = 10;
};

// How often this process or one of its ancestors was forked.
uint64_t forks();

// Calls of one object that may go on without the GIL, by one thread at a time.
class Turns {
 public:
  // This thread's turn: waits, without the GIL, while another thread has it.
  std::unique_lock<std::mutex> take() {
    std::unique_lock<std::mutex> turn(mutex_, std::try_to_lock);
    if (turn.owns_lock()) return turn;
    if (forks_ != forks())  // whoever had the turn is not in this process
      throw std::runtime_error(
          "this process was forked while another thread drew from the storage: attach to it anew");
    const NoGil no_gil;
    turn.lock();
    return turn;
  }

 private:
  std::mutex mutex_;
  const uint64_t forks_ = forks();
};

// Entries of an index, or leaves of a tree, that are worked on with the GIL: one takes 20 ns.
constexpr uint64_t kKeepGilWork = 20000;

// A view belongs to one thread at a time. What it has to take in is mostly little, and done with
// the GIL; a call that turns out to be long goes on without it, while other threads wait.
class ViewHandle {
 public:
  explicit ViewHandle(TapeHandle& tape) : view_(std::make_unique<View>(tape.tape)) {}
  ~ViewHandle() {
    const NoGil no_gil(view_->work() > kKeepGilWork);
    view_.reset();  // before the GIL is back
  }
  ViewHandle(const ViewHandle&) = delete;
  ViewHandle& operator=(const ViewHandle&) = delete;

  // Runs `f(view)`, which must touch nothing of Python's.
  template <class F>
  auto call(F f) const {
    const auto turn = turns_.take();
    std::optional<NoGil> no_gil;
    struct Patience {
      View& view;
      ~Patience() { view.set_patience(~uint64_t{0}, nullptr, nullptr); }
    } patience{*view_};
    view_->set_patience(view_->work() + kKeepGilWork, &let_go, &no_gil);
    return f(*view_);
  }

 private:
  static void let_go(void* no_gil) { static_cast<std::optional<NoGil>*>(no_gil)->emplace(); }

  std::unique_ptr<View> view_;
  mutable Turns turns_;
};

// A window as Python has it: a tuple of its bounds, or None.
Window window_of(nb::handle window);

// What a call gives of fields, (records [n, size], masks [n]) or None, kept until the append.
class GivenFields {
 public:
  // Throws unless there is one, or one for each lane, or one for each row.
  Given take(nb::handle fields, const Tape& tape, uint64_t lanes, uint64_t rows) {
    return fields.is_none() ? Given{} : kept(fields, tape, lanes, rows);
  }

 private:
  Given kept(nb::handle fields, const Tape& tape, uint64_t lanes, uint64_t rows);
  std::vector<uint8_t> records_;
  std::vector<uint64_t> masks_;
};

// A leaf of the record that says where trajectories begin and end.
struct MarkSpec {
  Mark::Kind kind = Mark::none;
  size_t offset = 0, count = 1, bytes = 0;
};

// All of them, by role, as Boundaries.marks in Python gives them.
class MarkSpecs {
 public:
  MarkSpecs(nb::dict marks, bool id_alone);
  // Throws if one of them ends past the record.
  void check(uint64_t record_size) const;
  bool by_id() const;  // whether rows say which trajectory they belong to
  Marks of(const Rows& rows, size_t record_size) const;
  // Of compact rows: those that are in slots are gathered first, into `values`.
  Marks of_compact(const Rows& rows, const SharedForm& form,
                   std::vector<std::vector<uint8_t>>* values) const;

 private:
  std::vector<std::pair<int, MarkSpec>> specs_;
  bool id_alone_;
};

// Pooled, 64-byte aligned memory with the buffer protocol: arrays over it keep it alive. Cheaper
// to make than an array, and a batch needs only one.
struct Block {
  explicit Block(size_t n) : data(block_take(n)), bytes(n) {}
  ~Block() {
    ReturnedBlocks returned = block_give(data, bytes);
    if (returned.bytes() < kKeepGil || PyGILState_Check() == 0) return;
    NoGil no_gil;
    const ReturnedBlocks gone(std::move(returned));  // before the GIL is back
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  uint8_t* data;
  size_t bytes;
};

// Throws unless there is an env for each row, all of them numbers that lanes can have.
void check_envs(const Seqs& envs, uint64_t rows);

struct PackedColumns;

class WriterHandle {
 public:
  // With `stage`, rows are not appended but encoded for somebody else to store: see `staged`.
  // `number`: the writer's, of a producer that has one; 0: any.
  WriterHandle(TapeHandle& tape, nb::dict marks, bool id_alone, bool stage, uint64_t number);

  // Each returns the first seq, or -1 if the plan did not understand the tree.
  int64_t add(const Plan& plan, nb::handle tree, nb::handle fields);
  // What the lanes of an append are: one run of rows; all batch dims but the last; single rows.
  enum class Lanes { one, leading_dims, each_row };
  // With `envs`, each row is the next one of that lane instead.
  int64_t extend(const Plan& plan, nb::handle tree, size_t batch_ndim, Lanes are, Continue rule,
                 std::optional<Seqs> envs, nb::handle fields);
  // `blobs`: bytes of leaves of any size, in packed order.
  int64_t append_records(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records,
                         uint64_t lanes, Continue rule, std::optional<Record> blobs,
                         nb::handle fields);
  // `blobs`: (values as bytes, offsets, bytes of an element, offset in the record) of each leaf of
  // any size, in the record's order.
  int64_t append_columns(nb::list arrays, nb::list offsets, uint64_t rows, uint64_t lanes,
                         Continue rule, std::optional<Seqs> envs, nb::list blobs,
                         nb::handle fields);
  int64_t append_whole(nb::list arrays, nb::list offsets, uint64_t rows, uint64_t flags,
                       int64_t traj_id, int64_t version, nb::list blobs, nb::handle fields);
  // The same of a tree [T, ...]; -1 if the plan did not understand it.
  int64_t extend_whole(const Plan& plan, nb::handle tree, uint64_t flags, int64_t traj_id,
                       int64_t version, nb::handle fields);
  uint64_t id() const { return writer_.id(); }
  uint64_t last_rows() const { return writer_.rows(); }
  // How many of them have seqs: the newest ones that fit.
  uint64_t last_kept() const { return writer_.kept(); }
  // How many envs its steps have, or 0 while that is not known; see Writer.add_step in Python.
  uint64_t envs() const { return mine() ? envs_ : 0; }
  void set_envs(uint64_t envs) {
    claim();
    envs_ = envs;
  }
  uint64_t record_size() const { return tape_.tape.record_size(); }
  // Packed rows of one trajectory, which goes on unless flags say that it begins.
  void append_part(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> records, uint64_t flags,
                   int64_t traj_id, int64_t version, std::optional<Record> blobs,
                   nb::handle fields);
  // A checked ITEMS frame: see `prepare_runs`.
  AcceptedRuns accept(const Receiver& in, uint64_t producer, uint64_t most_rows, uint64_t next);
  // As many frames as can be taken in natively: see `receive`, and `TapeIntake` for the bounds.
  nb::tuple take_frames(Receiver& in, int socket, uint64_t producer, uint64_t next,
                        uint64_t most_rows, uint64_t inserted, uint64_t most_open);
  // What a call staged: rows with their checksums; then, when they are stored, the append.
  nb::object staged();
  nb::object staged_blobs();  // bytes of leaves of any size; None: there are no such leaves
  int64_t commit_staged();
  nb::list open_trajectories() const;  // (lane, id, by_id) of each
  size_t open_bytes() const { return writer_.bytes(); }
  void orphan(nb::list open);
  bool adopt(uint64_t env, uint64_t entry);
  void miss_items() { writer_.miss_items(); }
  void take_up(const Seqs& entries);  // a producer's last runs: see `last_runs` of a tape

 private:
  Marks marks(const Rows& rows) {
    if (rows.compact != nullptr) return marks_.of_compact(rows, tape_.tape.form(), &mark_values_);
    return marks_.of(rows, tape_.tape.record_size());
  }
  std::vector<Column> columns_of(nb::list arrays, nb::list offsets, uint64_t rows) const;
  // Also the columns of leaves of any size: those of `columns`, and what refers to `packed`.
  Rows rows_with(const nb::list& blobs, uint64_t n, std::vector<Column>* columns,
                 PackedColumns* packed) const;
  void check_form(const Receiver& in) const;  // that its frames have slots as the tape has
  bool mine() const;                          // no other thread or process had it last
  void claim();
  // Bytes that an append of the rows moves; without the GIL, if there are many.
  uint64_t bytes_of(const Rows& rows) const {
    return rows.n * tape_.tape.record_size() + rows.blob_bytes;
  }
  int64_t commit(const Rows& rows);
  void stage(const Rows& rows);
  void stage_slots(const Rows& rows);  // of observations that are stored once
  int64_t write(const Rows& rows, uint64_t lanes, Continue rule, nb::handle fields,
                const std::optional<Seqs>& envs = std::nullopt);
  int64_t write_whole(const Rows& rows, uint64_t flags, int64_t traj_id, int64_t version,
                      nb::handle fields);
  int64_t write_step(const Rows& rows, const int64_t* envs, Continue rule, nb::handle fields);

  TapeHandle& tape_;
  Writer writer_;
  const MarkSpecs marks_;
  bool stage_;
  std::vector<uint8_t> scratch_, scratch_blobs_;
  std::vector<std::vector<uint8_t>> mark_values_;
  std::unique_ptr<Block> staged_, staged_blobs_;
  BlobRoom room_;  // of what is staged
  GivenFields given_;
  Sender sender_;
  uint64_t thread_, generation_;
  uint64_t envs_ = 0;
  std::atomic<bool> busy_{false};
};

// A sum tree over an array of zeros that Python owns; its first `n` values are the leaves. Belongs
// to one thread at a time; others wait for it.
class SumTree {
 public:
  SumTree(size_t n, Doubles nodes) : shape_(n), nodes_(nodes) {
    if (nodes.shape(0) != shape_.total)
      throw std::invalid_argument("SumTree: an array of the wrong size");
    if (n == 0) throw std::invalid_argument("SumTree: at least one leaf");
    tree_clear(tree());
  }
  static size_t size(size_t n) { return TreeShape(n).total; }
  // Runs `f(tree)`, which must touch nothing of Python's; without the GIL, if it works on many
  // leaves.
  template <class F>
  auto call(uint64_t leaves, F f) const {
    const auto turn = turns_.take();
    const NoGil no_gil(leaves > kKeepGilWork);
    return f(tree());
  }
  void update(Seqs leaves, Reals values);
  nb::tuple prioritize(Seqs seqs, Reals priorities, int64_t tail, int64_t head, double alpha,
                       double eps);
  void fill(uint64_t from, uint64_t to, double value);
  nb::object draw(State rng, size_t n, uint64_t head) const;                       // seqs
  nb::tuple draw_weighted(State rng, size_t n, uint64_t head, double beta) const;  // and weights
  nb::object at(Reals u) const;                                                    // leaves
  nb::object weights(Seqs seqs, uint64_t head, double beta) const;

 private:
  Tree tree() const { return {shape_, nodes_.data()}; }
  std::vector<int64_t> draw_rows(State& rng, size_t n, uint64_t head) const;
  TreeShape shape_;
  Doubles nodes_;
  mutable Turns turns_;
};

// Columns of n rows each, and the (offset, bytes) of their leaves in a record.
std::vector<Column> columns_from(nb::list arrays, Seqs leaves, size_t n, size_t record_size);

// Leaves of any size as Python gives them: (values as bytes, offsets, bytes of an element, offset
// in the record) of each, in the record's order.
std::vector<BlobColumn> blob_columns_from(const nb::list& blobs, uint64_t n, uint64_t record_size);
// What was made of leaves of any size: much memory is given back without the GIL.
struct PackedColumns {
  PackedColumns() = default;
  ~PackedColumns() {
    const NoGil no_gil(bytes >= kKeepGil);
    blobs = PackedBlobs();
  }
  PackedColumns(const PackedColumns&) = delete;
  PackedColumns& operator=(const PackedColumns&) = delete;
  PackedBlobs blobs;
  uint64_t bytes = 0;
};

// Columns of fixed leaves, and what `packed` makes of those of any size.
Rows pack_rows(const std::vector<BlobColumn>& blobs, uint64_t n, std::vector<Column>* columns,
               PackedColumns* packed);

inline Rows rows_of(const std::vector<Column>& columns, uint64_t n) {
  Rows rows;
  rows.n = n;
  rows.columns = columns.data();
  rows.n_columns = columns.size();
  return rows;
}

void bind_errors(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_tape(nb::module_& m);
void bind_restore(nb::class_<TapeHandle>& tape);
void bind_fields(nb::module_& m, nb::class_<TapeHandle>& tape);
void bind_stored(nb::module_& m, nb::class_<TapeHandle>& tape);
void bind_slots(nb::module_& m, nb::class_<TapeHandle>& tape);
void bind_stored_slots(nb::module_& m, nb::class_<TapeHandle>& tape);
void bind_compact(nb::module_& m);
void bind_gather(nb::module_& m);
void bind_writer(nb::module_& m);
void bind_view(nb::module_& m);
void bind_frames(nb::module_& m);
void bind_queue(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_client(nb::module_& m);
void bind_scan(nb::module_& m);
void bind_decode(nb::module_& m);
void bind_columns(nb::module_& m);

// Memory that a call has used; much of it is given back without the GIL.
inline void give_back(std::vector<int64_t>* values) {
  const NoGil no_gil(values->capacity() * sizeof(int64_t) >= kKeepGil);
  std::vector<int64_t>().swap(*values);
}

// A numpy array with these values.
nb::object to_array(const std::vector<int64_t>& values);
nb::object to_array(const std::vector<float>& values);

}  // namespace contig
