// A daemon that looks at others, and others that answer as they like.
#include "daemon/fleet/look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "proto/messages/mesh.grpc.pb.h"
#include "tests/daemon/fleet/liar.h"
#include "tests/daemon/operators/fake_operator_port.h"

namespace cgx::daemon {
namespace {

using ::testing::HasSubstr;

// Says that gradients go to a thousand ports, at none of which anybody listens.
class LyingLook final : public v1::MeshHandshake::Service {
 public:
  explicit LyingLook(std::string host) : host_(std::move(host)) {}
  grpc::Status Look(grpc::ServerContext*, const v1::LookRequest*, v1::LookReply* reply) override {
    reply->set_name("liar\x1b[2J");
    v1::Agreed& agreed = *reply->add_agreed();
    agreed.set_key("version");
    agreed.set_value(
        "\xc2\x9b"
        "2J");
    reply->set_same_key(true);
    for (int port = 1; port <= 1000; ++port) reply->add_data(host_ + ":" + std::to_string(port));
    return grpc::Status::OK;
  }

 private:
  const std::string host_;
};

// Of a daemon on this machine alone.
LookFacts facts_of(uint16_t usual_port, const std::string& own_address = "127.0.0.1:1") {
  return {.name = "here",
          .mesh_address = own_address,
          .trusted = NetworkList::loopback(),
          .agreed = {},
          .cluster_key = {},
          .tls = {},
          .other_ports = {},
          .usual_port = usual_port};
}

class LookTest : public ::testing::Test {
 protected:
  v1::Diagnosis look_at(const std::string& asked, uint16_t usual_port, bool for_operator,
                        const std::string& own_address = "127.0.0.1:1") {
    Look look(facts_of(usual_port, own_address), port_);
    v1::DiagnoseRequest request;
    request.add_peers(asked);
    return look.diagnose(request, for_operator);
  }
  FakeOperatorPort port_;
};

TEST_F(LookTest, TriesFewOfThePortsThatAnotherNames) {
  LyingLook answers("127.0.0.1");
  const Liar liar(answers);
  const v1::Diagnosis seen = look_at(liar.address(), liar.port(), true);
  ASSERT_EQ(seen.others_size(), 1);
  EXPECT_EQ(seen.findings_size(), 8);
  EXPECT_EQ(seen.findings(0).key(), "transport.ports");
}

TEST_F(LookTest, TakesNoCommandsForATerminalFromAnother) {
  LyingLook answers("127.0.0.2");
  const Liar liar(answers);
  const v1::Diagnosis seen = look_at(liar.address(), liar.port(), false);
  ASSERT_EQ(seen.others_size(), 1);
  EXPECT_EQ(seen.others(0).name(), "liar?[2J");
  ASSERT_EQ(seen.others(0).agreed_size(), 1);
  EXPECT_EQ(seen.others(0).agreed(0).value(), "??2J");
}

TEST_F(LookTest, TellsUsersNothingOfThirdMachines) {
  LyingLook answers("127.0.0.2");
  const Liar liar(answers);
  EXPECT_EQ(look_at(liar.address(), liar.port(), true).findings_size(), 8);
  const v1::Diagnosis seen = look_at(liar.address(), liar.port(), false);
  EXPECT_EQ(seen.others_size(), 1);
  EXPECT_EQ(seen.findings_size(), 0);
}

TEST_F(LookTest, TriesNoOtherPortForUsers) {
  LyingLook answers("127.0.0.1");
  const Liar liar(answers);
  EXPECT_EQ(look_at(liar.address(), 7, true).others_size(), 1);
  const v1::Diagnosis seen = look_at(liar.address(), 7, false);
  EXPECT_EQ(seen.others_size(), 0);
  ASSERT_EQ(seen.findings_size(), 1);
  EXPECT_THAT(seen.findings(0).text(), HasSubstr("only operators"));
}

// Whom a client says it is about to meet may be any port of any machine.
TEST_F(LookTest, AsksNobodyWhomADaemonHasNotMet) {
  LyingLook answers("127.0.0.2");
  const Liar liar(answers);
  scheduler::PeerSnapshot peer;
  peer.address = liar.address();
  for (const char* state : {"connecting", "up"}) {
    peer.state = state;
    scheduler::Snapshot shown;
    shown.peers = {peer};
    port_.show(shown);
    Look look(facts_of(7), port_);
    v1::DiagnoseRequest request;
    request.set_linked(true);
    const v1::Diagnosis seen = look.diagnose(request, /*for_operator=*/false);
    EXPECT_EQ(seen.others_size(), peer.state == "up");
    EXPECT_EQ(seen.findings_size(), 0) << "no port that the answer names was tried";
  }
}

TEST_F(LookTest, TakesAnIpv6AddressForOne) {
  for (const char* asked : {"fd00::3", "[fd00::3]", "[fd00::3]:7070"}) {
    const v1::Diagnosis seen = look_at(asked, 7070, false, "10.1.0.2:7070");
    ASSERT_EQ(seen.findings_size(), 1);
    EXPECT_THAT(seen.findings(0).text(), HasSubstr("fd00::3 is in none of this machine's"));
  }
}

// A name server that says nothing.
TEST_F(LookTest, ANameThatIsNotResolvedKeepsNobodysFindings) {
  LyingLook answers("127.0.0.2");
  const Liar liar(answers);
  std::promise<void> let_go;
  const std::shared_future<void> silence = let_go.get_future().share();
  LookFacts facts = facts_of(liar.port());
  facts.resolve = [silence](const std::string&) {
    silence.wait();
    return std::string();
  };
  Look look(std::move(facts), port_);
  v1::DiagnoseRequest request;
  request.add_peers("nobody.example");
  request.add_peers("127.0.0.1");
  auto looked = std::async(std::launch::async, [&] { return look.diagnose(request, false); });
  EXPECT_EQ(looked.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  let_go.set_value();
  const v1::Diagnosis seen = looked.get();
  EXPECT_EQ(seen.others_size(), 1) << "of the machine that answers";
  EXPECT_THAT(seen.findings(0).text(), HasSubstr("not resolved in time"));
}

TEST_F(LookTest, LooksThroughItsDescriptorsTwiceASecondHoweverManyAsk) {
  LookFacts facts = facts_of(7);
  int64_t looked = 0;
  facts.listeners = [&](const std::vector<uint16_t>&) {
    ++looked;
    return std::vector<std::string>{"127.0.0.1:4711"};
  };
  Look look(std::move(facts), port_);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 400; ++i) ASSERT_EQ(look.answer("127.0.0.1", {}).data_size(), 1);
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_LE(looked, 1 + took / std::chrono::milliseconds(500));
}

TEST_F(LookTest, LooksAtNothingOnceItsCallerHasGone) {
  LyingLook answers("127.0.0.2");
  const Liar liar(answers);
  Look look(facts_of(liar.port()), port_);
  v1::DiagnoseRequest request;
  request.add_peers("127.0.0.1");
  EXPECT_EQ(look.diagnose(request, false, [] { return false; }).others_size(), 0);
}

}  // namespace
}  // namespace cgx::daemon
