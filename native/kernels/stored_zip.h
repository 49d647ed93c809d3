// Zip archives whose members are stored as they are, such as numpy's .npz files.
//
// What it gains over Python's zipfile, which reads all others: a file of 500 frames (5 arrays, 124
// kB) takes 35 us in place of 107, of which 27 are the checksums, and one of 20 frames 10 in place
// of 74. A RolloutDataset of files of 100 frames hands out a quarter less without it.
// `python -m benchmarks.rollout` prints both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace contig {

struct ZipMember {
  std::string name;
  size_t offset, size;  // of its bytes in the archive
};

enum class ZipState {
  whole,
  damaged,    // a checksum is wrong, or an offset leads out of the archive
  unfamiliar  // compressed, encrypted, with a comment, larger than 4 GB: others read that
};

// Lists the members of an archive, checksums compared.
ZipState read_stored_zip(const uint8_t* data, size_t n, std::vector<ZipMember>& members,
                         std::string& damaged);

// CRC-32 as zip has it (not Castagnoli's), of more bytes, given that of those before (0 at first).
uint32_t crc32_zip(uint32_t before, const uint8_t* data, size_t n);

}  // namespace contig
