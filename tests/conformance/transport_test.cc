// The rigs: every transport that promises what transport.h says.
#include "tests/conformance/transport_suite.h"
#include "transport/faults.h"
#include "transport/loopback.h"
#include "transport/tcp.h"
#include "transport/ucx.h"

namespace cgx::transport {
namespace {

class LoopbackRig : public TransportRig {
 public:
  explicit LoopbackRig(LoopbackNetwork::Options options) : network_(std::move(options)) {}
  std::unique_ptr<Transport> make(Events& events) override {
    return network_.make_endpoint(events);
  }
  void let_time_pass() override { network_.advance_to(network_.now_ns() + 10'000); }

 private:
  LoopbackNetwork network_;
};

class FaultlessRig : public LoopbackRig {
 public:
  FaultlessRig() : LoopbackRig({}), faults_({}) {}
  std::unique_ptr<Transport> make(Events& events) override {
    return faults_.wrap(events, [this](Events& inner) { return LoopbackRig::make(inner); });
  }

 private:
  Faults faults_;
};

class UcxRig : public TransportRig {
 public:
  UcxRig() { prepare_process(); }
  std::unique_ptr<Transport> make(Events& events) override {
    auto transport = make_ucx_transport({}, events);
    if (transport.ok()) return std::move(*transport);
    ADD_FAILURE() << transport.status().to_string();
    return nullptr;
  }
};

class FaultlessUcxRig : public UcxRig {
 public:
  std::unique_ptr<Transport> make(Events& events) override {
    return faults_.wrap(events, [this](Events& inner) { return UcxRig::make(inner); });
  }

 private:
  Faults faults_{{}};
};

template <TcpSeal seal>
class TcpRig : public TransportRig {
 public:
  std::unique_ptr<Transport> make(Events& events) override {
    TcpOptions options;
    options.seal = seal;
    auto transport = make_tcp_transport(options, events);
    if (transport.ok()) return std::move(*transport);
    ADD_FAILURE() << transport.status().to_string();
    return nullptr;
  }
};

class FaultlessTcpRig : public TcpRig<TcpSeal::kLink> {
 public:
  std::unique_ptr<Transport> make(Events& events) override {
    return faults_.wrap(events, [this](Events& inner) { return TcpRig::make(inner); });
  }

 private:
  Faults faults_{{}};
};

template <typename Rig>
std::unique_ptr<TransportRig> make() {
  return std::make_unique<Rig>();
}

std::unique_ptr<TransportRig> make_slow() {
  return std::make_unique<LoopbackRig>(
      LoopbackNetwork::Options{.latency_ns = [](const LoopbackNetwork::Hop&) { return 50'000; },
                               .port_bytes_per_second = 1'250'000'000,
                               .frame_overhead_bytes = 66});
}

// Later frames would overtake earlier ones, if a pair did not keep its order.
std::unique_ptr<TransportRig> make_jittery() {
  return std::make_unique<LoopbackRig>(LoopbackNetwork::Options{
      .latency_ns = [](const LoopbackNetwork::Hop& hop) { return hop.bytes % 7 * 40'000; }});
}

std::unique_ptr<TransportRig> make_loopback() {
  return std::make_unique<LoopbackRig>(LoopbackNetwork::Options{});
}

INSTANTIATE_TEST_SUITE_P(Every, TransportConformance,
                         ::testing::Values(RigKind{"Loopback", make_loopback},
                                           RigKind{"SlowLoopback", make_slow},
                                           RigKind{"JitteryLoopback", make_jittery},
                                           RigKind{"Faultless", make<FaultlessRig>},
                                           RigKind{"Ucx", make<UcxRig>},
                                           RigKind{"FaultlessUcx", make<FaultlessUcxRig>},
                                           RigKind{"Tcp", make<TcpRig<TcpSeal::kLink>>},
                                           RigKind{"TcpFrame", make<TcpRig<TcpSeal::kFrame>>},
                                           RigKind{"TcpEncrypt", make<TcpRig<TcpSeal::kEncrypt>>},
                                           RigKind{"FaultlessTcp", make<FaultlessTcpRig>}),
                         rig_name);

}  // namespace
}  // namespace cgx::transport
