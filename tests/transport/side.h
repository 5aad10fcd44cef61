// One side of a link in a test: a transport, what it reports, and the peer.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "tests/transport/recorder.h"

namespace cgx::transport {

struct Side {
  Recorder events;
  std::unique_ptr<Transport> transport;
  PeerId peer;

  void open(Result<std::unique_ptr<Transport>> made) {
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    transport = std::move(*made);
  }
};

}  // namespace cgx::transport
