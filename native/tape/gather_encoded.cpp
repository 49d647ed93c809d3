#include "native/tape/gather_encoded.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "native/kernels/copy.h"
#include "native/sys/threads.h"

namespace contig {

namespace {
constexpr uint64_t kThreadBytes = 512 << 10;  // decoded, for which another thread is worth it
constexpr uint64_t kMostThreads = 8;

// The slots that rows refer to, decoded; those of the last few rows are kept.
class Decoded {
 public:
  explicit Decoded(const Tape& tape)
      : tape_(tape),
        each_(tape.form().references()),
        known_(2 * each_, kNone),
        used_(2 * each_, 0),
        slots_(2 * each_ * tape.form().slot_bytes()),
        found_(each_) {}

  // Of a row: those of its observation, then those of its next one. Of a row that is not there any
  // more it may be anything.
  const uint8_t* const* of(uint64_t seq, bool now, bool next) {
    ++rows_;
    const uint8_t* row = tape_.row(seq);
    const size_t stack = tape_.form().stack(), last = next ? each_ : stack;
    for (size_t j = now ? 0 : stack; j < last; ++j) {
      uint32_t low;
      copy_fixed<4>(reinterpret_cast<uint8_t*>(&low), row + 4 * j);
      found_[j] = decoded(low);
    }
    return found_.data();
  }

 private:
  // There are twice as many places as a row has references: one that it found does not give way.
  const uint8_t* decoded(uint64_t number) {
    const uint64_t bytes = tape_.form().slot_bytes();
    const auto known = std::find(known_.begin(), known_.end(), number);
    size_t place = static_cast<size_t>(known - known_.begin());
    if (known != known_.end()) {
      used_[place] = rows_;
      return slots_.data() + place * bytes;
    }
    do {
      place = next_++ % known_.size();
    } while (used_[place] == rows_);
    used_[place] = rows_;
    uint8_t* slot = slots_.data() + place * bytes;
    known_[place] = number;
    if (!tape_.slots().decode(number, &scratch_, slot)) std::memset(slot, 0, bytes);
    return slot;
  }

  const Tape& tape_;
  size_t each_, next_ = 0;
  uint64_t rows_ = 0;
  std::vector<uint64_t> known_, used_;  // of each place: its slot, and the last row that needed it
  std::vector<uint8_t> slots_, scratch_;
  std::vector<const uint8_t*> found_;
};

// Calls `part` with [0, n), in parts if there is much to decode.
template <class F>
void in_parts(const Tape& tape, size_t n, F part) {
  const uint64_t bytes = n * tape.form().references() * tape.form().slot_bytes();
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const uint64_t parts = std::min({cores, kMostThreads, bytes / kThreadBytes + 1, uint64_t{n}});
  run_parts(parts, [&](size_t i) { part(n * i / parts, n * (i + 1) / parts); });
}
}  // namespace

uint64_t gather_encoded(const Tape& tape, const int64_t* seqs, size_t n,
                        const std::vector<SlotTarget>& targets) {
  const SharedForm& form = tape.form();
  bool now = false, next = false;
  for (const SlotTarget& t : targets) (t.next ? next : now) = true;
  in_parts(tape, n, [&](size_t from, size_t to) {
    Decoded decoded(tape);
    for (size_t i = from; i < to; ++i) {
      const uint8_t* const* slots = decoded.of(static_cast<uint64_t>(seqs[i]), now, next);
      for (const SlotTarget& t : targets) {
        const SharedLeaf& leaf = form.leaves()[t.leaf];
        copy_observation(leaf, slots + (t.next ? form.stack() : 0), t.column + i * leaf.bytes);
      }
    }
  });
  return tail_after(tape);
}

uint64_t gather_encoded_records(const Tape& tape, const int64_t* seqs, size_t n, uint8_t* out) {
  const SharedForm& form = tape.form();
  const size_t size = tape.record_size();
  std::memset(out, 0, n * size);  // what lies between leaves
  in_parts(tape, n, [&](size_t from, size_t to) {
    Decoded decoded(tape);
    for (size_t i = from; i < to; ++i) {
      const auto seq = static_cast<uint64_t>(seqs[i]);
      const uint8_t* const* slots = decoded.of(seq, true, form.paired());
      uint8_t* record = out + i * size;
      for (const KeptLeaf& leaf : form.kept())
        copy_bytes(record + leaf.offset, tape.row(seq) + leaf.stored, leaf.bytes);
      for (const SharedLeaf& leaf : form.leaves()) {
        copy_observation(leaf, slots, record + leaf.offset);
        if (form.paired()) copy_observation(leaf, slots + form.stack(), record + leaf.next_offset);
      }
    }
  });
  return tail_after(tape);
}

}  // namespace contig
