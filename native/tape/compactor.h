// Whole records made compact, a piece at a time: what is the same in the same trajectory is there
// once. For rows on their way from one storage into another.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <vector>

#include "native/tape/slots.h"

namespace contig {

class Compactor : SlotReader {
 public:
  // Throws if records of so many bytes have no such leaves.
  Compactor(const SharedForm& form, uint64_t record_size);
  struct Part {
    uint64_t trajectory, rows;
  };
  // The next `n` records, of trajectories as `parts` says, as compact rows. Throws if that is not
  // all of them, or if there are more slots than references can tell apart.
  void add(const uint8_t* records, uint64_t n, const std::vector<Part>& parts, uint8_t* out);
  const SharedForm& form() const { return form_; }
  uint64_t record_size() const { return record_size_; }
  // They may lie elsewhere after the next `add`.
  const uint8_t* slots() const { return slots_.get(); }
  uint64_t n_slots() const { return n_slots_; }

 private:
  const uint8_t* slot(uint64_t number) const override;
  void grow(uint64_t n_slots);

  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  SharedForm form_;
  uint64_t record_size_, n_slots_ = 0, room_ = 0;
  SlotPlan plan_;
  std::unique_ptr<uint8_t, Free> slots_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> trails_;
};

}  // namespace contig
