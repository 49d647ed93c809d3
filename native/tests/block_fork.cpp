// Children that are forked while other threads take and give blocks can take and give them too.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "native/sys/block.h"

int main() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&stop] {
      while (!stop.load()) contig::block_give(contig::block_take(4096), 4096);
    });
  int failed = 0;
  for (int turn = 0; turn < 300 && failed == 0; ++turn) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);  // one that waits for a lock whose holder is not there
      contig::block_give(contig::block_take(4096), 4096);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
      std::fprintf(stderr, "child %d ended with status %d\n", turn, status);
      failed = 1;
    }
  }
  stop.store(true);
  for (std::thread& t : threads) t.join();
  return failed;
}
