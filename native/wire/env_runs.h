// Steps of a client's envs as runs of frames, one for each row, whose boundaries the client tells:
// a server's lanes are numbered without gaps, so rows of some of them cannot name theirs. The rules
// are those of every writer.
#pragma once

#include <cstdint>
#include <vector>

#include "native/tape/trajectories.h"
#include "native/wire/frame.h"

namespace contig {

class EnvRuns : Trajectories {
 public:
  // Runs of n rows, each the next one of its env, and with fields of its own if they have any.
  // `next_id` and the n - 1 ids behind it are nobody else's. Nothing counts until it is committed.
  const std::vector<WireRun>& tell(uint64_t n, const int64_t* envs, const Marks& marks,
                                   int64_t next_id, bool with_fields = false);
  // `ended`: how the last of these trajectories ended, where no mark of its row says so.
  void commit(uint64_t ended = 0);
  using Trajectories::let_go;

 private:
  std::vector<WireRun> told_;
};

}  // namespace contig
