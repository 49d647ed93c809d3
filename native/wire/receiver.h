// What a connection has received and not yet handled: a buffer of its own, read frame by frame.
// Not thread-safe: it belongs to its connection.
#pragma once

#include <cstdint>

#include "native/wire/carried_slots.h"
#include "native/wire/items.h"

namespace contig {

class Receiver {
 public:
  // `max_frame` bounds a frame, and with it the buffer.
  Receiver(uint64_t bytes, uint64_t max_frame);
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // Room behind what was received, moved to the front if that makes more of it.
  uint8_t* room(uint64_t* bytes);
  void received(uint64_t bytes);
  // Receives from a socket what is there: the rest of a large frame, in pieces that are summed up
  // while they are in the cache, or else as much as there is room for; how many bytes. Of what is
  // still missing of a large frame, a good part has to be there before the socket is called
  // readable again. Whatever goes wrong, the next reader finds.
  uint64_t receive(int socket, bool summing = true);
  // Raw bytes of the handshake, before any frame: null if there are fewer.
  const uint8_t* peek(uint64_t bytes) const { return held() < bytes ? nullptr : data_ + from_; }
  void skip(uint64_t bytes);

  // The next frame: `ready` (it stays until `pop`), `more` (bytes are missing), `grow` (it does
  // not fit: `needed` bytes of buffer would do), `bad` (see `refusal`; nothing more can be read).
  // One that left out slots that came before has them again when it is ready: what they need beyond
  // the buffer's size, no more than is carried, is there without being asked for.
  enum class State { more, ready, grow, bad };
  State next();
  // The same without looking at the frame's checksum; `settle` tells that it is right.
  State next_unsummed();
  void settle() { checked_ = true; }
  void pop();
  const Frame& frame() const { return frame_; }
  const uint8_t* body() const { return data_ + from_ + kFrameHeader; }
  uint64_t needed() const { return kFrameHeader + frame_.length; }
  Refusal refusal() const { return refusal_; }
  // Whether the frame at the front is one of items, for a table with such records; it is refused
  // otherwise. `fits` tells who takes it in that this was asked.
  bool ready() const { return parsed_ && checked_; }
  bool check(uint64_t record_size, bool runs);
  // The same, and where its parts are, for who asks by the frame alone.
  Refusal refusal_of_items(uint64_t record_size, bool runs, ItemParts* parts);
  // What items look like, beyond the size of their records.
  ItemShape& shape() { return shape_; }
  const ItemShape& shape() const { return shape_; }
  bool fits(uint64_t record_size, bool runs) const {
    return parsed_ && fits_ == record_size && fits_runs_ == runs;
  }

  // Another size, at least what is held.
  void resize(uint64_t bytes);
  uint64_t size() const { return size_; }
  uint64_t held() const { return to_ - from_; }
  uint64_t max_frame() const { return max_frame_; }
  void allow(uint64_t max_frame) { max_frame_ = max_frame; }
  // So many bytes of slots are kept, for frames that leave them out, and may be put into one.
  void set_carry(uint64_t bytes) { carried_.allow(bytes); }
  uint64_t carry() const { return carried_.allowed(); }
  void set_near(bool near) { near_ = near; }  // whether the peer is on this machine

 private:
  uint8_t* data_;
  uint64_t size_, from_ = 0, to_ = 0, max_frame_;
  uint64_t beyond_ = 0;  // bytes behind `size_`, where nothing is received to

  bool parse();  // the header, if it is there
  void sum();    // what has come of the frame's body
  void wake_at(uint64_t bytes);
  State complete();  // puts in what the frame left out
  void to_front();
  void move_to(uint64_t size, uint64_t beyond);  // another block

  Frame frame_{};
  uint64_t summed_ = 0;  // bytes of the body that are in crc_
  uint32_t crc_ = 0;
  int socket_ = -1;        // the one received from
  uint64_t wakes_at_ = 1;  // bytes that make it readable
  uint64_t fits_ = 0;      // 0: not checked for a table yet
  bool parsed_ = false, checked_ = false, fits_runs_ = false, near_ = false;
  Refusal refusal_ = Refusal::none;
  ItemShape shape_;
  CarriedSlots carried_;
  // Of a frame of items that was found to fit and whose slots are to be kept: where they are in its
  // body, and how many.
  struct Kept {
    uint64_t at = 0, n = 0;
  } kept_;
};

}  // namespace contig
