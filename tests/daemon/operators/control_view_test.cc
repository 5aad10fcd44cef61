#include "daemon/operators/control_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/operators/fake_operator_port.h"

namespace cgx::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Caller kOperator{.name = "uid 0", .uid = 0, .is_operator = true};
const Caller kOwner{.name = "uid 1000", .uid = 1000};
const Caller kStranger{.name = "uid 3000", .uid = 3000};
const Caller kCertificate{.name = "certificate x"};

v1::Target target(const std::string& job, const std::string& communicator = "") {
  v1::Target wanted;
  wanted.set_job(job);
  wanted.set_communicator(communicator);
  return wanted;
}

TEST(Rights, OperatorsSeeEverythingOwnersTheirs) {
  const Snapshot snapshot = two_users();
  EXPECT_EQ(jobs_of(snapshot, {}, kOperator)->communicators_size(), 3);
  EXPECT_EQ(jobs_of(snapshot, {}, kOperator)->sessions_size(), 2);
  const v1::JobList own = *jobs_of(snapshot, {}, kOwner);
  EXPECT_EQ(own.communicators_size(), 2);
  EXPECT_EQ(own.sessions_size(), 1);
  EXPECT_EQ(own.hidden(), 1u);
  EXPECT_EQ(peers_of(snapshot, {}, kOwner)->peers_size(), 1);
}

TEST(DataThread, IsShownWithItsLongestRounds) {
  const v1::DataThread shown =
      status_of(two_users(), {"0.1.0", "node1", "scalar"}, kStranger).data_thread();
  EXPECT_EQ(shown.rounds(), 12u);
  EXPECT_EQ(shown.longest().cpu_ns(), 9'000'000u);
  EXPECT_EQ(shown.longest().wall_ns(), 9'500'000u);
  EXPECT_EQ(shown.longest().what(), "a commit");
  EXPECT_EQ(shown.longest_lately().what(), "gradients and frames");
}

TEST(DataThread, ThatHadNoLongRoundShowsNone) {
  Snapshot snapshot = two_users();
  snapshot.duty.longest_lately = {};
  const v1::DaemonStatus status = status_of(snapshot, {"0.1.0", "node1", "scalar"}, kStranger);
  EXPECT_FALSE(status.data_thread().has_longest_lately());
}

TEST(Rights, OthersSeeOnlyTotals) {
  const Snapshot snapshot = two_users();
  for (const Caller& caller : {kStranger, kCertificate}) {
    const v1::DaemonStatus status = status_of(snapshot, {"0.1.0", "node1", "scalar"}, caller);
    EXPECT_EQ(status.role(), "other");
    EXPECT_EQ(status.sessions(), 2u);
    EXPECT_EQ(status.gradient_bytes(), 8u << 20);
    EXPECT_TRUE(status.warnings().empty());
    EXPECT_EQ(jobs_of(snapshot, {}, caller)->communicators_size(), 0);
    EXPECT_EQ(jobs_of(snapshot, {}, caller)->hidden(), 3u);
    EXPECT_EQ(peers_of(snapshot, {}, caller)->peers_size(), 0);
  }
}

TEST(Rights, AForeignJobIsAsAbsentAsAMissingOne) {
  const Snapshot snapshot = two_users();
  const Status foreign = select(snapshot, target("bert"), kOwner).status();
  const Status missing = select(snapshot, target("gone"), kOwner).status();
  EXPECT_EQ(foreign.code(), StatusCode::kNOT_FOUND);
  EXPECT_EQ(foreign.message(),
            "no communicator bert/*; there are resnet/dp of uid 1000, resnet/tp of uid 1000");
  EXPECT_EQ(missing.message(),
            "no communicator gone/*; there are resnet/dp of uid 1000, resnet/tp of uid 1000");
}

TEST(Select, TakesTheOnlyOneThereIs) {
  Snapshot snapshot = two_users();
  EXPECT_EQ((*select(snapshot, target("bert"), kOperator))->id, 3u);
  EXPECT_EQ((*select(snapshot, target("resnet", "tp"), kOwner))->id, 2u);
  snapshot.communicators.resize(1);
  EXPECT_EQ((*select(snapshot, {}, kOwner))->id, 1u);
}

TEST(Select, NamesTheChoices) {
  const Snapshot snapshot = two_users();
  const Status status = select(snapshot, target("resnet"), kOperator).status();
  EXPECT_EQ(status.code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_EQ(status.message(),
            "name one communicator, with --job, --communicator or --uid; there are resnet/dp of "
            "uid 1000, resnet/tp of uid 1000");
}

TEST(Select, SaysWhatToDoWhereNoJobTrains) {
  EXPECT_EQ(select(Snapshot(), {}, kOperator).status().message(),
            "no job trains on this machine now; start one, or ask on a machine where one trains");
  const std::string of_stranger = select(two_users(), {}, kStranger).status().message();
  EXPECT_THAT(of_stranger, HasSubstr("no job of yours trains on this machine now"));
  EXPECT_THAT(of_stranger, HasSubstr("control.operators_group"));
  EXPECT_EQ(select(two_users(), target("bert"), kStranger).status().message(),
            "no communicator bert/*: " + of_stranger);
}

TEST(Select, TellsTwoUsersJobsOfOneNameApart) {
  Snapshot snapshot = two_users();
  snapshot.communicators[2].job = "resnet";
  v1::Target wanted = target("resnet", "dp");
  EXPECT_FALSE(select(snapshot, wanted, kOperator).ok());
  wanted.set_uid(2000);
  EXPECT_EQ((*select(snapshot, wanted, kOperator))->id, 3u);
  EXPECT_EQ((*select(snapshot, target("resnet", "dp"), kOwner))->id, 1u);
}

TEST(View, WarnsAboutLateRanksByName) {
  const v1::DaemonStatus status = status_of(two_users(), {}, kOwner);
  EXPECT_THAT(status.warnings(), ElementsAre("resnet/dp: rank 3 on machine 1 is 12 s late"));
  EXPECT_EQ(status.role(), "owner");
}

TEST(View, CarriesEveryCounterWithItsHelp) {
  const v1::CounterList list = counters_of(two_users());
  EXPECT_EQ(static_cast<size_t>(list.counters_size()), scheduler::Counters().size());
  EXPECT_EQ(list.counters(0).name(), "operations_started");
  for (const v1::Counter& counter : list.counters()) EXPECT_FALSE(counter.help().empty());
}

TEST(View, ShowsTheCodecOfRacksWhereThereIsOne) {
  Snapshot snapshot = two_users();
  scheduler::CommunicatorSnapshot& one = snapshot.communicators[0];
  EXPECT_EQ(tensors_of(one).tensors(0).rack_codec(), "");
  one.tensors[0].rack_codec = CodecSpec{.codec = 0, .bucket = 512};
  one.groups[0].rack_encoded_bytes = 4096;
  EXPECT_EQ(tensors_of(one).tensors(0).rack_codec(), "fp32");
  const v1::JobList jobs = *jobs_of(snapshot, target("resnet", "dp"), kOwner);
  EXPECT_EQ(jobs.communicators(0).groups(0).rack_encoded_bytes(), 4096u);
}

TEST(View, ShowsPlanAndTensors) {
  const Snapshot snapshot = two_users();
  const v1::JobList jobs = *jobs_of(snapshot, target("resnet", "dp"), kOwner);
  ASSERT_EQ(jobs.communicators_size(), 1);
  const v1::Communicator& one = jobs.communicators(0);
  EXPECT_EQ(one.id(), "0000000000000001");
  EXPECT_EQ(one.switches(1).plan_hash(), "0000000000000abc");
  EXPECT_EQ(one.switches(1).who(), "policy");
  EXPECT_EQ(one.switches(1).why(), "alice: ?[2Jless");
  EXPECT_EQ(one.switches(0).who(), "") << "nobody has said";
  EXPECT_EQ(one.codec(), "maxmin:4,bucket=512,stochastic");
  EXPECT_EQ(one.groups(0).encoded_bytes(), 1u << 19);
  EXPECT_EQ(one.rank_list(1).late_ns(), 12'300'000'000u);

  const v1::TensorList tensors = tensors_of(snapshot.communicators[0]);
  ASSERT_EQ(tensors.tensors_size(), 1);
  EXPECT_EQ(tensors.tensors(0).dtype(), "fp32");
  EXPECT_THAT(tensors.tensors(0).shape(), ElementsAre(64, 64));
}

TEST(View, ShowsHowATensorTravelsAndWhatIsLost) {
  Snapshot snapshot = two_users();
  scheduler::CommunicatorSnapshot& one = snapshot.communicators[0];
  one.groups[0].collective = "allgather";
  EXPECT_FALSE(tensors_of(one).tensors(0).has_sent_share()) << "nothing was measured";
  one.tensors[0].intended_sq = 8.0;
  one.tensors[0].sent_sq = 6.0;
  EXPECT_EQ(tensors_of(one).tensors(0).collective(), "allgather");
  EXPECT_EQ(tensors_of(one).tensors(0).sent_share(), 0.75);
  EXPECT_EQ(
      jobs_of(snapshot, target("resnet", "dp"), kOwner)->communicators(0).groups(0).collective(),
      "allgather");
}

TEST(View, KeepsHostileNamesFromBreakingTheAnswer) {
  Snapshot snapshot = two_users();
  snapshot.communicators[0].job = "evil\xff\n";
  const v1::JobList jobs = *jobs_of(snapshot, target("evil??"), kOwner);
  EXPECT_EQ(jobs.communicators(0).job(), "evil??");
}

TEST(View, TellsHowACodecIsWritten) {
  const v1::CodecList list = codec_list();
  const auto codec = std::find_if(list.codecs().begin(), list.codecs().end(),
                                  [](const v1::Codec& one) { return one.name() == "maxmin"; });
  ASSERT_NE(codec, list.codecs().end());
  EXPECT_EQ(codec->strength() + " " + codec->strength_range(), "bits 1 to 8");
  EXPECT_THAT(codec->options(), ::testing::ElementsAre("bucket=N", "stochastic", "feedback"));
  EXPECT_EQ(codec->examples(0), "maxmin:4,bucket=512");
  EXPECT_THAT(codec->error(), HasSubstr("half a step"));
}

TEST(View, ListsTheCodecs) {
  std::vector<std::string> names;
  const v1::CodecList list = codec_list();
  for (const v1::Codec& codec : list.codecs()) names.push_back(codec.name());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"fp32", "maxmin"}));
}

TEST(View, TellsHowTheLaneIsTuned) {
  DaemonFacts facts{"0.1.0", "node1", "avx512"};
  facts.tuning.encode = {4096, true};
  facts.tuning.decode = {.stream = true};
  facts.tuning_ns = 9'000'000;
  const v1::Tuning tuning = status_of(two_users(), facts, kStranger).tuning();
  EXPECT_EQ(tuning.measured_ns(), 9'000'000u);
  ASSERT_EQ(tuning.operations_size(), static_cast<int>(std::size(kernels::kTunedOperations)));
  EXPECT_EQ(tuning.operations(0).name(), "encode");
  EXPECT_EQ(tuning.operations(0).ahead_bytes(), 4096u);
  EXPECT_TRUE(tuning.operations(0).second_level());
  EXPECT_FALSE(tuning.operations(0).streams());
  EXPECT_EQ(tuning.operations(1).name(), "decode");
  EXPECT_TRUE(tuning.operations(1).streams());
}

}  // namespace
}  // namespace cgx::daemon
