// What a daemon shows of a job to other machines' daemons: to whom, and how often.
#include "daemon/fleet/fleet.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "proto/messages/fleet.grpc.pb.h"
#include "tests/daemon/fleet/liar.h"
#include "tests/daemon/operators/fake_operator_port.h"

namespace cgx::daemon {
namespace {

constexpr const char kHere[] = "127.0.0.1:7070";
constexpr const char kThere[] = "127.0.0.2";

class FleetTest : public ::testing::Test {
 protected:
  FleetTest() {
    port_.show(two_users());
    fleet_.keys().keep({"resnet", 1000}, key_);
  }

  static std::string bytes(const auto& array) {
    return {reinterpret_cast<const char*>(array.data()), array.size()};
  }
  v1::ShowRequest question() const {
    v1::ShowRequest request;
    request.set_job("resnet");
    request.set_uid(1000);
    request.set_key_id(bytes(key_.id()));
    request.set_address(kHere);
    return request;
  }
  // As who knows `key` makes it.
  v1::ShowRequest proved(v1::ShowRequest request, const LinkKey& key) {
    const v1::ShowReply first = fleet_.answer(kThere, request);
    Nonce challenge{};
    EXPECT_EQ(first.challenge().size(), challenge.size());
    std::memcpy(challenge.data(), first.challenge().data(), first.challenge().size());
    request.set_challenge(first.challenge());
    request.set_proof(
        bytes(key.prove_question(challenge, {request.job(), request.uid()}, request.address())));
    return request;
  }
  StatusCode answer(const v1::ShowRequest& request, const std::string& host = kThere) {
    last_ = fleet_.answer(host, request);
    return static_cast<StatusCode>(last_.verdict().code());
  }

  static wire::JobKey job_key(int first) { return {std::byte(first)}; }

  FakeOperatorPort port_;
  const LinkKey key_{"", job_key(7)}, other_{"", job_key(8)};
  Fleet fleet_{
      {.name = "here", .mesh_address = kHere, .trusted = NetworkList::loopback(), .tls = {}},
      port_};
  v1::ShowReply last_;
};

TEST_F(FleetTest, ShowsAJobToWhoProvesThatHeKnowsItsKey) {
  ASSERT_EQ(answer(proved(question(), key_)), StatusCode::kOK) << last_.verdict().message();
  ASSERT_EQ(last_.communicators_size(), 2) << "dp and tp, nothing of bert";
  EXPECT_EQ(last_.communicators(0).name(), "dp");
  EXPECT_EQ(last_.communicators(0).machine(), "here");
  EXPECT_EQ(last_.tensors_size(), 0);
}

TEST_F(FleetTest, ShowsNothingToWhoKnowsAnotherKey) {
  EXPECT_EQ(answer(proved(question(), other_)), StatusCode::kAUTH_FAILED);
  EXPECT_EQ(last_.communicators_size(), 0);
  v1::ShowRequest with_own_key = question();
  with_own_key.set_key_id(bytes(other_.id()));
  EXPECT_EQ(answer(proved(with_own_key, other_)), StatusCode::kAUTH_FAILED);
}

TEST_F(FleetTest, ShowsNothingOfOtherUsersJobsOrThatThereAreNone) {
  v1::ShowRequest of_nobody = question();
  of_nobody.set_uid(1001);
  EXPECT_EQ(answer(proved(of_nobody, key_)), StatusCode::kAUTH_FAILED);
  const std::string said = last_.verdict().message();
  EXPECT_EQ(answer(proved(question(), other_)), StatusCode::kAUTH_FAILED);
  EXPECT_EQ(last_.verdict().message(), said);
}

TEST_F(FleetTest, TakesAProofOnce) {
  const v1::ShowRequest request = proved(question(), key_);
  EXPECT_EQ(answer(request), StatusCode::kOK);
  EXPECT_EQ(answer(request), StatusCode::kAUTH_FAILED);
}

TEST_F(FleetTest, TakesAProofOnlyFromTheHostThatWasChallenged) {
  EXPECT_EQ(answer(proved(question(), key_), "127.0.0.3"), StatusCode::kAUTH_FAILED);
}

TEST_F(FleetTest, TakesNoProofThatWasMadeForAnotherDaemon) {
  v1::ShowRequest elsewhere = question();
  elsewhere.set_address("127.0.0.9:7070");
  EXPECT_EQ(answer(proved(elsewhere, key_)), StatusCode::kAUTH_FAILED);
}

TEST_F(FleetTest, ToldNothingButAKeyEverybodyKnowsItShowsNothing) {
  const LinkKey nobodys("", wire::JobKey{});
  fleet_.keys().keep({"resnet", 1000}, nobodys);
  v1::ShowRequest request = question();
  request.set_key_id(bytes(nobodys.id()));
  EXPECT_EQ(answer(proved(request, nobodys)), StatusCode::kAUTH_FAILED);
}

TEST_F(FleetTest, RefusesHostsOutsideItsNetworks) {
  EXPECT_EQ(answer(question(), "10.9.9.9"), StatusCode::kPERMISSION_DENIED);
}

TEST_F(FleetTest, OneHostCannotTakeAllChallenges) {
  int given = 0;
  while (answer(question()) == StatusCode::kOK && given < 1000) ++given;
  EXPECT_EQ(given, 64);
  EXPECT_EQ(answer(question(), "127.0.0.3"), StatusCode::kOK);
}

// Another machine's daemon, which shows what it likes.
class LyingFleet final : public v1::Fleet::Service {
 public:
  grpc::Status Show(grpc::ServerContext*, const v1::ShowRequest*, v1::ShowReply* reply) override {
    reply->set_challenge(std::string(sizeof(Nonce), 'n'));
    v1::Communicator& one = *reply->add_communicators();
    one.set_name("\x1b[2J");
    one.add_plan_notes()->set_verdict(
        "\xc2\x9b"
        "2J");
    v1::TensorList& tensors = *reply->add_tensors();
    tensors.add_tensors()->set_name("a\nb");
    return grpc::Status::OK;
  }
};

TEST_F(FleetTest, TakesNoCommandsForATerminalFromAnother) {
  LyingFleet answers;
  const Liar liar(answers);
  Snapshot snapshot = two_users();
  snapshot.peers[0].address = liar.address();
  snapshot.peers[0].state = "up";
  const FleetAnswer told = fleet_.ask(snapshot, snapshot.communicators[0], {.tensors = true});
  ASSERT_EQ(told.communicators.size(), 1u);
  EXPECT_EQ(told.communicators[0].name(), "?[2J");
  EXPECT_EQ(told.communicators[0].plan_notes(0).verdict(), "??2J");
  ASSERT_EQ(told.tensors.size(), 1u);
  EXPECT_EQ(told.tensors[0].tensors(0).name(), "a?b");
}

TEST(LinkKeys, ForgetTheOldestAndKnowTheNewest) {
  LinkKeys keys;
  const auto key = [](uint16_t number) {
    wire::JobKey job_key{};
    std::memcpy(&job_key, &number, sizeof number);
    return LinkKey("", job_key);
  };
  for (uint16_t i = 0; i < 1025; ++i) keys.keep({"a", 1}, key(i));
  EXPECT_FALSE(keys.find({"a", 1}, key(0).id()));
  EXPECT_TRUE(keys.find({"a", 1}, key(1).id()));
  EXPECT_FALSE(keys.find({"a", 2}, key(1).id()));
  EXPECT_EQ(keys.newest({"a", 1})->id(), key(1024).id());
}

// Says nothing until it is let go, and counts who asks.
class SilentFleet final : public v1::Fleet::Service {
 public:
  grpc::Status Show(grpc::ServerContext* context, const v1::ShowRequest*, v1::ShowReply*) override {
    ++asked;
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
  std::atomic<int> asked{0};
};

// One that says more than anybody wants to keep.
class TalkingFleet final : public v1::Fleet::Service {
 public:
  grpc::Status Show(grpc::ServerContext*, const v1::ShowRequest*, v1::ShowReply* reply) override {
    reply->set_challenge(std::string(sizeof(Nonce), 'n'));
    reply->add_tensors()->add_tensors()->set_name(std::string(20 << 20, 'a'));
    return grpc::Status::OK;
  }
};

Snapshot with_peers(std::vector<std::string> addresses) {
  Snapshot snapshot = two_users();
  scheduler::PeerSnapshot peer = snapshot.peers[0];
  peer.state = "up";
  snapshot.peers.clear();
  for (std::string& address : addresses) {
    peer.address = std::move(address);
    snapshot.peers.push_back(peer);
  }
  return snapshot;
}

TEST_F(FleetTest, AsksNobodyOnceItsCallerHasGone) {
  SilentFleet silent;
  const Liar liar(silent);
  const Snapshot snapshot = with_peers({liar.address()});
  const FleetAnswer told =
      fleet_.ask(snapshot, snapshot.communicators[0], {.waits = [] { return false; }});
  EXPECT_EQ(silent.asked, 0);
  ASSERT_EQ(told.findings.size(), 1u);
}

TEST_F(FleetTest, AsksNobodyWithWhomNoLinkIsUp) {
  SilentFleet silent;
  const Liar liar(silent);
  Snapshot snapshot = with_peers({liar.address()});
  snapshot.peers[0].state = "connecting";
  EXPECT_TRUE(fleet_.ask(snapshot, snapshot.communicators[0], {}).findings.empty());
  EXPECT_EQ(silent.asked, 0);
}

// When an operator looks, a machine that was lost must not be missing without a word.
TEST_F(FleetTest, AsksAMachineThatWasLostToo) {
  SilentFleet silent;
  const Liar liar(silent);
  Snapshot snapshot = with_peers({liar.address()});
  snapshot.peers[0].state = "lost";
  EXPECT_EQ(fleet_.ask(snapshot, snapshot.communicators[0], {}).findings.size(), 1u);
  EXPECT_EQ(silent.asked, 1);
}

TEST_F(FleetTest, KeepsSomeOfWhatIsToldAtLength) {
  TalkingFleet talking;
  std::vector<std::unique_ptr<Liar>> liars;
  std::vector<std::string> addresses;
  for (int i = 0; i < 5; ++i) {
    liars.push_back(std::make_unique<Liar>(talking));
    addresses.push_back(liars.back()->address());
  }
  const Snapshot snapshot = with_peers(std::move(addresses));
  const FleetAnswer told = fleet_.ask(snapshot, snapshot.communicators[0], {.tensors = true});
  EXPECT_LE(told.tensors.size(), 3u) << "64 MiB";
  EXPECT_EQ(told.tensors.size() + told.findings.size(), 5u);
}

TEST_F(FleetTest, FewCallersAskAtOnce) {
  constexpr size_t kCallers = 6;
  SilentFleet silent;
  const Liar liar(silent);
  const Snapshot snapshot = with_peers({liar.address()});
  std::vector<std::future<FleetAnswer>> answers;
  for (size_t i = 0; i < kCallers; ++i) {
    answers.push_back(std::async(
        std::launch::async, [&] { return fleet_.ask(snapshot, snapshot.communicators[0], {}); }));
  }
  size_t refused = 0;
  for (auto& answer : answers) refused += answer.get().findings.at(0).machine() == "here";
  EXPECT_EQ(refused, kCallers - 2);
}

}  // namespace
}  // namespace cgx::daemon
