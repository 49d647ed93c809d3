// Producers and consumers in threads over one batch queue in plain memory, and one publisher with
// readers over one weights board, each thread with a handle of its own, as processes have. Run
// under ThreadSanitizer. Waits are longer than the whole test should take: a wake-up that is lost
// shows as a wait that ran out.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "native/queue/weights.h"
#include "native/sys/process.h"
#include "native/sys/wait.h"
#include "queue_items.h"

namespace {

using namespace contig;
using items::Item;
using rows::fail;
using Clock = std::chrono::steady_clock;

constexpr double kForever = 60;

// Words, for alignment.
std::vector<uint64_t> words(uint64_t bytes) { return std::vector<uint64_t>(bytes / 8 + 16); }
uint8_t* aligned(std::vector<uint64_t>& v) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(v.data()) + 63) / 64 * 64);
}

// False only if the word stays as it is. (A late wake-up for an older change ends a single wait.)
bool changes(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t seen) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(kForever);
  while (!wait_change(word, waiters, seen, kForever))
    if (Clock::now() >= deadline) return false;
  return true;
}

// ---- the queue ---------------------------------------------------------------------------------

struct Taken {
  uint64_t block;
  std::vector<Item> items;
};

struct Shared {
  uint64_t batch_size, num_slots, bytes;
  std::vector<uint64_t> memory;
  std::atomic<uint64_t> sent{0};
  std::atomic<bool> stop{false};  // no more items
  std::atomic<uint64_t> producers{0}, waits_for_room{0}, waits_for_data{0}, copies{0};
  std::vector<std::vector<Taken>> taken;  // by consumer

  Shared(uint64_t size, uint64_t slots, uint64_t consumers)
      : batch_size(size),
        num_slots(slots),
        bytes(Queue::bytes_for(items::spec(size, slots))),
        memory(words(bytes)),
        taken(consumers) {
    Queue::format(aligned(memory), items::spec(size, slots), "{}");
  }
  Queue attach() { return Queue(aligned(memory), bytes); }
};

// Sends items 0, 1, 2 ..., often some of them for a second time.
void produce(Shared* shared, uint64_t number) {
  Queue queue = shared->attach();
  QueueHeader& h = queue.header();
  rows::Random random(number * 31);
  const uint64_t longest = shared->batch_size * shared->num_slots;
  uint64_t next = 0;
  while (!shared->stop.load()) {
    const uint64_t first = next - std::min(next, random.below(4));
    const uint64_t n = next - first + random.below(longest);
    if (n == 0) continue;
    const std::vector<uint8_t> records = items::records(items::range(number, first, n));
    const uint32_t seen = h.space_word.load();
    Queue::Accepted a;
    {
      items::Hold hold(queue);
      a = queue.accept(number, first, records.data(), n);
    }
    if (a.gap || a.seen < next || a.seen != next + a.added) fail("an append of other items");
    if (a.full ? a.seen >= first + n : a.seen != first + n) fail("an append of too few items");
    next = a.seen;
    if (!a.full) continue;
    ++shared->waits_for_room;
    if (!changes(h.space_word, h.space_waiters, seen) && !shared->stop.load())
      fail("a producer waits although there is room, or nobody takes");
  }
  shared->sent += next;
  if (--shared->producers == 0) {
    h.closed.store(1);
    wake(h.data_word, h.data_waiters);
  }
}

// Takes batches, holds some of them for a while, and looks at them again before it lets go.
void consume(Shared* shared, uint64_t number) {
  Queue queue = shared->attach();
  QueueHeader& h = queue.header();
  rows::Random random(number * 77 + 5);
  std::deque<std::pair<uint64_t, std::vector<Item>>> held;
  const auto let_go = [&] {
    if (items::read(queue, held.front().first, held.front().second.size()) != held.front().second)
      fail("a batch changed while it was held");
    queue.release(held.front().first);
    held.pop_front();
  };
  for (;;) {
    const uint32_t seen = h.data_word.load();
    const bool last = h.closed.load() != 0;
    Queue::Taken t{};
    uint64_t block = 0;
    bool took;
    {
      items::Hold hold(queue);
      took = queue.take(last, contig::process_id(), &t);
      if (took) block = h.taken.load() - 1;
    }
    if (took) {
      std::vector<Item> items = items::read(queue, t.slot, t.rows);
      shared->taken[number].push_back(Taken{block, items});
      held.emplace_back(t.slot, std::move(items));
      if (t.last_free) ++shared->copies;
      // The last slot must not be held, or nobody can go on.
      while (!held.empty() && (t.last_free || held.size() > random.below(shared->num_slots)))
        let_go();
      continue;
    }
    if (last) break;
    while (!held.empty()) let_go();
    ++shared->waits_for_data;
    if (!changes(h.data_word, h.data_waiters, seen))
      fail("a consumer waits although there is a batch, or nobody sends");
  }
  while (!held.empty()) let_go();
}

void round(uint64_t batch_size, uint64_t num_slots, double seconds) {
  constexpr uint64_t kProducing = 3, kConsuming = 2;
  Shared shared(batch_size, num_slots, kConsuming);
  shared.producers = kProducing;
  std::vector<std::thread> threads;
  for (uint64_t p = 1; p <= kProducing; ++p) threads.emplace_back(produce, &shared, p);
  for (uint64_t c = 0; c < kConsuming; ++c) threads.emplace_back(consume, &shared, c);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  shared.stop = true;
  for (std::thread& t : threads) t.join();

  std::vector<Taken> all;
  for (const auto& some : shared.taken) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end(),
            [](const Taken& a, const Taken& b) { return a.block < b.block; });
  std::map<uint64_t, uint64_t> next;
  uint64_t total = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].block != i) fail("a block twice, or one that nobody got");
    for (const Item& item : all[i].items)
      if (item.number != next[item.producer]++) fail("an item that was lost, doubled or moved");
    total += all[i].items.size();
  }
  if (total != shared.sent) fail("items that nobody got");
  std::printf(
      "batches of %llu, %llu slots: %llu items in %zu batches, waited %llu times for room "
      "and %llu times for items, %llu times the last slot\n",
      (unsigned long long)batch_size, (unsigned long long)num_slots, (unsigned long long)total,
      all.size(), (unsigned long long)shared.waits_for_room,
      (unsigned long long)shared.waits_for_data, (unsigned long long)shared.copies);
  std::fflush(stdout);
  if (all.size() < 20 * num_slots || shared.waits_for_room == 0)
    fail("too few batches: the test is void");
}

// ---- weights -----------------------------------------------------------------------------------

void weights(uint64_t n_words, double seconds) {
  const uint64_t bytes = Board::bytes_for(n_words * 8, 2);
  std::vector<uint64_t> memory = words(bytes);
  Board::format(aligned(memory), n_words * 8, "{}", 2);
  std::atomic<bool> stop{false}, over{false};
  std::atomic<uint64_t> reads{0}, versions{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    Board board(aligned(memory), bytes);
    std::vector<uint64_t> record(n_words);
    int64_t version = 0;
    for (; !over.load(); version += 3) {
      for (uint64_t i = 0; i < n_words; ++i)
        record[i] = rows::mix(static_cast<uint64_t>(version) * 31 + i);
      board.publish(version, reinterpret_cast<const uint8_t*>(record.data()));
    }
    versions = static_cast<uint64_t>(version / 3);
  });
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      Board board(aligned(memory), bytes);
      std::vector<uint64_t> out(n_words);
      int64_t last = -1;
      while (!stop.load()) {
        const uint32_t seen = board.header().wake_word.load();
        int64_t version = -1, newest = -1;
        if (!board.read(reinterpret_cast<uint8_t*>(out.data()), &version)) continue;
        for (uint64_t i = 0; i < n_words; ++i)
          if (out[i] != rows::mix(static_cast<uint64_t>(version) * 31 + i)) fail("torn weights");
        if (version < last || version % 3 != 0) fail("a version that goes back, or nobody's");
        if (!board.newest(&newest) || newest < version) fail("the newest version is older");
        last = version;
        ++reads;
        if (r == 0 && newest == version &&
            !changes(board.header().wake_word, board.header().waiters, seen))
          fail("a reader waits although there is a newer version");
      }
    });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (size_t i = 1; i < threads.size(); ++i) threads[i].join();
  over = true;  // only now: who waits for the next version gets it
  threads[0].join();
  std::printf("weights of %llu words: %llu versions, %llu reads\n", (unsigned long long)n_words,
              (unsigned long long)versions, (unsigned long long)reads);
  if (versions < 100 || reads < 100) fail("too few versions: the test is void");
}

}  // namespace

int main(int argc, char** argv) {
  const double scale = argc > 1 ? std::atof(argv[1]) : 1;
  for (const uint64_t size : {1, 3, 64})
    for (const uint64_t slots : {2, 4}) round(size, slots, 0.7 * scale);
  for (const uint64_t n : {1, 7, 1000}) weights(n, 0.5 * scale);
  return 0;
}
