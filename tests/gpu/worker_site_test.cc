// cgxd's site of a real cgxd-gpu, whose driver the environment chooses: jobs of several operations
// at once, for as long as jobs go on.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "proto/wire/frame.h"
#include "tests/gpu/worker_case.h"

namespace cgx::daemon::gpu {
namespace {

using namespace cgx::device;
using namespace cgx::scheduler;

constexpr uint64_t kElements = 64 << 10, kBytes = kElements * sizeof(float);
constexpr uint32_t kNotFinite = kStreams;  // a tensor
constexpr uint64_t kSecond = 1'000'000'000;

class WorkerSites : public SitesTest {
 protected:
  void SetUp() override {
    SitesTest::SetUp();
    if (!IsSkipped()) fill();
  }

  // A tensor for each stream, positive throughout, and one with a value that is not finite, the
  // same ones on the host and on the device.
  void fill() {
    memory_.resize(kBegin + (kStreams + 1) * kBytes);
    std::mt19937 random(7);
    std::uniform_real_distribution<float> positive(1, 2);
    for (uint64_t i = 0; i < (kStreams + 1) * kElements; ++i) {
      const bool finite = i != kNotFinite * kElements + kElements - 5;
      const float x = finite ? positive(random) : std::numeric_limits<float>::infinity();
      std::memcpy(memory_.data() + kBegin + i * sizeof(x), &x, sizeof(x));
    }
    share();
  }

  // With one tensor.
  std::unique_ptr<Play> begin(Site& site, SlabStore& slabs, uint32_t tensor, uint32_t word = 0,
                              uint32_t machines = 2) {
    TensorTable table{{.name = "t", .dtype = DType::kF32, .elements = kElements}};
    Group group;
    group.segments.push_back({0, kernels::parse_codec_spec("maxmin:4").value()});
    auto play = play_of(std::move(table), std::move(group), machines);
    Place place{&site == here_.get() ? host_arena_ : device_arena_, kBegin + tensor * kBytes};
    LocalSegment& segment = play->setup.segments.emplace_back();
    segment.outputs.push_back(place);
    place.word = word;
    place.word_value = word == 0 ? 0 : 1;
    segment.inputs.push_back(place);
    play->work = site.begin(play->setup);
    play->into = slabs.take(in_use_, false);
    return play;
  }
  Ticket ask_encode(Play& play) {
    const SiteJob job{.kind = SiteJobKind::kEncode,
                      .part = play.layout.shard(1).first,
                      .presence = &play.all,
                      .into = play.into};
    return ask(play, job);
  }
  Ticket ask_local_reduce(Play& play) {
    return ask(play, {.kind = SiteJobKind::kLocalReduce,
                      .part = play.layout.shard(1).first,
                      .presence = &play.all});
  }
  Ticket ask_hash(Play& play) {
    return ask(play, {.kind = SiteJobKind::kHash, .presence = &play.all, .count = kBytes});
  }
  Ticket ask(Play& play, const SiteJob& job) {
    if (auto answer = play.work->ask(++tickets_, job)) answers_[tickets_] = *answer;
    return tickets_;
  }

  static void give_residual(Play& play, SiteResidual* residual, uint32_t confirmed, float scale) {
    LocalSegment& segment = play.setup.segments.front();
    segment.residual = residual;
    segment.confirmed = confirmed;
    segment.residual_scale = scale;
  }
  // What was asked for is there, and the slab is given back.
  std::vector<std::byte> take_codes(const Play& play, Ticket asked, SlabStore& slabs) {
    EXPECT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
    const SiteAnswer& answer = answers_.at(asked);
    EXPECT_TRUE(answer.status.ok()) << answer.status.to_string();
    const auto bytes = slabs.bytes(play.into).first(answer.bytes);
    const std::vector<std::byte> codes(bytes.begin(), bytes.end());
    slabs.release(play.into);
    return codes;
  }

  // A trainer's stream that writes the first word once `open` is set.
  CUstream trainer_behind(std::atomic<bool>& open) {
    const CUstream trainer = make_stream();
    const auto wait = [](void* until) {
      while (!static_cast<std::atomic<bool>*>(until)->load()) std::this_thread::yield();
    };
    EXPECT_CU(cu_->cuLaunchHostFunc(trainer, wait, &open));
    CUdeviceptr words = 0;
    EXPECT_CU(cu_->cuMemHostGetDevicePointer(&words, timeline_, 0));
    EXPECT_CU(cu_->cuStreamWriteValue32(trainer, words + wire::kWordBytes, 1,
                                        CU_STREAM_WRITE_VALUE_DEFAULT));
    return trainer;
  }

  void poll(uint64_t later_ns) {
    now_ns_ += later_ns;
    there_->poll(*this, now_ns_);
  }
  bool wait_until(const std::function<bool()>& so) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!so() && std::chrono::steady_clock::now() < until) {
      there_->poll(*this, ++now_ns_);
      std::this_thread::yield();
    }
    return so();
  }
  void site_answered(Ticket ticket, const SiteAnswer& answer) override {
    answers_[ticket] = answer;
    const bool may_write = answer.status.code() == StatusCode::kDEVICE_LOST && worker_->alive();
    EXPECT_FALSE(may_write) << "in the ranks' memory";
  }
  void signal_worker(int signal) {
    ASSERT_EQ(::syscall(SYS_pidfd_send_signal, worker_->pidfd(), signal, nullptr, 0), 0);
  }
  void stop_worker() {
    signal_worker(SIGSTOP);
    siginfo_t how{};
    const auto process = static_cast<id_t>(worker_->pidfd());
    ASSERT_EQ(::waitid(P_PIDFD, process, &how, WSTOPPED | WNOWAIT), 0);
  }

  std::map<Ticket, SiteAnswer> answers_;
  uint64_t now_ns_ = 0;
};

// A piece to be hashed is copied into the memory for tables, which begins anew every few rounds.
TEST_F(WorkerSites, AnswersAreRightHoweverManyJobsThereWere) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(kStreams));
  std::vector<std::unique_ptr<Play>> plays;
  std::vector<std::span<const std::byte>> wanted;
  for (uint32_t i = 0; i < kStreams; ++i) {
    plays.push_back(begin(*there_, *staged_, i));
    const auto host = begin(*here_, *slabs_, i);
    const Ticket encoded = ask_encode(*host);
    wanted.push_back(slabs_->bytes(host->into).first(answers_.at(encoded).bytes));
  }
  for (int round = 0; round < 50; ++round) {
    answers_.clear();
    std::vector<std::pair<Ticket, Ticket>> asked;
    for (const auto& play : plays) asked.emplace_back(ask_encode(*play), ask_hash(*play));
    ASSERT_TRUE(wait_until([&] { return answers_.size() == 2 * kStreams; })) << "round " << round;
    for (uint32_t i = 0; i < kStreams; ++i) {
      SCOPED_TRACE("round " + std::to_string(round) + ", operation " + std::to_string(i));
      const SiteAnswer &encoded = answers_.at(asked[i].first), &hash = answers_.at(asked[i].second);
      ASSERT_TRUE(encoded.status.ok()) << encoded.status.to_string();
      ASSERT_TRUE(hash.status.ok()) << hash.status.to_string();
      const auto tensor = std::span(memory_).subspan(kBegin + i * kBytes, kBytes);
      ASSERT_EQ(hash.hash, wire::checksum(tensor));
      const std::span<std::byte> bytes = staged_->bytes(plays[i]->into);
      ASSERT_EQ(encoded.bytes, wanted[i].size());
      ASSERT_TRUE(std::equal(wanted[i].begin(), wanted[i].end(), bytes.begin()));
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
    }
  }
}

// Of two ranks, whose fp16 values are so large that the type does not hold what they add up to.
TEST_F(WorkerSites, ASumThatIsNoResultYetIsHeldToNoLimitOfTheType) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(1));
  const auto sum = [&](Site& site, SlabStore& slabs) {
    const auto play = begin(site, slabs, 0);
    play->table.front().dtype = DType::kF16;
    play->group.segments.front().spec = kernels::parse_codec_spec("fp32").value();
    play->layout = GroupLayout::create(play->group, play->table, 2, {});
    LocalSegment& segment = play->setup.segments.front();
    segment.inputs.push_back(segment.inputs.front());
    segment.scale = 30'000;
    const SiteContribution from[] = {{.own_ranks = true}};
    const Ticket asked = ask(*play, {.kind = SiteJobKind::kReduce,
                                     .part = play->layout.shard(1).first,
                                     .presence = &play->all,
                                     .from = from,
                                     .results = false,
                                     .into = play->into});
    return take_codes(*play, asked, slabs);
  };
  const std::vector<std::byte> wanted = sum(*here_, *slabs_);
  EXPECT_EQ(sum(*there_, *staged_), wanted);
  std::vector<float> values(wanted.size() / sizeof(float));
  std::memcpy(values.data(), wanted.data(), values.size() * sizeof(float));
  EXPECT_TRUE(std::any_of(values.begin(), values.end(),
                          [](float x) { return x > 65'520 && std::isfinite(x); }));
}

// What codes lose, then a step of one machine in which one value is not finite, then codes again.
TEST_F(WorkerSites, AStepOfOneMachineLeavesTheResidualThatItLeavesOnTheHost) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(1));
  const auto last_codes = [&](Site& site, SlabStore& slabs) {
    const auto residual = site.residual_maker()(kElements);
    EXPECT_TRUE(residual.ok());
    std::vector<std::byte> codes;
    uint32_t confirmed = 0;
    for (const bool alone : {false, true, false}) {
      const auto play = begin(site, slabs, alone ? kNotFinite : 0, 0, alone ? 1 : 2);
      give_residual(*play, residual->get(), confirmed, 0.5f);
      confirmed = 1 - confirmed;
      const Ticket asked =
          alone ? ask(*play, {.kind = SiteJobKind::kLocalReduce, .presence = &play->all})
                : ask_encode(*play);
      codes = take_codes(*play, asked, slabs);
    }
    return codes;
  };
  EXPECT_EQ(last_codes(*there_, *staged_), last_codes(*here_, *slabs_));
}

// What other units cannot express is forgotten.
TEST_F(WorkerSites, AResidualThatIsKeptInOtherUnitsIsThatOfTheHost) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(1));
  const auto last_codes = [&](Site& site, SlabStore& slabs) {
    const auto residual = site.residual_maker()(kElements);
    EXPECT_TRUE(residual.ok());
    std::vector<std::byte> codes;
    uint32_t confirmed = 0;
    for (const float scale : {1.0f, 3e38f, 40.0f, 1e-38f, 1.0f}) {
      const auto play = begin(site, slabs, 0);
      give_residual(*play, residual->get(), confirmed, scale);
      confirmed = 1 - confirmed;
      const bool keeps = scale != 1.0f;
      const SiteJob keep{
          .kind = SiteJobKind::kKeep, .presence = &play->all, .first = 8, .count = kElements - 16};
      const Ticket asked = keeps ? ask(*play, keep) : ask_encode(*play);
      codes = take_codes(*play, asked, slabs);
    }
    return codes;
  };
  EXPECT_EQ(last_codes(*there_, *staged_), last_codes(*here_, *slabs_));
}

TEST_F(WorkerSites, WhatEndedInTimeKillsNoWorkerThatAnotherWaitsFor) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(2));
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto ended = begin(*there_, *staged_, 0), waiting = begin(*there_, *staged_, 1, 1);
  const Ticket first = ask_encode(*ended), second = ask_encode(*waiting);
  ended->work->end();
  EXPECT_TRUE(wait_until([&] { return answers_.count(first) > 0; }));
  poll(kSecond + kSecond / 10);
  EXPECT_TRUE(there_->lost().ok()) << there_->lost().to_string();
  open = true;
  EXPECT_TRUE(wait_until([&] { return answers_.count(second) > 0; }));
  EXPECT_TRUE(answers_[second].status.ok()) << answers_[second].status.to_string();
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

// A driver frees memory when its streams have done everything, and one of them waits for a trainer.
TEST_F(WorkerSites, AnOldPlansResidualsKeepNoNewPlanWaitingForATrainer) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(2));
  const auto old = worker_->make_residual(kElements);
  ASSERT_TRUE(old.ok()) << old.status().to_string();
  ASSERT_TRUE(worker_->reserve_work(1, 4096).ok());
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto waiting = begin(*there_, *staged_, 0, 1), behind = begin(*there_, *staged_, 1);
  const Ticket asked = ask_encode(*waiting), next = ask_encode(*behind);
  EXPECT_TRUE(wait_until([&] { return answers_.count(next) > 0; })) << "then both have begun";
  worker_->drop_residual(*old);
  const auto residual = worker_->make_residual(kElements);
  EXPECT_TRUE(residual.ok()) << residual.status().to_string();
  const Status work = worker_->reserve_work(2, 8192);
  EXPECT_TRUE(work.ok()) << work.to_string();
  open = true;
  EXPECT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
  EXPECT_TRUE(answers_[asked].status.ok()) << answers_[asked].status.to_string();
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

// So do other arenas: what a driver waits for when it closes them waits for no trainer.
TEST_F(WorkerSites, AnArenaThatGoesKeepsNobodyWaitingForATrainer) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(2));
  const CUdeviceptr memory = allocate(kBytes);
  const UniqueFd words = make_memfd(kWordsBytes, F_SEAL_SHRINK | F_SEAL_GROW);
  const auto other = worker_->add_arena(message_of(memory, kBytes), words.get(), -1);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto waiting = begin(*there_, *staged_, 0, 1), behind = begin(*there_, *staged_, 1);
  const Ticket asked = ask_encode(*waiting), next = ask_encode(*behind);
  EXPECT_TRUE(wait_until([&] { return answers_.count(next) > 0; })) << "then both have come";
  worker_->drop_arena(other->number);
  const auto residual = worker_->make_residual(kElements);
  EXPECT_TRUE(residual.ok()) << residual.status().to_string();
  open = true;
  EXPECT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
  EXPECT_TRUE(answers_[asked].status.ok()) << answers_[asked].status.to_string();
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

// Two parts of it, and another operation whose word is there.
TEST_F(WorkerSites, WhatAJobIsHeldForIsKnownByItsSegmentAndArenaUntilItIsThere) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(3));
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto waiting = begin(*there_, *staged_, 0, 1), free = begin(*there_, *staged_, 1);
  const Ticket first = ask_encode(*waiting), behind = ask_hash(*waiting), other = ask_encode(*free);
  EXPECT_FALSE(waiting->work->awaited().has_value());
  EXPECT_TRUE(wait_until([&] { return waiting->work->awaited().has_value(); }));
  EXPECT_EQ(waiting->work->awaited()->segment, 0u);
  EXPECT_EQ(waiting->work->awaited()->arena, device_arena_);
  EXPECT_TRUE(wait_until([&] { return answers_.count(other) > 0; }));
  EXPECT_FALSE(free->work->awaited().has_value());
  EXPECT_EQ(answers_.count(first) + answers_.count(behind), 0u);
  open = true;
  EXPECT_TRUE(wait_until([&] { return answers_.count(first) > 0; }));
  EXPECT_FALSE(waiting->work->awaited().has_value());
  EXPECT_TRUE(wait_until([&] { return answers_.count(behind) > 0; }));
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

// Its operation has failed, and the GPU of a trainer that lives is far behind.
TEST_F(WorkerSites, WhatEndsIsAnsweredAlthoughItWaitsForATrainer) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(2));
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto ended = begin(*there_, *staged_, 0, 1);
  const Ticket first = ask_encode(*ended), second = ask_encode(*ended);
  ended->work->end();
  EXPECT_TRUE(wait_until([&] { return answers_.size() == 2; }));
  for (const Ticket ticket : {first, second}) {
    EXPECT_EQ(answers_[ticket].status.code(), StatusCode::kCANCELLED);
  }
  poll(kSecond + kSecond / 10);
  EXPECT_TRUE(there_->lost().ok()) << there_->lost().to_string();
  open = true;
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
  const auto later = begin(*there_, *staged_, 1, 1);
  const Ticket third = ask_encode(*later);
  EXPECT_TRUE(wait_until([&] { return answers_.count(third) > 0; }));
  EXPECT_TRUE(answers_[third].status.ok()) << answers_[third].status.to_string();
}

// A step has failed: its jobs wait for no trainer any more, and those that wait for none are done.
TEST_F(WorkerSites, WhatGivesWayIsAnsweredUnlessItMayBegin) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(2));
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto waiting = begin(*there_, *staged_, 0, 1), free = begin(*there_, *staged_, 1);
  const Ticket first = ask_encode(*waiting), second = ask_hash(*waiting);
  const Ticket third = ask_encode(*free);
  for (const auto* each : {&waiting, &free}) (*each)->work->give_way();
  EXPECT_TRUE(wait_until([&] { return answers_.size() == 3; }));
  for (const Ticket ticket : {first, second}) {
    EXPECT_EQ(answers_[ticket].status.code(), StatusCode::kCANCELLED);
  }
  EXPECT_TRUE(answers_[third].status.ok()) << answers_[third].status.to_string();
  poll(kSecond + kSecond / 10);
  EXPECT_TRUE(there_->lost().ok()) << there_->lost().to_string();
  open = true;
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

// Whichever stream of the device they are for.
TEST_F(WorkerSites, JobsOfAnOperationBeginInOrderAndThoseOfOthersDoNotWait) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(2 * kStreams));
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto waiting = begin(*there_, *staged_, 0, 1);
  const Ticket asked = ask_encode(*waiting), behind = ask_hash(*waiting);
  std::vector<std::unique_ptr<Play>> others;
  std::vector<Ticket> free;
  for (uint32_t i = 1; i <= kStreams; ++i) {
    others.push_back(begin(*there_, *staged_, i % kStreams));
    free.push_back(ask_encode(*others.back()));
  }
  EXPECT_TRUE(wait_until([&] { return answers_.size() == free.size(); }));
  EXPECT_EQ(answers_.count(asked) + answers_.count(behind), 0u);
  open = true;
  EXPECT_TRUE(wait_until([&] { return answers_.size() == free.size() + 2; }));
  for (const auto& [ticket, answer] : answers_) {
    EXPECT_TRUE(answer.status.ok()) << answer.status.to_string();
  }
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

// What was asked before the end and is not answered kills it, whoever else has ended meanwhile.
TEST_F(WorkerSites, AWorkerThatDoesNotEndWhatFailedIsKilled) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(1));
  const auto play = begin(*there_, *staged_, 0);
  stop_worker();
  const Ticket asked = ask_encode(*play);
  play->work->end();
  poll(kSecond / 2);
  EXPECT_TRUE(there_->lost().ok()) << there_->lost().to_string();
  poll(kSecond);
  EXPECT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
  EXPECT_NE(there_->lost().message().find("did not end what had failed within 1 s"),
            std::string::npos)
      << there_->lost().to_string();
  pollfd gone{worker_->pidfd(), POLLIN, 0};
  EXPECT_EQ(::poll(&gone, 1, 10'000), 1);
}

// Of a machine alone, where no other machine misses what it does not send.
TEST_F(WorkerSites, AWorkerThatHangsInAJobIsLostByName) {
  const auto play = begin(*there_, *staged_, 0);
  stop_worker();
  const Ticket asked = ask_local_reduce(*play);
  poll(3600 * kSecond);  // in which this process was stopped, too
  int looks = 0;
  for (; there_->lost().ok() && looks < 400; ++looks) poll(kSecond / 10);
  EXPECT_NEAR(looks, 300, 5);
  ASSERT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
  EXPECT_EQ(answers_[asked].status.code(), StatusCode::kDEVICE_LOST);
  EXPECT_NE(answers_[asked].status.message().find("has not answered for 30 s"), std::string::npos)
      << answers_[asked].status.to_string();
  pollfd gone{worker_->pidfd(), POLLIN, 0};
  EXPECT_EQ(::poll(&gone, 1, 10'000), 1);
}

// Otherwise what the next worker has comes to a session whose arenas still seem to be there.
TEST_F(WorkerSites, AWorkerThatWasFoundDeadIsLostAtOnce) {
  poll(kSecond);
  signal_worker(SIGKILL);
  pollfd gone{worker_->pidfd(), POLLIN, 0};
  ASSERT_EQ(::poll(&gone, 1, 10'000), 1);
  EXPECT_FALSE(worker_->alive());  // whoever wants one asks
  EXPECT_EQ(there_->lost().code(), StatusCode::kDEVICE_LOST);
  const auto play = begin(*there_, *staged_, 0);
  const Ticket asked = ask_local_reduce(*play);
  poll(1);
  EXPECT_EQ(answers_[asked].status.code(), StatusCode::kDEVICE_LOST);
}

TEST_F(WorkerSites, AWorkerWithoutJobsMayHangAndIsNotLost) {
  const auto play = begin(*there_, *staged_, 0);
  const Ticket asked = ask_local_reduce(*play);
  ASSERT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
  stop_worker();
  for (int looks = 0; looks < 400; ++looks) poll(kSecond / 10);
  EXPECT_TRUE(there_->lost().ok()) << there_->lost().to_string();
  signal_worker(SIGCONT);
}

TEST_F(WorkerSites, AWorkerThatWaitsForATrainerIsNotLost) {
  std::atomic<bool> open{false};
  const CUstream trainer = trainer_behind(open);
  const auto play = begin(*there_, *staged_, 0, 1);
  const Ticket asked = ask_local_reduce(*play);
  for (int looks = 0; looks < 400; ++looks) {
    const uint32_t beat = worker_->beat();
    ASSERT_TRUE(wait_until([&] { return worker_->beat() != beat; }));
    poll(kSecond / 10);
  }
  EXPECT_TRUE(there_->lost().ok()) << there_->lost().to_string();
  open = true;
  EXPECT_TRUE(wait_until([&] { return answers_.count(asked) > 0; }));
  EXPECT_TRUE(answers_[asked].status.ok()) << answers_[asked].status.to_string();
  EXPECT_CU(cu_->cuStreamSynchronize(trainer));  // it looks at `open`
}

TEST_F(WorkerSites, AJobFindsItsStagingMemoryBehindAnyNumberOfPackets) {
  ASSERT_NO_FATAL_FAILURE(reserve_staged(1));
  stop_worker();
  for (uint32_t number = 1; number <= 1000; ++number) worker_->drop_residual(1'000'000 + number);
  std::thread goes_on([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    signal_worker(SIGCONT);
  });
  reserve_staged(2);
  goes_on.join();
  ASSERT_FALSE(HasFatalFailure());
  const auto here = begin(*there_, *staged_, 0), behind = begin(*there_, *staged_, 1);
  const Ticket first = ask_encode(*here), second = ask_encode(*behind);
  EXPECT_TRUE(wait_until([&] { return answers_.size() == 2; }));
  for (const Ticket ticket : {first, second}) {
    EXPECT_TRUE(answers_[ticket].status.ok()) << answers_[ticket].status.to_string();
  }
}

}  // namespace
}  // namespace cgx::daemon::gpu
