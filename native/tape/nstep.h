// n-step transitions: the rewards of up to n rows that follow one another, discounted and summed,
// and which of the rows is the last one that counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/tape/gather_slots.h"

namespace contig {

// How rows are folded. Kinds are numpy's (b i u f), and w for bfloat16; complex numbers are pairs.
struct Fold {
  std::vector<double> discount;  // gamma^i, one for each of at most n rows
  struct Reward {
    char kind = 'f';
    size_t offset = 0, itemsize = 4, count = 1;
    // Whole-number rewards have fractional returns: those are float32.
    bool whole() const { return kind == 'b' || kind == 'i' || kind == 'u'; }
    size_t bytes() const { return itemsize * count; }
    size_t folded_bytes() const { return whole() ? sizeof(float) * count : bytes(); }
  } reward;
  struct Done {
    char kind = 'b';
    size_t offset = 0, bytes = 0;  // none: only a trajectory's end ends
  } done;

  // Whether rewards of this kind and size can be summed.
  static bool knows(char kind, size_t itemsize);
};

// Where the parts of folded rows go.
struct Folded {
  std::vector<Target> first, last;  // leaves of a group's first row, and of the last that counts
  int64_t* steps = nullptr;         // how many of its rows count
  uint8_t* rewards = nullptr;       // what they sum up to
  bool asked = false;               // `ask_for_folded` has asked for the first rows
};

// Asks for rows that will be folded, and for those behind them, which mostly follow in their
// trajectories: on their way from memory while it is looked up which do.
void ask_for_folded(const Tape& tape, const Fold& fold, const int64_t* seqs, size_t n);

// Folds groups of rows, one after another; in each, rows that follow one another in a trajectory.
// Returns the tape's tail afterwards: a group whose first row is below it may have been overwritten
// while it was read. (Its first row is its oldest.) `slots`: leaves that are stored once, if any.
uint64_t fold_rows(const Tape& tape, const Fold& fold, const int64_t* rows, const int64_t* lengths,
                   size_t groups, const Folded& out, FoldedSlots* slots = nullptr);

}  // namespace contig
