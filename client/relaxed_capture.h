// While a RelaxedCapture lives, what its thread asks of the driver neither breaks a graph that
// another thread captures nor is refused because of it (cuStreamBeginCapture's default mode).
#pragma once

#include "proto/device/driver.h"

namespace cgx::client {

class RelaxedCapture {
 public:
  explicit RelaxedCapture(const device::Driver& driver) : driver_(driver) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    if (!driver_.lacks(device::Feature::kGraphs).ok()) return;
    static_cast<void>(driver_.cuThreadExchangeStreamCaptureMode(&mode_));
  }

  const device::Driver& driver_;
  unsigned mode_ = device::CU_STREAM_CAPTURE_MODE_RELAXED;  // this thread's, or the one before
};

}  // namespace cgx::client
