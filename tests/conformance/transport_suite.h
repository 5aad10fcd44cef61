// The promises of transport/transport.h, checked on every transport. A rig makes endpoints that can
// reach each other and lets time pass; INSTANTIATE_TEST_SUITE_P lists the rigs (transport_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "tests/transport/recorder.h"
#include "transport/transport.h"

namespace cgx::transport {

class TransportRig {
 public:
  virtual ~TransportRig() = default;
  virtual std::unique_ptr<Transport> make(Events& events) = 0;
  virtual void let_time_pass() {}  // virtual time only
};

struct RigKind {
  const char* name;
  std::unique_ptr<TransportRig> (*make)();
};

inline void PrintTo(const RigKind& kind, std::ostream* out) {
  *out << kind.name;
}

inline std::string rig_name(const ::testing::TestParamInfo<RigKind>& info) {
  return info.param.name;
}

// Two endpoints, not yet joined.
class TransportConformance : public ::testing::TestWithParam<RigKind> {
 protected:
  struct Side {
    Recorder events;
    std::unique_ptr<Transport> transport;
    PeerId peer;
  };

  TransportConformance();
  ~TransportConformance() override;

  // What `from` needs to connect to `to`; the tag of a direction is 16 * link + from side + 1.
  ConnectOptions options(const Side& from, Side& to, uint64_t link = 0);
  void join();
  Status send(Side& from, std::string_view header, std::span<const std::byte> payload,
              SendToken token);
  void tick();
  // Ticks until `done` or 20 s have passed; returns done().
  bool until(const std::function<bool()>& done);
  // Ticks until nothing happens any more.
  void settle();

  Side a, b;
  std::unique_ptr<TransportRig> rig;
};

// A payload of `bytes` that depends on `seed`, and the check of one.
std::vector<std::byte> pattern(size_t bytes, uint64_t seed);

}  // namespace cgx::transport
