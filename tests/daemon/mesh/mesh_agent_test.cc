#include "tests/daemon/mesh/mesh_pair.h"

namespace cgx::daemon {
namespace {

using scheduler::Counter;

class MeshAgentTest : public testing::Test {
 protected:
  // "a" has the smaller instance: it dials.
  void start(const std::function<void(MeshOptions&)>& change = {}) {
    a = std::make_unique<MeshSide>(wire::InstanceId{1, 1}, "a", &history, change);
    b = std::make_unique<MeshSide>(wire::InstanceId{2, 2}, "b", &history, change);
    for (MeshSide* each : {a.get(), b.get()}) {
      each->network = {{"127.0.0.1:a", a.get()}, {"127.0.0.1:b", b.get()}};
    }
  }
  void settle() {
    while (a->agent->do_work(now) + b->agent->do_work(now) > 0) {
    }
  }
  // Lets virtual time pass, stopping wherever an agent wants to act.
  void pass(uint64_t duration_ns) {
    const uint64_t end = now + duration_ns;
    settle();
    while (now < end) {
      const uint64_t next = std::min(a->agent->next_deadline_ns(), b->agent->next_deadline_ns());
      now = std::min(end, std::max(next, now + 1));
      settle();
    }
  }
  void want_both(char key_a = 'k', char key_b = 'k') {
    EXPECT_TRUE(a->agent->want(a->wish(*b, key_a)));
    EXPECT_TRUE(b->agent->want(b->wish(*a, key_b)));
  }
  bool linked() { return a->links_made[1] == 1 && b->links_made[1] == 1; }

  uint64_t now = kSecond;
  std::vector<std::string> history;
  std::unique_ptr<MeshSide> a, b;
};

TEST_F(MeshAgentTest, BothSidesLearnTheOthersEndpointAndMatchingTags) {
  start();
  want_both();
  settle();
  ASSERT_TRUE(linked());
  const transport::ConnectOptions &at_a = a->connections[1], &at_b = b->connections[1];
  EXPECT_EQ(at_a.remote.address, (std::vector<std::byte>{std::byte('b')}));
  EXPECT_EQ(at_b.remote.address, (std::vector<std::byte>{std::byte('a')}));
  EXPECT_EQ(at_a.inbound_tag, at_b.outbound_tag);
  EXPECT_EQ(at_a.outbound_tag, at_b.inbound_tag);
  EXPECT_NE(at_a.inbound_tag, at_a.outbound_tag);
}

TEST_F(MeshAgentTest, TheSmallerInstanceDials) {
  start();
  want_both();
  settle();
  EXPECT_EQ(a->greetings_sent, 1);
  EXPECT_EQ(b->greetings_sent, 0);
}

TEST_F(MeshAgentTest, NobodySendsBeforeTheOtherHasConnected) {
  start();
  want_both();
  settle();
  EXPECT_EQ(history, (std::vector<std::string>{"b connects", "a connects", "a up", "b up"}));
}

TEST_F(MeshAgentTest, EachHandshakeHasFreshTags) {
  start();
  want_both();
  settle();
  want_both();
  settle();
  EXPECT_NE(a->connections[1].inbound_tag, a->connections[2].inbound_tag);
}

TEST_F(MeshAgentTest, WaitsUntilTheOtherSideAsksToo) {
  start();
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  pass(100 * kSecond);
  EXPECT_TRUE(a->refusals.empty());
  EXPECT_LT(a->greetings_sent, 250);  // with a growing pause
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  pass(kSecond);
  EXPECT_TRUE(linked());
}

TEST_F(MeshAgentTest, GivesUpAtTheDeadlineAndNamesTheOther) {
  start();
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  EXPECT_TRUE(b->agent->want(b->wish(*a, 'k', "another job")));
  pass(121 * kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kTIMED_OUT);
  EXPECT_NE(a->refusals[1].message().find("127.0.0.1:b"), std::string::npos);
  EXPECT_EQ(b->refusals[1].code(), StatusCode::kTIMED_OUT);
  EXPECT_EQ(a->agent->next_deadline_ns(), kNever);
}

// As two machines' daemons are by default: each sees the other's address, and nobody listens there.
TEST_F(MeshAgentTest, TwoMachinesOnLoopbackAreToldTheKeyOnBothSidesAtOnce) {
  start([](MeshOptions& o) { o.address = "127.0.0.1:1"; });
  a->network.clear();
  b->network.clear();
  want_both();
  pass(2 * kSecond);
  for (MeshSide* side : {a.get(), b.get()}) {
    EXPECT_EQ(side->refusals[1].code(), StatusCode::kUNAVAILABLE) << side->name;
    EXPECT_NE(side->refusals[1].message().find("set mesh.network on both"), std::string::npos);
    EXPECT_EQ(side->agent->next_deadline_ns(), kNever);
  }
}

TEST_F(MeshAgentTest, OnOneMachineTheDialedSideWaitsAsEver) {
  start([](MeshOptions& o) { o.address = "127.0.0.1:1"; });
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  pass(100 * kSecond);
  EXPECT_TRUE(b->refusals.empty());
  EXPECT_EQ(b->greetings_sent, 1);
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  pass(kSecond);
  EXPECT_TRUE(linked());
}

TEST_F(MeshAgentTest, AnotherKeyIsNamedOnBothSides) {
  start();
  want_both('k', 'x');
  pass(3 * kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kAUTH_FAILED) << a->refusals[1].message();
  EXPECT_EQ(b->refusals[1].code(), StatusCode::kAUTH_FAILED) << b->refusals[1].message();
  EXPECT_NE(b->refusals[1].message().find("'train'"), std::string::npos);
  EXPECT_EQ(b->count(Counter::kpeers_refused), 1u);
  EXPECT_TRUE(history.empty());
}

TEST_F(MeshAgentTest, TheClusterKeyCountsToo) {
  start();
  b = std::make_unique<MeshSide>(wire::InstanceId{2, 2}, "b", &history,
                                 [](MeshOptions& o) { o.cluster_key = "0123456789abcdef"; });
  a->network["127.0.0.1:b"] = b.get();
  b->network = a->network;
  want_both();
  pass(3 * kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kAUTH_FAILED);
  EXPECT_EQ(b->refusals[1].code(), StatusCode::kAUTH_FAILED);
}

TEST_F(MeshAgentTest, SeveralKeysOfOneJobDoNotDisturbEachOther) {
  start();
  EXPECT_TRUE(a->agent->want(a->wish(*b, 'x')));
  EXPECT_TRUE(b->agent->want(b->wish(*a, 'y')));
  pass(kSecond);
  EXPECT_TRUE(a->agent->want(a->wish(*b, 'y')));
  EXPECT_TRUE(b->agent->want(b->wish(*a, 'x')));
  pass(kSecond);
  EXPECT_EQ(a->links_made[1] + a->links_made[2], 2);
  EXPECT_EQ(b->links_made[1] + b->links_made[2], 2);
  EXPECT_EQ(a->connections[1].inbound_tag, b->connections[2].outbound_tag);
}

TEST_F(MeshAgentTest, AnotherUsersJobOfTheSameNameIsRefused) {
  start();
  LinkWish other = b->wish(*a);
  other.request.uid = 1001;
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  EXPECT_TRUE(b->agent->want(std::move(other)));
  pass(3 * kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kPERMISSION_DENIED);
  EXPECT_NE(b->refusals[1].message().find("1001"), std::string::npos);
}

TEST_F(MeshAgentTest, AnotherVersionIsNamedOnBothSidesWithBothVersions) {
  start();
  for (MeshSide* side : {a.get(), b.get()}) {
    side->interference.greeting = [](Greeting& greeting, Challenge&) {
      greeting.version = 7;
      return true;
    };
  }
  want_both();
  settle();
  for (MeshSide* side : {a.get(), b.get()}) {
    EXPECT_EQ(side->refusals[1].code(), StatusCode::kVERSION_MISMATCH);
    EXPECT_NE(side->refusals[1].message().find("7"), std::string::npos);
    EXPECT_NE(side->refusals[1].message().find(std::to_string(kMeshVersion)), std::string::npos);
  }
}

TEST_F(MeshAgentTest, AnotherProgramIsNamedOnBothSidesWithBothVersions) {
  start([](MeshOptions& options) {
    options.program = options.name == "a" ? "cgxd 0.1.0" : "cgxd 0.2.0";
  });
  want_both();
  settle();
  for (MeshSide* side : {a.get(), b.get()}) {
    EXPECT_EQ(side->refusals[1].code(), StatusCode::kVERSION_MISMATCH);
    EXPECT_NE(side->refusals[1].message().find("is cgxd 0.2.0"), std::string::npos);
    EXPECT_NE(side->refusals[1].message().find("is cgxd 0.1.0"), std::string::npos);
  }
}

// Whoever knows a job's name can say all this; only what the peer's own address says counts.
TEST_F(MeshAgentTest, AStrangersWordsEndNoWish) {
  start();
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  settle();
  Greeting evil{kMeshVersion, "train", 1000, {1, 1}, {2, 2}, {}, {}, "evil"};
  for (int i = 0; i < 40; ++i) {
    evil.version = i % 2 ? kMeshVersion : 99;
    evil.key_id.fill(std::byte(i % 4));
    evil.uid = i % 8 < 4 ? 1000 : 2000;
    b->agent->greeted("127.0.0.1", evil, [](const Challenge&) {});
    pass(kSecond / 4);
  }
  EXPECT_TRUE(b->refusals.empty()) << b->refusals[1].message();
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  pass(kSecond);
  EXPECT_TRUE(linked());
}

TEST_F(MeshAgentTest, WhatAStrangerSaidIsQuotedWhenTheTimeIsOver) {
  start();
  b->network.clear();  // the peer cannot be asked back
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  settle();
  b->agent->greeted("127.0.0.1", {99, "train", 1000, {1, 1}, {2, 2}, {}, {}, "old"},
                    [](const Challenge&) {});
  pass(121 * kSecond);
  EXPECT_EQ(b->refusals[1].code(), StatusCode::kTIMED_OUT);
  EXPECT_NE(b->refusals[1].message().find("protocol 99"), std::string::npos)
      << b->refusals[1].message();
}

TEST_F(MeshAgentTest, DialsNothingButDaemonsPlacesInsideTheTrustedNetworks) {
  start();
  for (const char* address :
       {"192.0.2.2:34963", "unix:/run/cgxd/control.sock", "localhost:80", "a:1"}) {
    LinkWish wish = a->wish(*b);
    const LinkSerial serial = wish.serial;
    wish.request.mesh_address = address;
    EXPECT_TRUE(a->agent->want(std::move(wish)));
    pass(kSecond);
    EXPECT_EQ(a->refusals[serial].code(), StatusCode::kPERMISSION_DENIED) << address;
  }
  EXPECT_EQ(a->greetings_sent, 0);
}

TEST_F(MeshAgentTest, NeverDialsWhereItsProcessListens) {
  start([](MeshOptions& options) {
    options.look_at_own = [] {
      return [](const std::string& address) { return address == "127.0.0.1:9090"; };
    };
  });
  LinkWish only = a->wish(*b), among = a->wish(*b);
  only.request.mesh_address = "127.0.0.1:9090";
  among.request.mesh_address = "127.0.0.1:9090,127.0.0.1:b";
  EXPECT_TRUE(a->agent->want(std::move(only)));
  pass(kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kPERMISSION_DENIED);
  EXPECT_NE(a->refusals[1].message().find("it listens there itself"), std::string::npos);
  EXPECT_EQ(a->greetings_sent, 0);
  EXPECT_TRUE(a->agent->want(std::move(among)));
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  pass(kSecond);
  EXPECT_EQ(a->links_made[2], 1) << "the other address is dialed";
}

TEST_F(MeshAgentTest, AProofThatDoesNotFitIsRefusedAndTheWishGoesOnWaiting) {
  start();
  a->interference.proof = [](Proof& proof) {
    proof.mac[5] ^= std::byte{1};
    return true;
  };
  want_both();
  settle();
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kAUTH_FAILED);
  EXPECT_TRUE(b->refusals.empty());
  EXPECT_EQ(b->count(Counter::kpeers_refused), 1u);
  a->interference = {};
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  settle();
  EXPECT_EQ(b->links_made[1], 1);
}

TEST_F(MeshAgentTest, AnEndpointChangedOnTheWayIsRefused) {
  start();
  a->interference.proof = [](Proof& proof) {
    proof.endpoint.address = {std::byte{66}};
    return true;
  };
  want_both();
  settle();
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kAUTH_FAILED);
  EXPECT_TRUE(history.empty());
}

TEST_F(MeshAgentTest, AnAnswerWithoutTheKeyIsRefused) {
  start();
  std::unique_ptr<MeshSide> impostor =
      std::make_unique<MeshSide>(wire::InstanceId{2, 2}, "b", &history);
  want_both();
  // Everything but the key: the impostor greets as b would, then makes up a acceptance.
  a->network["127.0.0.1:b"] = impostor.get();
  EXPECT_TRUE(impostor->agent->want(impostor->wish(*a, 'x')));
  a->interference.greeting = [&](Greeting& greeting, Challenge&) {
    wire::JobKey key;
    key.fill(std::byte('x'));
    greeting.key_id = LinkKey("", key).id();
    return true;
  };
  for (int i = 0; i < 10; ++i) {
    a->agent->do_work(now);
    impostor->agent->do_work(now);
  }
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kAUTH_FAILED);
  EXPECT_TRUE(history.empty());
}

TEST_F(MeshAgentTest, DifferentTransportSettingsAreNamedOnBothSides) {
  start();
  b->settings = "loopback/2";
  want_both();
  settle();
  for (MeshSide* side : {a.get(), b.get()}) {
    EXPECT_EQ(side->refusals[1].code(), StatusCode::kMISMATCH);
    EXPECT_NE(side->refusals[1].message().find("loopback/1"), std::string::npos);
    EXPECT_NE(side->refusals[1].message().find("loopback/2"), std::string::npos);
  }
}

TEST_F(MeshAgentTest, LostAnswersAreAskedForAgainAndTheLinkIsMadeOnce) {
  start();
  int lost_proofs = 0, lost_arrivals = 0;
  a->interference.proof = [&](Proof&) { return ++lost_proofs > 3; };
  a->interference.arrival = [&](Arrival&) { return ++lost_arrivals > 3; };
  want_both();
  pass(5 * kSecond);
  EXPECT_TRUE(linked());
  EXPECT_EQ(history, (std::vector<std::string>{"b connects", "a connects", "a up", "b up"}));
  EXPECT_EQ(lost_arrivals, 4);
}

TEST_F(MeshAgentTest, AReplayedProofMakesNoSecondLink) {
  start();
  Proof recorded;
  a->interference.proof = [&](Proof& proof) {
    recorded = proof;
    return true;
  };
  want_both();
  settle();
  ASSERT_TRUE(linked());
  history.clear();
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  b->agent->proved("127.0.0.1", recorded, [](const Acceptance&) {});
  settle();
  pass(15 * kSecond);
  b->agent->proved("127.0.0.1", recorded, [](const Acceptance&) {});
  settle();
  EXPECT_TRUE(history.empty());
}

TEST_F(MeshAgentTest, AnArrivalThatIsNotProvenBringsNothingUp) {
  start();
  a->interference.arrival = [](Arrival& arrival) {
    arrival.mac[0] ^= std::byte{1};
    return true;
  };
  want_both();
  pass(kSecond);
  EXPECT_EQ(history, (std::vector<std::string>{"b connects", "a connects", "a up"}));
}

TEST_F(MeshAgentTest, AnUnreachableDaemonIsAnErrorAfterAWhile) {
  start();
  a->network.clear();
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  pass(9 * kSecond);
  EXPECT_TRUE(a->refusals.empty());
  pass(2 * kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kUNAVAILABLE);
  const std::string told = a->refusals[1].message();
  EXPECT_NE(told.find("cannot be reached for 10 s; its mesh.listen"), std::string::npos) << told;
}

TEST_F(MeshAgentTest, WhatAConnectionMetIsForTheLogAlone) {
  start();
  a->network.clear();
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  pass(11 * kSecond);
  EXPECT_EQ(a->refusals[1].message().find(": lost"), std::string::npos) << a->refusals[1].message();
  ASSERT_FALSE(a->events.texts.empty());
  EXPECT_NE(a->events.texts.back().find("cannot be reached for 10 s: lost"), std::string::npos);
}

TEST_F(MeshAgentTest, TriesTheNextAddress) {
  start();
  LinkWish wish = a->wish(*b);
  wish.request.mesh_address = "127.0.0.1:nobody,127.0.0.1:b";
  EXPECT_TRUE(a->agent->want(std::move(wish)));
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  pass(kSecond);
  EXPECT_TRUE(linked());
}

TEST_F(MeshAgentTest, ARestartedDaemonIsNotTakenForItsPredecessor) {
  start();
  LinkWish wish = a->wish(*b);
  wish.request.instance = {3, 3};
  EXPECT_TRUE(a->agent->want(std::move(wish)));
  pass(11 * kSecond);
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kUNAVAILABLE);
  EXPECT_NE(a->refusals[1].message().find("restarted"), std::string::npos);
}

TEST_F(MeshAgentTest, RefusesHostsOutsideTheTrustedNetworks) {
  start();
  a->interference.host = "203.0.113.9";
  want_both();
  settle();
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kPERMISSION_DENIED);
  EXPECT_NE(a->refusals[1].message().find("mesh.trusted_networks"), std::string::npos);
  EXPECT_EQ(b->count(Counter::kpeers_refused), 1u);
}

TEST_F(MeshAgentTest, WithoutAKeyOnlyLoopbackAddressesAreLinked) {
  start([](MeshOptions& options) { options.trusted = NetworkList::parse({"0.0.0.0/0"}).value(); });
  want_both('\0', '\0');
  settle();
  EXPECT_TRUE(linked());
  LinkWish far = a->wish(*b, '\0');
  far.request.mesh_address = "10.0.0.2:7000";
  EXPECT_TRUE(a->agent->want(std::move(far)));
  settle();
  EXPECT_EQ(a->refusals[2].code(), StatusCode::kAUTH_FAILED);
  a->interference.host = "10.0.0.1";
  want_both('\0', '\0');
  settle();
  EXPECT_EQ(a->refusals[3].code(), StatusCode::kAUTH_FAILED);
}

TEST_F(MeshAgentTest, ADaemonWithoutAMeshAddressIsNamed) {
  start();
  LinkWish wish = a->wish(*b);
  wish.request.mesh_address.clear();
  EXPECT_TRUE(a->agent->want(std::move(wish)));
  settle();
  EXPECT_EQ(a->refusals[1].code(), StatusCode::kUNAVAILABLE);
  EXPECT_NE(a->refusals[1].message().find(short_name(b->options.instance)), std::string::npos)
      << a->refusals[1].message();
}

TEST_F(MeshAgentTest, AWithdrawnWishIsNeverAnswered) {
  start();
  EXPECT_TRUE(a->agent->want(a->wish(*b)));
  settle();
  a->agent->unwant(1);
  EXPECT_TRUE(b->agent->want(b->wish(*a)));
  pass(5 * kSecond);
  EXPECT_TRUE(a->refusals.empty());
  EXPECT_TRUE(history.empty());
}

TEST_F(MeshAgentTest, ATransportThatCannotConnectIsNamedOnBothSides) {
  start();
  b->connect_status = internal_error("no lanes");
  want_both();
  settle();
  EXPECT_EQ(b->refusals[1], internal_error("no lanes"));
  EXPECT_NE(a->refusals[1].message().find("no lanes"), std::string::npos);
}

TEST_F(MeshAgentTest, ADialersTransportThatCannotConnectIsNamedOnBothSides) {
  for (const std::string& why : {std::string("no lanes"), std::string(5'000, 'x')}) {
    start();
    a->connect_status = internal_error(why);
    want_both();
    settle();
    EXPECT_EQ(a->refusals[1], internal_error(why));
    EXPECT_EQ(b->refusals[1].code(), StatusCode::kINTERNAL);
    EXPECT_NE(b->refusals[1].message().find("cannot connect for gradients: " + why.substr(0, 1024)),
              std::string::npos)
        << b->refusals[1].message();
  }
}

TEST_F(MeshAgentTest, AFailureThatIsNotProvenEndsNothing) {
  start();
  a->interference.arrival = [](Arrival& arrival) {
    arrival.failure = internal_error("no lanes");
    return true;
  };
  want_both();
  settle();
  EXPECT_TRUE(b->refusals.empty());
}

TEST_F(MeshAgentTest, ADialersTransportThatNeverConnectsIsHintedAtByTheOtherSide) {
  start();
  a->interference.arrival = [](Arrival& arrival) {
    arrival.mac = {};
    return true;
  };
  a->connect_status = internal_error("no lanes");
  want_both();
  settle();
  EXPECT_TRUE(b->refusals.empty());
  pass(b->options.deadline_ns + kSecond);
  EXPECT_EQ(b->refusals[1].code(), StatusCode::kTIMED_OUT);
  EXPECT_NE(b->refusals[1].message().find("has introduced itself, but not connected"),
            std::string::npos)
      << b->refusals[1].message();
}

TEST_F(MeshAgentTest, AFloodOfGreetingsIsBoundedAndLeavesOtherHostsAReserve) {
  start();
  want_both();
  b->agent->do_work(now);  // b waits; a has not dialed yet
  std::map<std::string, int> challenged;
  Greeting greeting{.job = "train", .uid = 1000, .from = {1, 1}, .to = {2, 2}};
  greeting.key_id = LinkKey("", b->wish(*a).request.job_key).id();
  for (const std::string host : {"127.0.0.1", "127.0.0.2"}) {
    for (int i = 0; i < 2000; ++i) {
      b->agent->greeted(host, greeting, [&](const Challenge& challenge) {
        challenged[host] += challenge.verdict.kind == Verdict::Kind::kGo;
      });
      b->agent->do_work(now);
    }
  }
  EXPECT_EQ(challenged["127.0.0.1"], 438);  // of 500 less an eighth
  EXPECT_EQ(challenged["127.0.0.2"], 15);   // a 32nd
  pass(2 * kSecond);
  EXPECT_TRUE(linked());
}

TEST_F(MeshAgentTest, IntroductionsThatHaveEndedKeepNoOthersWaiting) {
  constexpr LinkSerial kLinks = 5'000;
  start([](MeshOptions& options) { options.own_greetings_per_second = 500; });
  for (LinkSerial i = 0; i < kLinks; ++i) {
    want_both();
    pass(12 * kMillisecond);
  }
  EXPECT_EQ(a->links_made[kLinks], 1);
  EXPECT_EQ(b->links_made[kLinks], 1);
  EXPECT_EQ(b->links_made.size(), kLinks);
}

TEST_F(MeshAgentTest, ManyLinksOfOneUserKeepNoOtherUsersWaiting) {
  constexpr int kMany = 1'000;
  start();
  for (int i = 0; i < kMany; ++i) EXPECT_TRUE(a->agent->want(a->wish(*b, 'k', "of nobody there")));
  pass(5 * kSecond);
  LinkWish at_a = a->wish(*b), at_b = b->wish(*a);
  at_a.request.uid = at_b.request.uid = 1001;
  const LinkSerial serial = at_a.serial;
  EXPECT_TRUE(a->agent->want(std::move(at_a)));
  EXPECT_TRUE(b->agent->want(std::move(at_b)));
  const int before = a->greetings_sent;
  pass(200 * kMillisecond);
  EXPECT_EQ(a->links_made[serial], 1);
  pass(10 * kSecond);
  EXPECT_LE(a->greetings_sent - before, 12 * 200);
}

TEST_F(MeshAgentTest, LooksWhereItListensOnceForAllLinksOfARound) {
  int looked = 0;
  start([&](MeshOptions& options) {
    options.look_at_own = [&looked] {
      ++looked;
      return [](const std::string&) { return false; };
    };
  });
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(a->agent->want(a->wish(*b)));
  a->agent->do_work(now);
  EXPECT_EQ(looked, 1);
}

}  // namespace
}  // namespace cgx::daemon
