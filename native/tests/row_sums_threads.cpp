// Salts are added while others check rows: each of them sees a list as it was set, old or new.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "native/tape/row_sums.h"

int main() {
  constexpr size_t kSize = 24, kRows = 64;
  contig::RowSums sums;
  const uint64_t first[] = {0, 77};
  sums.set(first, 1);
  std::vector<uint8_t> rows(kRows * (kSize + 4));
  for (size_t i = 0; i < kRows; ++i) {
    uint8_t* row = rows.data() + i * (kSize + 4);
    std::memset(row, static_cast<int>(i), kSize);
    const uint32_t crc = sums.of(i, row, kSize);
    std::memcpy(row + kSize, &crc, sizeof crc);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&] {
      while (!stop.load())
        for (size_t i = 0; i < kRows; ++i)
          if (!sums.whole(i, rows.data() + i * (kSize + 4), kSize)) ++wrong;
    });
  for (uint64_t n = 1; n <= 500; ++n) {  // rows from 64 on are others'
    const uint64_t pairs[] = {0, 77, kRows, n, kRows + n, n + 1};
    sums.set(pairs, 1 + n % 3);
  }
  stop.store(true);
  for (auto& reader : readers) reader.join();
  return wrong.load() == 0 ? 0 : 1;
}
