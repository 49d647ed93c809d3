// Who has sent how many items: what makes a resend recognisable. The table lies in the memory of
// the tape or queue it belongs to, and is compared and written with its lock.
//
// A producer gets a slot with its first item, and keeps it while it is connected: its slot is
// pinned. Of those that are not, the longest idle one gives way to a new one. Proven in
// tests/model/producers.py.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace contig {

// Twice as many as may be connected: those that lost their connection are not forgotten at once.
constexpr uint64_t kMaxConnections = 8192;
constexpr uint64_t kProducers = 2 * kMaxConnections;

struct Producer {
  std::atomic<uint64_t> id;      // 0: free, as all behind it; kNobody: it is changing hands
  std::atomic<uint64_t> seq;     // items taken so far
  std::atomic<uint64_t> used;    // the clock when it last came, sent or left
  std::atomic<uint64_t> pinned;  // by the process that holds its connection
};

// One process's handle of a table. Every method wants the lock.
class Producers {
 public:
  static constexpr uint64_t kNobody = ~uint64_t{0};

  Producers() = default;
  Producers(Producer* table, std::atomic<uint64_t>* clock) : table_(table), clock_(clock) {}

  // The slot of a producer, or kProducers if it has none. Whom this process has met is looked for
  // where it was then; only if somebody else is there now, the table is looked through.
  uint64_t find(uint64_t id);
  // The slot of a producer, pinned; a new one starts at `seq`. Throws std::runtime_error if all
  // slots are pinned.
  uint64_t take(uint64_t id, uint64_t seq);
  void use(uint64_t slot);  // it is not idle
  void leave(uint64_t id);  // its connection is gone
  void leave_all();         // and those of a process that is no more
  Producer& operator[](uint64_t slot) const { return table_[slot]; }

 private:
  uint64_t slot_for_new() const;
  void look_through();

  Producer* table_ = nullptr;
  std::atomic<uint64_t>* clock_ = nullptr;
  // Who was in which slot when this process last looked, and the other way round. Another process
  // may have changed that, so a slot's own id has the last word. No id is in two slots.
  std::vector<uint64_t> ids_;
  std::unordered_map<uint64_t, uint64_t> slots_;
};

}  // namespace contig
