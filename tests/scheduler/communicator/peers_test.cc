#include "scheduler/communicator/peers.h"

#include <gtest/gtest.h>

#include <map>

#include "proto/wire/bytes.h"

namespace cgx::scheduler {
namespace {

Members three_machines(uint32_t machine) {
  Members members;
  members.job = "job";
  members.name = "world";
  members.machine = machine;
  members.machine_of_rank = {0, 1, 1, 2};
  members.lowest_rank = {0, 1, 3};
  members.addresses = {"a", "b", "c"};
  members.devices.resize(3);
  return members;
}

struct PeersTest : ::testing::Test {
  Members members = three_machines(0);
  Peers peers{members};

  std::map<uint32_t, uint64_t> carried_ns;  // of links, beside what `peers` was told

  std::optional<uint32_t> silent(uint64_t now_ns) {
    return peers.silent(now_ns, 100, [this](uint32_t machine) { return carried_ns[machine]; });
  }
  void connect() {
    for (const uint32_t machine : {1u, 2u}) peers.link_up(machine, {}, 100);
  }
};

TEST_F(PeersTest, AreUpWhenEveryOtherMachineIs) {
  peers.link_up(1, {}, 100);
  EXPECT_FALSE(peers.all_up());
  peers.link_up(2, {}, 100);
  EXPECT_TRUE(peers.all_up());
  peers.link_down(1);
  EXPECT_FALSE(peers.all_up());
}

TEST_F(PeersTest, AreSilentWhenNotHeardForTheLimit) {
  connect();
  peers.heard(1, 10, 150);
  EXPECT_EQ(silent(199), std::nullopt);
  EXPECT_EQ(silent(200), 2u);
  peers.heard(2, 10, 200);
  EXPECT_EQ(silent(250), 1u);
}

// Whatever it carries: what they say may wait behind that.
TEST_F(PeersTest, AreNotSilentWhileTheirLinkCarriesOtherThings) {
  connect();
  peers.heard(1, 10, 240);
  carried_ns[2] = 150;
  EXPECT_EQ(silent(249), std::nullopt);
  EXPECT_EQ(silent(250), 2u);
}

TEST_F(PeersTest, AreSilentInTheEndWhateverTheirLinkCarries) {
  connect();
  peers.heard(1, 10, 880);
  carried_ns[2] = 890;
  EXPECT_EQ(silent(899), std::nullopt);
  EXPECT_EQ(silent(900), 2u);
}

TEST_F(PeersTest, AreNotMissedWithoutALinkOrAfterTheirGoodbye) {
  connect();
  peers.link_down(1);
  peers.depart(2);
  EXPECT_EQ(silent(1'000'000), std::nullopt);
}

TEST_F(PeersTest, AreForgivenWhatThisDaemonSleptThrough) {
  connect();
  peers.forgive_silence(1000);
  EXPECT_EQ(silent(1099), std::nullopt);
  EXPECT_EQ(peers.last_data_ns(), 1000u);
}

TEST_F(PeersTest, KeepTheHighestMarksOfATermAndForgetWhatWasStarted) {
  wire::FrameHeader header;
  header.source = 1;
  header.started_step_end = 8;
  header.complete_step_end = 7;
  header.complete_call_end = 3;
  peers.take_marks(header);
  header.started_step_end = header.complete_step_end = header.complete_call_end = 1;
  peers.take_marks(header);
  EXPECT_EQ(peers[1].started_end, 8u);
  EXPECT_EQ(peers[1].completed_end, 7u);
  EXPECT_EQ(peers[1].calls_end, 3u);
  peers.begin_term(7, 500);
  EXPECT_EQ(peers[1].started_end, 7u);
  EXPECT_EQ(peers[1].completed_end, 7u);
  EXPECT_EQ(peers[2].last_data_ns, 500u);
}

// Both ends of a link, with clocks that have nothing to do with each other.
TEST_F(PeersTest, MeasureTheWayByTheEchoOfTheirHeartbeats) {
  const Members others = three_machines(1);
  Peers theirs(others);
  const Peers::Beat nothing;
  theirs.take_beat(0, 1, peers.beat_for(1, nothing, 1'000), 70'000);
  EXPECT_EQ(theirs[0].rtt_ns, 0u) << "nothing was echoed yet";
  peers.take_beat(1, 1, theirs.beat_for(0, nothing, 70'500), 1'800);
  EXPECT_EQ(peers[1].rtt_ns, 300u) << "800 since it was sent, 500 of them held there";
}

// An echo on a busy link waits behind gradients; how long the way is, the quickest of some says.
TEST_F(PeersTest, KnowTheWayByTheQuickestOfTheLastEchoes) {
  const Members others = three_machines(1);
  Peers theirs(others);
  const Peers::Beat nothing;
  EXPECT_EQ(peers[1].least_rtt_ns(), 0u) << "none has come";
  uint64_t now = 1'000'000;
  const auto echo = [&](uint64_t rtt_ns) {
    theirs.take_beat(0, 1, peers.beat_for(1, nothing, now), 70'000);
    now += rtt_ns;
    peers.take_beat(1, 1, theirs.beat_for(0, nothing, 70'000), now);
  };
  for (const uint64_t rtt_ns : {40'000u, 300u, 33'000u}) echo(rtt_ns);
  EXPECT_EQ(peers[1].rtt_ns, 33'000u);
  EXPECT_EQ(peers[1].least_rtt_ns(), 300u);
  for (int i = 0; i < 16; ++i) echo(2'000);
  EXPECT_EQ(peers[1].least_rtt_ns(), 2'000u) << "another way is known after some more";
}

std::vector<uint32_t> all_missing(const Peers& peers) {
  std::vector<uint32_t> ranks;
  for (const bool of_step : {true, false}) peers.add_missing(of_step, 0, ranks);
  peers.add_not_committing(ranks);
  return ranks;
}

// They would be kept and sorted, and others be blamed.
TEST_F(PeersTest, BelieveNobodyWhoNamesRanksThatAreNotItsOwn) {
  const Members others = three_machines(1);
  Peers theirs(others);
  for (const std::vector<uint32_t>& ranks :
       {std::vector<uint32_t>{3}, {4}, {1, 2, 1}, std::vector<uint32_t>(1000, 1)}) {
    for (auto list :
         {&Peers::Beat::missing_step, &Peers::Beat::missing_call, &Peers::Beat::missing_commit}) {
      Peers::Beat beat;
      beat.*list = ranks;
      EXPECT_FALSE(peers.take_beat(1, 1, theirs.beat_for(0, beat, 1), 10).sound);
      EXPECT_TRUE(all_missing(peers).empty());
    }
  }
  const Peers::Beat own{.missing_step = {1, 2}, .missing_call = {2}, .missing_commit = {1}};
  EXPECT_TRUE(peers.take_beat(1, 1, theirs.beat_for(0, own, 1), 10).sound);
  EXPECT_EQ(all_missing(peers), (std::vector<uint32_t>{1, 2, 2, 1}));
}

// Who joins repeats it until it hears, so nobody is forgotten.
TEST_F(PeersTest, AreAnsweredAsOftenAsTheyJoinAndNoMore) {
  EXPECT_TRUE(peers.may_answer_join(1, 100));
  EXPECT_FALSE(peers.may_answer_join(1, 99 + kJoinRetryNs));
  EXPECT_TRUE(peers.may_answer_join(2, 100));
  EXPECT_TRUE(peers.may_answer_join(1, 100 + kJoinRetryNs));
}

TEST_F(PeersTest, DoNotBelieveAnEchoOfTheFuture) {
  wire::Writer writer;
  for (const uint64_t value : {0ull, 0ull, 1ull, 5'000ull, 0ull}) writer.put<uint64_t>(value);
  for (int word = 0; word < 4; ++word) writer.put<uint32_t>(0);
  peers.take_beat(1, 1, writer.take(), 4'000);
  EXPECT_EQ(peers[1].rtt_ns, 0u);
}

TEST_F(PeersTest, TellWhoIsMissingElsewhere) {
  const Members others = three_machines(1);
  Peers theirs(others);
  const Peers::Beat beat{5, 2, {1, 2}, {2}, {1}};
  peers.take_beat(1, theirs.next_beat(), theirs.beat_for(0, beat, 1), 10);
  EXPECT_EQ(peers[1].progress, 1u);
  const auto missing = [&](bool of_step, uint64_t number) {
    std::vector<uint32_t> ranks;
    peers.add_missing(of_step, number, ranks);
    return ranks;
  };
  EXPECT_EQ(missing(true, 5), (std::vector<uint32_t>{1, 2}));
  EXPECT_TRUE(missing(true, 4).empty()) << "it is beyond that step";
  EXPECT_EQ(missing(false, 2), std::vector<uint32_t>{2});
  std::vector<uint32_t> committing;
  peers.add_not_committing(committing);
  EXPECT_EQ(committing, std::vector<uint32_t>{1});
}

TEST_F(PeersTest, TellWhoWaitsForAThird) {
  const Members others = three_machines(1);
  Peers theirs(others);
  const auto hear = [&](uint32_t awaits) {
    return peers.take_beat(1, 1, theirs.beat_for(0, {.awaits = awaits}, 1), 10).sound;
  };
  EXPECT_FALSE(peers.waits_elsewhere(1)) << "it has said nothing";
  EXPECT_TRUE(hear(2));
  EXPECT_TRUE(peers.waits_elsewhere(1));
  for (const uint32_t awaits : {0u, 1u, kNobody}) {
    EXPECT_TRUE(hear(awaits));
    EXPECT_FALSE(peers.waits_elsewhere(1)) << awaits;
  }
  hear(2);
  EXPECT_FALSE(hear(3)) << "there is no such machine";
  EXPECT_FALSE(peers.waits_elsewhere(1));
  hear(2);
  peers.begin_term(0, 20);
  EXPECT_FALSE(peers.waits_elsewhere(1)) << "what was said of the term before is void";
}

TEST_F(PeersTest, MeasureWhatAPaddedHeartbeatTakesBesideTheWay) {
  const Members others = three_machines(1);
  Peers theirs(others);
  const Peers::Beat nothing;
  const std::vector<std::byte> padded = peers.beat_for(1, nothing, 1'000, 5'000);
  EXPECT_EQ(padded.size(), 5'000u);
  EXPECT_TRUE(theirs.take_beat(0, 1, padded, 70'000).padded);
  const Peers::News answer = peers.take_beat(1, 1, theirs.beat_for(0, nothing, 70'000), 9'000);
  EXPECT_FALSE(answer.padded);
  EXPECT_EQ(answer.padded_rtt_ns, 8'000u);
  EXPECT_EQ(peers[1].rtt_ns, 0u) << "of heartbeats that carry nothing";
}

TEST_F(PeersTest, MeasureSeveralPaddedHeartbeatsByTheAnswerToTheLast) {
  const Members others = three_machines(1);
  Peers theirs(others);
  const Peers::Beat nothing;
  const auto first = peers.beat_for(1, nothing, 1'000, 5'000);
  const auto last = peers.beat_for(1, nothing, 1'100, 5'000);
  theirs.take_beat(0, 1, first, 70'000);
  const auto answer = theirs.beat_for(0, nothing, 70'000);
  EXPECT_EQ(peers.take_beat(1, 1, answer, 5'000).padded_rtt_ns, 0u);
  EXPECT_EQ(peers[1].rtt_ns, 0u) << "it waited behind zeros";
  theirs.take_beat(0, 2, last, 72'000);
  EXPECT_EQ(peers.take_beat(1, 2, theirs.beat_for(0, nothing, 72'000), 9'100).padded_rtt_ns,
            8'000u);
  const auto one = peers.beat_for(1, nothing, 9'200, 5'000);
  const auto two = peers.beat_for(1, nothing, 9'200, 5'000);  // the clock stands still
  EXPECT_NE(one, two) << "an answer tells which it was to";
  theirs.take_beat(0, 3, peers.beat_for(1, nothing, 10'000), 80'000);
  peers.take_beat(1, 3, theirs.beat_for(0, nothing, 80'000), 10'400);
  EXPECT_EQ(peers[1].rtt_ns, 400u);
}

TEST_F(PeersTest, ThatSendHalfAHeartbeatAreTakenAsFarAsItGoes) {
  const Members others = three_machines(1);
  std::vector<std::byte> beat = Peers(others).beat_for(0, {5, 2, {1, 2}, {}, {}}, 1);
  beat.resize(beat.size() - 6);
  peers.take_beat(1, 1, beat, 10);
  EXPECT_EQ(peers[1].step, 5u);
}

TEST_F(PeersTest, AreShownWithoutThisMachine) {
  connect();
  peers.sent(1, 50);
  peers.heard(1, 30, 200);
  peers.link_down(2);
  std::vector<PeerSnapshot> shown;
  peers.show(260, shown);
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_EQ(shown[0].name, "world/1");
  EXPECT_EQ(shown[0].state, "up");
  EXPECT_EQ(shown[0].heartbeat_age_ns, 60u);
  EXPECT_EQ(shown[0].bytes_sent, 50u);
  EXPECT_EQ(shown[0].frames_received, 1u);
  EXPECT_EQ(shown[1].state, "lost");
}

}  // namespace
}  // namespace cgx::scheduler
