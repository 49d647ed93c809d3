// Two handles of one table of producers, as two processes have them: a known producer is found in
// its own slot whatever the other one does, and a slot that changed hands is found out.
#include "native/tape/producers.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace {

using contig::kProducers;
using contig::Producer;
using contig::Producers;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "FAILED: %s\n", what);
  std::exit(1);
}

struct Table {
  std::unique_ptr<Producer[]> slots{new Producer[kProducers]()};
  std::atomic<uint64_t> clock{0};
  Producers one{slots.get(), &clock}, other{slots.get(), &clock};
};

// A free slot ends a look through the table: with the first one made free by hand, whoever looks
// through it finds nobody. What the other process did is no reason to look.
void known_producers_are_found_in_their_own_slot() {
  Table t;
  for (uint64_t id = 1; id <= 1000; ++id) t.one.take(id, 0);
  const uint64_t slot = t.other.find(700);
  expect(slot == 699, "a producer has the slot that it was given");
  t.slots[0].id.store(0);
  t.one.use(300);
  expect(t.other.find(700) == slot, "a known producer is found without a look at other slots");
}

// A full table gives the slots of those that left to others, and its handles see it.
void slots_that_changed_hands_are_found_out() {
  Table t;
  for (uint64_t id = 1; id <= kProducers; ++id) t.one.take(id, id);
  for (uint64_t id = 1; id <= kProducers; ++id)
    expect(t.other.find(id) == id - 1, "every producer has its slot");
  t.one.leave(5);
  const uint64_t slot = t.one.take(90001, 7);
  expect(slot == 4, "a newcomer gets the slot of the one that left");
  expect(t.other.find(5) == kProducers, "who has lost its slot is not found");
  expect(t.other.find(90001) == slot && t.other[slot].seq.load() == 7, "a newcomer is found");
  t.one.leave(6);
  expect(t.other.take(5, 9) == 5, "who comes back gets another slot");
  expect(t.one.find(6) == kProducers && t.one.find(5) == 5, "and has moved for both");
  expect(t.one.find(90001) == slot, "others stay where they are");
}

// A killed process may leave a slot that belongs to nobody, which the next newcomer gets.
void a_slot_of_nobody_is_given_next() {
  Table t;
  for (uint64_t id = 1; id <= 10; ++id) t.one.take(id, 0);
  expect(t.other.find(4) == 3, "a producer has its slot");
  t.slots[3].id.store(Producers::kNobody);
  expect(t.other.find(4) == kProducers, "a slot that changes hands belongs to nobody");
  expect(t.one.find(10) == 9, "and does not hide those behind it");
  expect(t.other.take(11, 0) == 3 && t.one.find(11) == 3, "a newcomer gets it");
}

}  // namespace

int main() {
  known_producers_are_found_in_their_own_slot();
  slots_that_changed_hands_are_found_out();
  a_slot_of_nobody_is_given_next();
  std::puts("producers: all as expected");
}
