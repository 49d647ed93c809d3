// "Killed at any store" of the batch queue: of an append, of taking a batch and of giving it back.
// Every state that the memory goes through is repaired and played on in two orders, producers first
// and consumers first, beside a model: each item comes out once and in order, batches that living
// consumers hold do not change, and no slot is lost. The repair, too, is killed at each of its
// stores, and children are really killed, so that the lock's recovery is part of it. Then the same
// for published weights, which have no lock.
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>

#include "killpoints.h"
#include "native/kernels/crc32c.h"
#include "native/queue/weights.h"
#include "native/sys/process.h"
#include "queue_items.h"

namespace {

using namespace contig;
using items::Item;
using killpoints::finish;
using killpoints::Image;
using killpoints::step;
using rows::fail;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kFiller = 1000;  // the producer that only fills up

// ---- memory that is shared with the child ------------------------------------------------------

class Memory {
 public:
  explicit Memory(uint64_t bytes) : bytes_(bytes), parts_{{0, bytes}} {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    base = static_cast<uint8_t*>(p);
  }
  ~Memory() { munmap(base, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Only what may change is looked at after each instruction.
  void watch(std::vector<std::pair<uint64_t, uint64_t>> parts) { parts_ = std::move(parts); }
  uint64_t bytes() const { return bytes_; }

  Image image() const {
    Image out;
    for (const auto& p : parts_) out.insert(out.end(), base + p.first, base + p.second);
    return out;
  }
  bool is(const Image& image) const {
    const uint8_t* at = image.data();
    for (const auto& p : parts_) {
      if (std::memcmp(base + p.first, at, p.second - p.first) != 0) return false;
      at += p.second - p.first;
    }
    return true;
  }
  void load(const Image& image) const {
    const uint8_t* at = image.data();
    for (const auto& p : parts_) {
      std::memcpy(base + p.first, at, p.second - p.first);
      at += p.second - p.first;
    }
  }

  // All states it goes through while a child works, the first and the last one included.
  std::vector<Image> trace(const std::function<void()>& work, uint64_t* instructions) const {
    std::vector<Image> states{image()};
    const pid_t pid = killpoints::start([&] {
      if (guard_.second > 0) shut();
      work();
    });
    if (guard_.second > 0) run_to_guard(pid);
    while (step(pid)) {
      ++*instructions;
      if (!is(states.back())) states.push_back(image());
    }
    finish(pid);
    return states;
  }

  // From now on children run freely until they write here, and step by step only then.
  void guard(uint64_t from, uint64_t to) {
    constexpr uint64_t page = 4096;
    const uint64_t first = (from + page - 1) / page * page;
    guard_ = {base + first, to / page * page - first};
  }

  uint8_t* base;

 private:
  static void open(int) { mprotect(guard_.first, guard_.second, PROT_READ | PROT_WRITE); }
  static void shut() {
    std::signal(SIGSEGV, open);
    mprotect(guard_.first, guard_.second, PROT_READ);
  }
  static void run_to_guard(pid_t pid) {
    int status = 0;
    if (ptrace(PTRACE_CONT, pid, nullptr, nullptr) != 0) fail("continue");
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSEGV) fail("it never wrote there");
    if (ptrace(PTRACE_SINGLESTEP, pid, nullptr, SIGSEGV) != 0) fail("singlestep");
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  }

  static inline std::pair<uint8_t*, uint64_t> guard_{nullptr, 0};
  uint64_t bytes_;
  std::vector<std::pair<uint64_t, uint64_t>> parts_;
};

// A process that is no more.
uint64_t dead_pid() {
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) std::_Exit(0);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  return (process_id() >> 32 << 32) | static_cast<uint64_t>(pid);
}

// ---- what a queue should do --------------------------------------------------------------------

struct Held {
  uint64_t slot;
  std::vector<Item> items;
};

struct Model {
  uint64_t size, slots;
  std::deque<Item> pending;           // not taken; the first one starts a block
  std::map<uint64_t, uint64_t> seen;  // by producer
  std::vector<Held> held;             // by living consumers

  uint64_t room() const { return (slots - held.size()) * size - pending.size(); }

  Queue::Accepted accept(uint64_t producer, uint64_t first, uint64_t n) {
    Queue::Accepted out{first, 0, false, false};
    uint64_t again = 0;
    if (producer != Queue::kNoProducer) {
      const auto known = seen.find(producer);  // from its first item on
      const uint64_t next = known == seen.end() ? first : known->second;
      if (first > next) return {next, 0, true, false};
      again = std::min(next - first, n);
      if (again == n) return {next, 0, false, false};
    }
    out.added = std::min(n - again, room());
    out.full = out.added < n - again;
    out.seen = first + again + out.added;
    for (const Item& item : items::range(producer, first + again, out.added))
      pending.push_back(item);
    if (producer != Queue::kNoProducer && out.added > 0) seen[producer] = out.seen;
    return out;
  }

  std::vector<Item> take(bool partial) {
    const uint64_t n = std::min<uint64_t>(pending.size(), size);
    if (n == 0 || (n < size && !partial)) return {};
    std::vector<Item> out(pending.begin(), pending.begin() + static_cast<int64_t>(n));
    pending.erase(pending.begin(), pending.begin() + static_cast<int64_t>(n));
    return out;
  }
};

struct Counts {
  uint64_t attacks = 0, states = 0, instructions = 0, repairs = 0, undone = 0, kills = 0;
};

class Stage {
 public:
  Stage(uint64_t batch_size, uint64_t num_slots, uint64_t seed, Counts* counts, bool table = false)
      : counts_(counts),
        memory_(Queue::bytes_for(items::spec(batch_size, num_slots))),
        queue_(format(batch_size, num_slots), memory_.bytes()),
        random_(seed),
        dead_(dead_pid()) {
    model_.size = batch_size;
    model_.slots = num_slots;
    const QueueHeader& h = queue_.header();
    // Not the histograms, and, unless it is about that, only the table's first producers.
    const uint64_t producers = table ? kProducers : 8;
    memory_.watch({{0, offsetof(QueueHeader, drain_round)},
                   {h.slots_offset, h.producers_offset + producers * sizeof(Producer)},
                   {h.blocks_offset, h.total_bytes}});
  }

  // Some history, then something that is killed everywhere, and so on.
  void run(int attacks, int kills) {
    for (int i = 0; i < attacks; ++i) {
      for (uint64_t k = random_.below(6); k > 0; --k) wander();
      switch (random_.below(7)) {
        case 6:
          attack_leave(kills);
          break;
        case 5:
          attack_skip(kills);
          break;
        case 0:
          attack_take(kills);
          break;
        case 1:
          attack_release(kills);
          break;
        default:
          attack_accept(kills);
      }
    }
  }

  // As many producers as the table holds, half of which are connected; then one more, in whose
  // favour the longest idle one of the others goes, however long connected ones have been idle.
  void run_full_table() {
    for (uint64_t p = 1; p <= kProducers; ++p) {
      offer(&model_, p, 0, 1);
      if (p > kMaxConnections) queue_.leave(p);
      while (drain(&model_, false)) {
      }
    }
    constexpr uint64_t idle = kMaxConnections + kMaxConnections / 2;
    for (uint64_t p = kMaxConnections + 2; p <= kProducers; ++p) {
      if (p == idle) continue;
      offer(&model_, p, 1, 1);
      queue_.leave(p);
      while (drain(&model_, false)) {
      }
    }
    offer(&model_, kMaxConnections + 1, 1, 1);
    queue_.leave(kMaxConnections + 1);
    while (drain(&model_, false)) {
    }
    model_.seen.erase(idle);
    const uint64_t from = queue_.header().producers_offset;
    memory_.guard(from, from + kProducers * sizeof(Producer));  // looking through it takes long
    attack_accept_of(kProducers + 1, 5, 3, 0);
    memory_.guard(0, 0);
    // It comes back, and the longest idle one goes now: not one of those connected, and not the
    // first of the others, which left last.
    model_.seen.erase(kMaxConnections + 2);
    drain(&model_, false);
    offer(&model_, idle, 1, 1);
    const std::map<uint64_t, uint64_t> known = table();
    if (known.count(kMaxConnections + 2) != 0) fail("not the longest idle producer was dropped");
    if (known.count(kMaxConnections + 1) == 0) fail("one that has just left was dropped");
    for (uint64_t p = 1; p <= kMaxConnections; ++p)
      if (known.count(p) == 0) fail("a producer that is connected was dropped");
    // With everybody connected there is no room for another one, and nothing happens to anybody.
    for (const auto& p : known) queue_.seen(p.first, 0);
    while (drain(&model_, false)) {
    }
    bool refused = false;
    try {
      Model none = model_;
      offer(&none, kProducers + 2, 0, 1);
    } catch (const std::runtime_error&) {
      refused = true;
    }
    if (!refused || table() != known) fail("one more than there is room for");
    queue_.leave_all();
    offer(&model_, kProducers + 2, 0, 1);
    if (table().count(kProducers + 2) == 0) fail("no room, although nobody is connected");
  }

 private:
  uint8_t* format(uint64_t batch_size, uint64_t num_slots) {
    Queue::format(memory_.base, items::spec(batch_size, num_slots), "{}");
    return memory_.base;
  }

  // ---- steps of queue and model ----------------------------------------------------------------

  Queue::Accepted offer(Model* model, uint64_t producer, uint64_t first, uint64_t n) {
    const std::vector<uint8_t> records = items::records(items::range(producer, first, n));
    const Queue::Accepted expected = model->accept(producer, first, n);
    items::Hold hold(queue_);
    const uint32_t crc = crc32c(0, records.data(), records.size());
    if (sums(producer, n, expected.added) && queue_.has_room(n) &&
        queue_.accept_summed(producer, first, records.data(), n, crc ^ 1))
      fail("records with another checksum went in");
    const Queue::Accepted got = queue_.accept(producer, first, records.data(), n);
    if (got.added < expected.added) fail("an append that found less room than there is");
    if (got.added > expected.added) fail("an append that found more room than there is");
    if (got.seen != expected.seen || got.gap != expected.gap || got.full != expected.full)
      fail("an append with another outcome than the model's");
    return got;
  }

  // Whether all records are new, so that they may be summed on their way in.
  static bool sums(uint64_t producer, uint64_t n, uint64_t added) {
    return producer != Queue::kNoProducer && added == n;
  }

  // Takes a batch, looks at it, and gives it back unless it is to be held.
  bool drain(Model* model, bool partial, bool keep = false) {
    Queue::Taken t{};
    const std::vector<Item> expected = model->take(partial);
    {
      items::Hold hold(queue_);
      const bool took = queue_.take(partial, process_id(), &t);
      if (took == expected.empty()) fail(took ? "a batch too early" : "a batch that does not come");
      if (!took) return false;
    }
    if (t.slot >= model->slots) fail("a slot that does not exist");
    if (t.rows != expected.size()) fail("a batch of another size");
    if (items::read(queue_, t.slot, t.rows) != expected) fail("a batch of other items");
    if (model->held.size() + 1 == model->slots && !t.last_free)
      fail("the last slot was handed over without saying so");
    model->held.push_back(Held{t.slot, expected});
    if (!keep) release(model, model->held.size() - 1);
    return true;
  }

  void release(Model* model, size_t which) {
    queue_.release(model->held[which].slot);
    model->held.erase(model->held.begin() + static_cast<int64_t>(which));
  }

  void check_held(const Model& model) {
    for (const Held& h : model.held)
      if (items::read(queue_, h.slot, h.items.size()) != h.items)
        fail("a batch changed while it was held");
  }

  void wander() {
    switch (random_.below(6)) {
      case 0:
        if (model_.held.size() + 1 < model_.slots) drain(&model_, false, true);
        break;
      case 1:
        if (!model_.held.empty()) release(&model_, random_.below(model_.held.size()));
        break;
      case 2:
        orphan();
        break;
      case 3:
        drain(&model_, random_.below(2) == 0);
        break;
      default: {
        const uint64_t producer = random_.below(3);
        offer(&model_, producer, next(producer), 1 + random_.below(model_.size * 2));
      }
    }
  }

  uint64_t next(uint64_t producer) const {
    const auto it = model_.seen.find(producer);
    return it == model_.seen.end() ? 0 : it->second;
  }

  // A batch for a consumer that is dead before it gives it back; its slot, or no slot.
  uint64_t orphan() {
    if (model_.pending.size() < model_.size) return model_.slots;
    Queue::Taken t{};
    items::Hold hold(queue_);
    if (!queue_.take(false, dead_, &t)) fail("a batch that does not come");
    model_.take(false);
    return t.slot;
  }

  // ---- attacks ---------------------------------------------------------------------------------

  std::map<uint64_t, uint64_t> table() const {
    std::map<uint64_t, uint64_t> out;
    const auto* p = reinterpret_cast<Producer*>(memory_.base + queue_.header().producers_offset);
    for (uint64_t i = 0; i < kProducers && p[i].id != 0; ++i)
      if (p[i].id != ~uint64_t{0} && !out.emplace(p[i].id, p[i].seq).second)
        fail("a producer with two entries");
    return out;
  }

  void attack_accept(int kills) {
    const uint64_t producer = random_.below(5);
    uint64_t first = next(producer);
    if (producer != Queue::kNoProducer) {
      const uint64_t how = random_.below(8);
      if (how == 0) first += 1;  // a gap, or a producer that starts there
      if (how >= 5) first -= std::min<uint64_t>(first, random_.below(3));  // some for a second time
    }
    attack_accept_of(producer, first, 1 + random_.below(model_.size * model_.slots), kills);
  }

  void attack_accept_of(uint64_t producer, uint64_t first, uint64_t n, int kills) {
    const std::vector<uint8_t> records = items::records(items::range(producer, first, n));
    const Model before = model_;
    Model after = model_;
    const uint64_t added = after.accept(producer, first, n).added;
    const uint64_t old_head = queue_.header().head;
    const std::map<uint64_t, uint64_t> table_before = table();
    const uint32_t crc = crc32c(0, records.data(), records.size());
    const bool summed = sums(producer, n, added) && random_.below(2) == 0;
    const auto work = [&] {
      items::Hold hold(queue_);
      if (summed && queue_.has_room(n))
        queue_.accept_summed(producer, first, records.data(), n, crc);
      else
        queue_.accept(producer, first, records.data(), n);
    };
    const auto check = [&] {
      Model now;
      {
        items::Hold hold(queue_);
        const uint64_t head = queue_.header().head;
        if (queue_.header().undo_head == head) fail("a repair that left something to repair");
        if (head != old_head && head != new_head_) fail("a head that nobody stored");
        now = head != old_head ? after : before;
        // Items in exactly if they count for their producer. One whose first append died may be
        // there already, with the number it came with.
        const std::map<uint64_t, uint64_t> numbers = table();
        for (const auto& p : now.seen) {
          const auto there = numbers.find(p.first);
          if (there == numbers.end() || there->second != p.second)
            fail("a producer's number that is not that of its items");
        }
        for (const auto& p : numbers)
          if (now.seen.count(p.first) == 0 && table_before.count(p.first) == 0 &&
              (p.first != producer || p.second != first))
            fail("a producer that nobody is");
        if (numbers.count(producer) != 0 && now.seen.count(producer) == 0 && first > 0)
          now.seen[producer] = first;
      }
      // Sent again, from the first one on, until all are in.
      const uint64_t again = producer == Queue::kNoProducer && head_moved(old_head) ? added : 0;
      return std::make_pair(now, std::make_pair(first + again, n - again));
    };
    attack(
        work, kills,
        [&](bool consumers_first) {
          auto state = check();
          Model& m = state.first;
          uint64_t from = state.second.first, left = state.second.second;
          if (consumers_first)
            while (drain(&m, false)) {
            }
          while (left > 0) {
            const Queue::Accepted a = offer(&m, producer, from, left);
            if (a.gap) break;
            if (producer == Queue::kNoProducer) {
              from += a.added;
              left -= a.added;
            } else {
              left = from + left - std::min(from + left, a.seen);
              from = a.seen;
            }
            if (left > 0 && !drain(&m, false)) fail("no room, and nothing to take");
          }
          play(&m, consumers_first);
        },
        [&] { model_ = after; });
  }

  bool head_moved(uint64_t old_head) const { return queue_.header().head != old_head; }

  // A consumer that is killed while it takes a batch: either it has it, or the next one gets it.
  void attack_take(int kills) {
    const bool partial = random_.below(3) == 0;
    const Model before = model_;
    Model after = model_;
    after.take(partial);
    const uint64_t old_taken = queue_.header().taken;
    const auto work = [&] {
      Queue::Taken t{};
      items::Hold hold(queue_);
      queue_.take(partial, dead_, &t);
    };
    attack(
        work, kills,
        [&](bool consumers_first) {
          Model m = queue_.header().taken == old_taken ? before : after;
          play(&m, consumers_first);
        },
        [&] { model_ = after; });
  }

  // Items that will not come.
  void attack_skip(int kills) {
    const uint64_t producer = 1 + random_.below(4), to = next(producer) + random_.below(3);
    Model after = model_;
    if (after.seen.count(producer) != 0) after.seen[producer] = to;  // else it says where it is
    attack(
        [&] {
          items::Hold hold(queue_);
          queue_.skip(producer, to);
        },
        kills,
        [&](bool consumers_first) {
          const std::map<uint64_t, uint64_t> numbers = table();
          const auto there = numbers.find(producer);
          Model m = model_;
          if (there != numbers.end()) m.seen[producer] = there->second;
          if (there != numbers.end() && there->second != to && there->second != next(producer))
            fail("a number that nobody stored");
          offer(&m, producer, next(producer), 2);
          play(&m, consumers_first);
        },
        [&] { model_ = after; });
  }

  // Connections that are gone: nobody's number changes, and whoever comes again is pinned again.
  void attack_leave(int kills) {
    const uint64_t producer = 1 + random_.below(4);
    const bool all = random_.below(2) == 0;
    const std::map<uint64_t, uint64_t> before = table();
    attack(
        [&] {
          items::Hold hold(queue_);
          if (all)
            queue_.leave_all();
          else
            queue_.leave(producer);
        },
        kills,
        [&](bool consumers_first) {
          if (table() != before) fail("a number changed when its producer left");
          Model m = model_;
          offer(&m, producer, next(producer), 2);
          play(&m, consumers_first);
        },
        [] {});
  }

  // A consumer that is killed while it gives a batch back.
  void attack_release(int kills) {
    offer(&model_, Queue::kNoProducer, 0, model_.size);
    const uint64_t slot = orphan();
    if (slot == model_.slots) return;
    attack([&] { queue_.release(slot); }, kills,
           [&](bool consumers_first) {
             Model m = model_;
             play(&m, consumers_first);
           },
           [] {});
  }

  void attack(const std::function<void()>& work, int kills, const std::function<void(bool)>& go_on,
              const std::function<void()>& done) {
    const Image start = memory_.image();
    uint64_t instructions = 0;
    const std::vector<Image> states = memory_.trace(work, &instructions);
    new_head_ = queue_.header().head;
    ++counts_->attacks;
    counts_->states += states.size();
    counts_->instructions += instructions;

    std::vector<const Image*> pending;
    for (const Image& state : states) {
      for (const bool consumers_first : {false, true}) {
        load_unlocked(state);
        if (queue_.header().undo_head == queue_.header().head && consumers_first)
          pending.push_back(&state);
        go_on(consumers_first);
      }
    }
    counts_->undone += pending.size();
    // The repair itself, killed at every store.
    for (int i = 0; i < 2 && !pending.empty(); ++i) {
      load_unlocked(*pending[random_.below(pending.size())]);
      uint64_t ignored = 0;
      for (const Image& state : memory_.trace([this] { items::Hold hold(queue_); }, &ignored)) {
        load_unlocked(state);
        go_on(random_.below(2) == 0);
        ++counts_->repairs;
      }
    }
    // And truly killed, so that the lock has a dead holder.
    for (int i = 0; i < kills; ++i) {
      load(start);
      const pid_t pid = killpoints::start(work);
      for (uint64_t k = random_.below(instructions); k > 0 && step(pid); --k) {
      }
      finish(pid);
      go_on(random_.below(2) == 0);
      ++counts_->kills;
    }
    load(start);
    work();  // the history goes on
    done();
  }

  // As another process finds it: a handle knows the table of producers by heart, and here the time
  // goes back.
  void load(const Image& state) {
    memory_.load(state);
    queue_ = Queue(memory_.base, memory_.bytes());
  }

  void load_unlocked(const Image& state) {
    load(state);
    lock_init(queue_.header().lock);
  }

  // Uses up everything a queue has: what is pending comes out, every slot that no living consumer
  // holds can be filled, and what is held stays as it is.
  void play(Model* model, bool consumers_first) {
    if (!consumers_first) fill(model);
    while (drain(model, false)) {
    }
    check_held(*model);
    const uint64_t rest = model->pending.size();
    if (rest > 0 && random_.below(2) == 0) {
      drain(model, true);
    } else if (rest > 0) {
      offer(model, Queue::kNoProducer, 0, model->size - rest);
      drain(model, false);
    }
    fill(model);
    check_held(*model);
    while (!model->held.empty()) release(model, model->held.size() - 1);
    fill(model);
    while (drain(model, true)) {
    }
    for (uint64_t i = 0; i < 3; ++i) {  // held until there is no other slot
      offer(model, kFiller, model->seen[kFiller], model->size);
      if (model->held.size() + 1 < model->slots) drain(model, false, true);
    }
    check_held(*model);
  }

  void fill(Model* model) {
    while (!offer(model, kFiller, model->seen[kFiller], model->size + 1).full) {
    }
  }

  Counts* counts_;
  Memory memory_;
  Queue queue_;
  Model model_;
  rows::Random random_;
  uint64_t dead_, new_head_ = 0;
};

// ---- weights -----------------------------------------------------------------------------------

// Killed at any store of a publication: readers find the version before or after it, whole, and the
// next publisher goes on.
uint64_t attack_board(uint64_t words) {
  Memory memory(Board::bytes_for(words * 8, 2));
  Board::format(memory.base, words * 8, "{}", 2);
  Board board(memory.base, memory.bytes());
  std::vector<uint64_t> record(words), out(words);
  const auto publish = [&](int64_t version) {
    for (uint64_t i = 0; i < words; ++i)
      record[i] = rows::mix(static_cast<uint64_t>(version) * 31 + i);
    board.publish(version, reinterpret_cast<const uint8_t*>(record.data()));
  };
  const auto read = [&] {
    int64_t version = -1, newest = -1;
    const bool there = board.read(reinterpret_cast<uint8_t*>(out.data()), &version);
    if (board.newest(&newest) != there || newest != version) fail("another newest version");
    for (uint64_t i = 0; there && i < words; ++i)
      if (out[i] != rows::mix(static_cast<uint64_t>(version) * 31 + i)) fail("torn weights");
    return version;
  };
  // Who set out to read the nth and was overtaken gets that one or none.
  const auto late_readers = [&](int64_t newest) {
    for (int64_t n = 1; n <= newest + 1; ++n) {
      int64_t version = -1;
      if (board.read_nth(static_cast<uint64_t>(n), nullptr, &version) && version != n - 1)
        fail("a reader that was overtaken got a version that is not published yet");
    }
  };
  uint64_t checked = 0, ignored = 0;
  for (int64_t version = 0; version < 8; ++version) {
    const Image start = memory.image();
    const int64_t before = read();
    if (before != version - 1) fail("another version than was published");
    for (const Image& state : memory.trace([&] { publish(version); }, &ignored)) {
      memory.load(state);
      const int64_t there = read();
      if (there != before && there != version) fail("a version that nobody published");
      late_readers(version);
      for (int64_t next = version; next < version + 4; ++next) {
        if (next == there) continue;
        publish(next);
        if (read() != next) fail("a publication that does not show");
      }
      ++checked;
    }
    memory.load(start);
    publish(version);
  }
  return checked;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 6;
  alarm(120);  // a reader that never ends would not say so
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  Counts counts;
  const uint64_t published = attack_board(5) + attack_board(1);
  Stage(2, 2, 1, &counts, true).run_full_table();
  for (uint64_t seed = 1; seed <= 6 || Clock::now() < deadline; ++seed)
    Stage(1 + seed % 4, 2 + seed / 4 % 3, seed, &counts).run(6, 2);
  std::printf(
      "%llu calls, %llu instructions stepped, %llu states and %llu states of repairs played on, "
      "%llu of them undone, %llu processes killed; %llu states of publications\n",
      (unsigned long long)counts.attacks, (unsigned long long)counts.instructions,
      (unsigned long long)counts.states, (unsigned long long)counts.repairs,
      (unsigned long long)counts.undone, (unsigned long long)counts.kills,
      (unsigned long long)published);
  if (counts.attacks < 20 || counts.undone == 0) fail("too few calls: the test is void");
  return 0;
}
