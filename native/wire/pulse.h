// One side of a connection that is to say something from time to time, so that the other knows that
// it is there (docs/design/wire.md, Heartbeat). Times are of a steady clock, in seconds.
#pragma once

#include <algorithm>
#include <limits>

namespace contig {

class Pulse {
 public:
  // A new connection, which is silent for at most `seconds`; 0: it may be for ever.
  void begin(double seconds, double now) {
    seconds_ = seconds;
    heard_ = spoke_ = now;
  }
  void heard(double now) { heard_ = now; }
  void spoke(double now) { spoke_ = now; }
  bool beats() const { return seconds_ > 0; }
  // Whether it is time to say something.
  bool due(double now) const { return beats() && now - spoke_ >= seconds_ / 3; }
  // Whether the other side is lost. Only for who has just looked for something to read.
  bool silent(double now) const { return beats() && now - heard_ >= seconds_; }
  // How long nothing of this has to be looked at; `speaks`: whether there is room to say something.
  double patience(double now, bool speaks) const {
    if (!beats()) return std::numeric_limits<double>::infinity();
    const double next = speaks ? spoke_ + seconds_ / 3 : heard_ + seconds_;
    return std::max(std::min(next, heard_ + seconds_) - now, 0.0);
  }

 private:
  double seconds_ = 0, heard_ = 0, spoke_ = 0;
};

}  // namespace contig
