// Fields of trajectories: beside each entry of the index a small record of the user's, of one size.
// A trajectory's are those of its newest run.
//
//   [ log of changes | fields of evicted runs | slots of chunk place 0 | slots of place 1 | ... ]
//   slot = [ generation | copy a | copy b ], all of them words
//
// The copy that counts is the one of `generation & 1`. A run's slot is filled before the run is
// committed; later changes write the other copy and then the generation. A reader copies between
// two loads of the generation, and a change that it met half-way makes it start again.
//
// An open trajectory's writer, perhaps in another process, has its own copy of the fields as of its
// last append. Those that were changed since are saved before its run is evicted, in the place of
// its ordinal: [ number + 1 | ordinal | record ]. Of two trajectories with one place, the one that
// began later has it. Who goes on finds them by the number of its last run.
//
// What writes wants the tape's lock. DESIGN: docs/design/fields.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "native/tape/tape_format.h"

namespace contig {

// Which leaf of the record is where: (offset, bytes). A mask has a bit for each.
using FieldLeaves = std::vector<std::pair<uint64_t, uint64_t>>;
constexpr size_t kMostFieldLeaves = 64;
constexpr uint64_t kMostFieldBytes = 4096;
// Changes of which readers can still learn what they were of: at least so many, and one for each
// so many entries that the index has room for. Who is further behind looks at all trajectories; so
// that costs no more than what was changed since, but for a factor.
constexpr uint64_t kFieldsLog = 1024;
constexpr uint64_t kEntriesPerChange = 8;

class Fields {
 public:
  // Of a record: its room in a slot; and of a slot.
  static uint64_t rounded(uint64_t size) { return (size + 7) / 8 * 8; }
  static uint64_t slot_bytes(uint64_t size) { return 8 + 2 * rounded(size); }
  // How many changes the log has, a power of two, and its bytes.
  static uint64_t log_length(uint64_t chunk_shift, uint64_t places) {
    uint64_t length = kFieldsLog;
    while (length < (places << chunk_shift) / kEntriesPerChange) length *= 2;
    return length;
  }
  static uint64_t log_bytes(uint64_t chunk_shift, uint64_t places) {
    return log_length(chunk_shift, places) * sizeof(Word);
  }
  // Of the fields of an evicted run, of which there are as many as there are changes in the log.
  static uint64_t evicted_bytes(uint64_t size) { return 16 + rounded(size); }
  // Where the slots begin.
  static uint64_t slots_offset(uint64_t size, uint64_t chunk_shift, uint64_t places) {
    return log_length(chunk_shift, places) * (sizeof(Word) + evicted_bytes(size));
  }
  static uint64_t bytes(uint64_t size, uint64_t chunk_shift, uint64_t places) {
    return slots_offset(size, chunk_shift, places) + places * (slot_bytes(size) << chunk_shift);
  }

  // Where it is mapped in this process.
  void attach(uint8_t* memory, uint64_t size, uint64_t chunk_shift, uint64_t places);
  // Throws std::invalid_argument if a leaf ends past the record.
  void set_leaves(FieldLeaves leaves);
  bool attached() const { return log_ != nullptr; }
  uint64_t size() const { return size_; }  // 0: there are none
  uint64_t room() const { return words_ * 8; }
  uint64_t log_length() const { return log_mask_ + 1; }

  Word* slot(uint64_t place, uint64_t position) const {
    return slots_ + ((place << chunk_shift_) + position) * slot_words_;
  }
  // A record of `room()` bytes; read whole, without the lock.
  void read(const Word* slot, uint8_t* out) const;
  // The same with the lock, when nobody changes it.
  void current(const Word* slot, uint8_t* out) const { copy(slot, generation(slot), out); }
  // Into a slot of which nobody knows yet.
  void fill(Word* slot, const uint8_t* record) const;
  // Into one that is read meanwhile.
  void change(Word* slot, const uint8_t* record) const;

  // Whether a slot's fields were changed after it was filled.
  bool changed(const Word* slot) const { return generation(slot) != 0; }

  // With the lock: the place of an evicted run's fields; saves them before the run is evicted, if
  // they were not taken by a later trajectory; false: this run's are not there.
  uint64_t evicted_place(uint64_t ordinal) const { return ordinal & log_mask_; }
  void save_evicted(uint64_t ordinal, uint64_t number, const Word* slot) const;
  bool read_evicted(uint64_t ordinal, uint64_t number, uint8_t* out) const;
  void forget_evicted(uint64_t places) const;

  // The given leaves over a record; and whether that would change one. `given` has `size()` bytes.
  void overlay(uint8_t* record, const uint8_t* given, uint64_t mask) const;
  bool differs(const uint8_t* record, const uint8_t* given, uint64_t mask) const;

  // `count` changes were noted so far: one more, of this entry, for which there is memory.
  void note(Word& count, uint64_t number) const;
  // Entries that were changed since there were `since`, and how many changes there are now; false:
  // there were more than are known, or something of them was overwritten meanwhile.
  bool noted(const Word& count, uint64_t since, uint64_t* now, std::vector<uint64_t>* out) const;

 private:
  static uint64_t generation(const Word* slot) { return slot->load(std::memory_order_relaxed); }
  void copy(const Word* slot, uint64_t generation, uint8_t* out) const;
  void store(Word* slot, uint64_t generation, const uint8_t* record) const;
  Word* evicted(uint64_t place) const { return evicted_ + place * (2 + words_); }

  Word* log_ = nullptr;
  Word* evicted_ = nullptr;
  Word* slots_ = nullptr;
  uint64_t size_ = 0, words_ = 0, slot_words_ = 0, chunk_shift_ = 0, log_mask_ = 0;
  FieldLeaves leaves_;
};

}  // namespace contig
