// The agreement with messages that overtake each other: large ones take another path than small
// ones, so what became of a proposal may arrive before it.
#include "scheduler/communicator/plan_agreement.h"

#include <gtest/gtest.h>

#include <utility>

#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {
namespace {

class Machine final : public PlanAgreement::Port {
 public:
  explicit Machine(uint32_t machine) {
    members.machine = machine;
    members.machine_of_rank = members.lowest_rank = {0, 1, 2};
    members.addresses.resize(3);
    members.devices.resize(3);
  }
  void send_control(uint32_t, const ControlMessage& message) override {
    if (const auto* prepared = std::get_if<Prepared>(&message)) answers.push_back(*prepared);
    if (const auto* prepare = std::get_if<Prepare>(&message)) proposals.push_back(*prepare);
    if (const auto* decided = std::get_if<Decided>(&message)) decisions.push_back(*decided);
  }
  void broadcast_body(SharedBytes encoded) override {
    const Result<ControlMessage> message = decode_control(*encoded);
    ASSERT_TRUE(message.ok());
    for (uint32_t k = 1; k < members.machines(); ++k) send_control(k, *message);
  }
  std::shared_ptr<const TensorTable> table_for(PlanPurpose) const override { return table; }
  void ask_planner(PlanQuestion question, PlannerPort::Answer answer) override {
    question.machines = 3;
    question.machine = members.machine;
    question.slab_bytes = pool.slab_bytes();
    questions.push_back([question, answer] { answer(make_facts(question)); });
    if (!late) answer_questions();
  }
  void answer_questions() {
    for (const auto& question : std::exchange(questions, {})) question();
  }
  Result<PlanAgreement::PlanPtr> reserve(const FactsPtr& facts) override {
    return PreparedPlan::create(facts, pool, missing_bytes, UINT64_MAX);
  }
  uint64_t now_ns() const override { return 5; }
  uint64_t prepare_deadline_ns() const override { return 1000; }
  uint64_t next_switch_step() const override { return 0; }
  bool between_steps() const override { return idle; }
  void install_committed(const PlanAgreement::PlanPtr& plan, uint64_t) override {
    installed = plan->plan.epoch;
  }
  bool asks_otherwise(const Status&) override { return std::exchange(asks_once_more, false); }
  void count(Counter, uint64_t) override {}

  Prepare proposal(uint64_t epoch) const {
    const std::vector<uint32_t> order = reverse_registration(table->size());
    const Result<Plan> plan = make_plan({*table, {}, 1, epoch, order, members.machines()});
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    return {PlanPurpose::kCommit, 0, {}, encode_plan(*plan)};
  }
  PlanAgreement::Question question() {
    return [this](uint64_t epoch) -> Result<PlanQuestion> {
      PlanQuestion question;
      question.table = table;
      question.epoch = epoch;
      question.policy_version = 1;
      question.order = reverse_registration(table->size());
      return question;
    };
  }
  // Told what became of it.
  PlanAgreement::Answer told() {
    return [this](const Result<PlanAgreement::Outcome>& outcome) {
      outcomes.push_back(outcome.status().code());
    };
  }

  BufferPool pool{1024 * 1024};
  std::shared_ptr<const TensorTable> table =
      std::make_shared<TensorTable>(TensorTable{{.name = "weight", .elements = 4096}});
  Members members;
  uint64_t missing_bytes = 0;  // of residuals
  bool idle = true;
  bool asks_once_more = false;
  bool late = false;  // questions wait for answer_questions()
  std::vector<std::function<void()>> questions;
  std::vector<Prepare> proposals;
  std::vector<Prepared> answers;
  std::vector<Decided> decisions;
  std::vector<StatusCode> outcomes;
  uint64_t installed = 0;
};

// A machine whose planner answers when it is told to.
struct LatePlans {
  explicit LatePlans(uint32_t machine) : host(machine), agreement(host.members, host) {
    host.late = true;
  }
  Machine host;
  PlanAgreement agreement;
};

uint64_t epoch_in(const Prepare& proposal) {
  return *epoch_of(proposal.plan);
}

Decided dropped(uint64_t epoch) {
  return {.epoch = epoch, .code = StatusCode::kRESOURCE_EXHAUSTED, .text = "machine 2 refuses"};
}

TEST(PlanAgreement, ForgetsAProposalThatWasDroppedBeforeItArrived) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  ASSERT_TRUE(agreement.on_decided(dropped(1)).ok());
  agreement.on_prepare(host.proposal(1));
  EXPECT_TRUE(host.answers.empty());
  EXPECT_EQ(agreement.undecided_since_ns(), 0u) << "nobody will decide it";
  agreement.on_prepare(host.proposal(2));
  ASSERT_EQ(host.answers.size(), 1u);
  EXPECT_EQ(host.answers[0].code, StatusCode::kOK) << host.answers[0].text;
  ASSERT_TRUE(agreement.on_decided({.epoch = 2}).ok());
  EXPECT_EQ(host.installed, 2u);
}

// Memory that took seconds would be made once more.
TEST(PlanAgreement, PlansNoDryRunBeforeAPlanThatIsBeingMade) {
  LatePlans late(0);
  const auto ask = [&](bool dry_run) {
    late.agreement.propose(PlanPurpose::kPolicy, dry_run, 0, late.host.question(),
                           late.host.told());
  };
  ask(/*dry_run=*/true);
  ask(/*dry_run=*/false);
  ask(/*dry_run=*/true);
  late.agreement.tick(6);
  ASSERT_EQ(late.host.questions.size(), 2u) << "the second dry run waits";
  late.host.answer_questions();
  ASSERT_EQ(late.host.proposals.size(), 4u) << "two, to two machines each";
  EXPECT_EQ(epoch_in(late.host.proposals[0]), 1u);
  EXPECT_EQ(epoch_in(late.host.proposals[2]), 2u) << "nothing was planned twice";
  EXPECT_TRUE(late.host.questions.empty());
  late.agreement.tick(7);
  ASSERT_EQ(late.host.questions.size(), 1u);
  late.host.answer_questions();
  ASSERT_EQ(late.host.proposals.size(), 6u);
  EXPECT_EQ(epoch_in(late.host.proposals[4]), 3u);
}

// A daemon that reads other plans, in the middle of an upgrade: before the first frame, not at it.
TEST(PlanAgreement, RefusesAPlanOfAFormOrOfCodecsThatItDoesNotKnow) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  const auto answer_to = [&](uint64_t epoch, const std::function<void(Plan&)>& change) {
    Prepare prepare = host.proposal(epoch);
    Plan plan = *decode_plan(prepare.plan);
    change(plan);
    prepare.plan = encode_plan(plan);
    host.answers.clear();
    agreement.on_prepare(prepare);
    EXPECT_EQ(host.answers.size(), 1u);
    return host.answers.empty() ? Prepared{} : host.answers.front();
  };
  const Prepared form = answer_to(1, [](Plan& plan) { plan.form = 99; });
  EXPECT_EQ(form.code, StatusCode::kMISMATCH);
  EXPECT_NE(form.text.find("form 99"), std::string::npos) << form.text;
  const Prepared codecs = answer_to(2, [](Plan& plan) { plan.codec_formats ^= 1; });
  EXPECT_EQ(codecs.code, StatusCode::kMISMATCH) << codecs.text;
  EXPECT_EQ(answer_to(3, [](Plan&) {}).code, StatusCode::kOK);
  ASSERT_TRUE(agreement.on_decided({.epoch = 3}).ok());
  EXPECT_EQ(host.installed, 3u);
}

TEST(PlanAgreement, KeepsTheNewerOfTwoProposalsWhateverComesLast) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  agreement.on_prepare(host.proposal(4));
  agreement.on_prepare(host.proposal(3));
  ASSERT_TRUE(agreement.on_decided(dropped(3)).ok());
  ASSERT_TRUE(agreement.on_decided({.epoch = 4}).ok());
  EXPECT_EQ(host.installed, 4u);
}

TEST(PlanAgreement, RefusesADecisionForWhatWasNeverPrepared) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  const Status status = agreement.on_decided({.epoch = 7});
  EXPECT_EQ(status.code(), protocol_error("").code());
  EXPECT_NE(status.message().find("epoch 7"), std::string::npos) << status.message();
}

TEST(PlanAgreement, RefusesADecisionForAnotherPurposeThanAPlanWasPreparedFor) {
  for (const PlanPurpose prepared : {PlanPurpose::kPolicy, PlanPurpose::kCommit}) {
    const bool commit = prepared == PlanPurpose::kCommit;
    Machine host(1);
    PlanAgreement agreement(host.members, host);
    Prepare prepare = host.proposal(3);
    prepare.purpose = prepared;
    agreement.on_prepare(prepare);
    const Status status = agreement.on_decided(
        {.epoch = 3, .purpose = commit ? PlanPurpose::kPolicy : PlanPurpose::kCommit});
    EXPECT_EQ(status.code(), StatusCode::kPROTOCOL_ERROR);
    EXPECT_NE(status.message().find("for that purpose"), std::string::npos) << status.message();
    EXPECT_EQ(host.installed, 0u);
  }
}

// A ledger would go that operations still use.
TEST(PlanAgreement, RefusesACommitThatNobodyHereWaitsFor) {
  for (const bool open : {true, false}) {
    Machine host(1);
    PlanAgreement agreement(host.members, host);
    agreement.on_prepare(host.proposal(3));
    host.idle = !open;
    if (!open) host.table = std::make_shared<TensorTable>(*host.table);
    const Status status = agreement.on_decided({.epoch = 3});
    EXPECT_EQ(status.code(), StatusCode::kPROTOCOL_ERROR);
    EXPECT_NE(status.message().find("do not wait for"), std::string::npos) << status.message();
    EXPECT_EQ(host.installed, 0u);
  }
}

TEST(PlanAgreement, ForgetsWhatWasPreparedForACommitThatIsRefused) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  agreement.on_prepare(host.proposal(3));
  ASSERT_TRUE(agreement.on_decided(dropped(0)).ok()) << "no epoch was proposed";
  EXPECT_EQ(agreement.on_decided({.epoch = 3}).code(), StatusCode::kPROTOCOL_ERROR);
  EXPECT_EQ(agreement.reserved_bytes(nullptr), 0u);
}

TEST(PlanAgreement, WaitsForTheDecisionOfWhatOthersHaveHeard) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  agreement.on_prepare(host.proposal(3));
  ASSERT_TRUE(agreement.on_rumour(2, {.epoch = 3, .switch_step = 8}).ok());
  EXPECT_TRUE(agreement.awaits_decision());
  EXPECT_EQ(agreement.newest_known().epoch, 3u) << "it is passed on";
  ASSERT_TRUE(agreement.on_decided({.epoch = 3}).ok());
  EXPECT_FALSE(agreement.awaits_decision());
  EXPECT_TRUE(agreement.on_rumour(2, {.epoch = 3, .switch_step = 8}).ok()) << "it comes late";
}

// Nothing is decided before every machine has prepared it.
TEST(PlanAgreement, BelievesNobodyOfWhatItHasNotPrepared) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  agreement.on_prepare(host.proposal(3));
  ASSERT_TRUE(agreement.on_decided(dropped(3)).ok());
  for (const uint64_t epoch : {uint64_t{3}, uint64_t{1} << 60}) {
    const Status status = agreement.on_rumour(2, {.epoch = epoch, .switch_step = 8});
    EXPECT_EQ(status.code(), StatusCode::kPROTOCOL_ERROR);
    EXPECT_NE(status.message().find("machine 2"), std::string::npos) << status.message();
    EXPECT_FALSE(agreement.awaits_decision());
  }
}

TEST(PlanAgreement, AnswersAProposalWhenItsPlanIsMade) {
  LatePlans late(1);
  auto& [host, agreement] = late;
  agreement.on_prepare(host.proposal(1));
  EXPECT_TRUE(host.answers.empty());
  EXPECT_EQ(agreement.undecided_since_ns(), 0u) << "it is this machine that is waited for";
  host.answer_questions();
  ASSERT_EQ(host.answers.size(), 1u);
  EXPECT_EQ(host.answers[0].epoch, 1u);
  EXPECT_GT(agreement.reserved_bytes(nullptr), 0u);
}

TEST(PlanAgreement, LooksAtNoPlanThatWasDroppedWhileItWasMade) {
  LatePlans late(1);
  auto& [host, agreement] = late;
  agreement.on_prepare(host.proposal(1));
  ASSERT_TRUE(agreement.on_decided(dropped(1)).ok());
  host.answer_questions();
  EXPECT_TRUE(host.answers.empty());
  EXPECT_EQ(agreement.reserved_bytes(nullptr), 0u);
}

TEST(PlanAgreement, RefusesAPlanForATableThatWasReplacedWhileItWasMade) {
  LatePlans late(1);
  auto& [host, agreement] = late;
  agreement.on_prepare(host.proposal(1));
  host.table = std::make_shared<TensorTable>(*host.table);
  host.answer_questions();
  ASSERT_EQ(host.answers.size(), 1u);
  EXPECT_EQ(host.answers[0].code, StatusCode::kSUPERSEDED) << host.answers[0].text;
  EXPECT_EQ(agreement.reserved_bytes(nullptr), 0u);
}

TEST(PlanAgreement, PreparesABoundedNumberOfPlansAtOnce) {
  LatePlans late(1);
  auto& [host, agreement] = late;
  for (uint64_t epoch = 1; epoch <= 65; ++epoch) agreement.on_prepare(host.proposal(epoch));
  ASSERT_EQ(host.answers.size(), 1u);
  EXPECT_EQ(host.answers[0].epoch, 65u);
  EXPECT_EQ(host.answers[0].code, StatusCode::kBUSY) << host.answers[0].text;
}

TEST(PlanAgreement, AsksAgainWhenALaterPlanWasMadeFirst) {
  LatePlans late(0);
  auto& [host, agreement] = late;
  agreement.propose(PlanPurpose::kPolicy, /*dry_run=*/true, 0, host.question(), host.told());
  agreement.propose(PlanPurpose::kPolicy, /*dry_run=*/false, 0, host.question(), host.told());
  std::swap(host.questions[0], host.questions[1]);
  host.answer_questions();
  ASSERT_EQ(host.proposals.size(), 2u) << "one proposal for each other machine";
  EXPECT_EQ(host.proposals[0].dry_run, 0);
  host.answer_questions();
  ASSERT_EQ(host.proposals.size(), 4u);
  EXPECT_EQ(host.proposals[2].dry_run, 1);
  EXPECT_EQ(epoch_in(host.proposals[0]), 2u);
  EXPECT_EQ(epoch_in(host.proposals[2]), 3u);
}

TEST(PlanAgreement, AsksAgainWhenTheTableWasReplacedMeanwhile) {
  LatePlans late(0);
  auto& [host, agreement] = late;
  agreement.propose(PlanPurpose::kPolicy, /*dry_run=*/true, 0, host.question(), host.told());
  host.table = std::make_shared<TensorTable>(
      TensorTable{{.name = "weight", .elements = 4096}, {.name = "bias", .elements = 64}});
  host.answer_questions();
  EXPECT_TRUE(host.proposals.empty());
  host.answer_questions();
  ASSERT_EQ(host.proposals.size(), 2u);
  const Result<Plan> plan = decode_plan(host.proposals[0].plan);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->table_hash, table_hash(*host.table));
}

TEST(PlanAgreement, LetsACommitGoBeforeAPolicyThatIsBeingPlanned) {
  LatePlans late(0);
  auto& [host, agreement] = late;
  agreement.propose(PlanPurpose::kPolicy, /*dry_run=*/false, 0, host.question(), host.told());
  agreement.propose(PlanPurpose::kCommit, /*dry_run=*/false, 0, host.question(), host.told());
  EXPECT_EQ(host.outcomes, std::vector{StatusCode::kSUPERSEDED});
  EXPECT_TRUE(host.decisions.empty()) << "nobody has heard of the policy";
  EXPECT_TRUE(agreement.proposing(PlanPurpose::kCommit));
  host.answer_questions();
  ASSERT_EQ(host.proposals.size(), 2u);
  EXPECT_EQ(host.proposals[0].purpose, PlanPurpose::kCommit);
  for (const uint32_t machine : {1u, 2u}) agreement.on_prepared(machine, {.epoch = 1});
  EXPECT_EQ(host.installed, 1u);
}

TEST(PlanAgreement, TellsWhoHasCommittedThatNothingCouldBePlanned) {
  Machine host(0);
  PlanAgreement agreement(host.members, host);
  agreement.propose(
      PlanPurpose::kCommit, /*dry_run=*/false, 0,
      [](uint64_t) -> Result<PlanQuestion> { return resource_exhausted("too many rules"); },
      host.told());
  EXPECT_EQ(host.outcomes, std::vector{StatusCode::kRESOURCE_EXHAUSTED});
  ASSERT_EQ(host.decisions.size(), 2u) << "one for each other machine";
  EXPECT_EQ(host.decisions[0].code, StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(host.decisions[0].text.find("too many rules"), std::string::npos);
}

TEST(PlanAgreement, AsksOnceMoreForACommitThatAMemberRefuses) {
  Machine host(0);
  host.asks_once_more = true;
  PlanAgreement agreement(host.members, host);
  agreement.propose(PlanPurpose::kCommit, /*dry_run=*/false, 0, host.question(), host.told());
  agreement.on_prepared(1, {.epoch = 1});
  agreement.on_prepared(2, {.epoch = 1, .code = StatusCode::kRESOURCE_EXHAUSTED});
  EXPECT_TRUE(host.outcomes.empty()) << "the ranks go on waiting";
  ASSERT_EQ(host.decisions.size(), 2u);
  for (const Decided& decided : host.decisions) {
    EXPECT_EQ(decided.epoch, 1u);
    EXPECT_EQ(decided.code, StatusCode::kSUPERSEDED);
    EXPECT_NE(decided.purpose, PlanPurpose::kCommit) << "else the member's ranks are refused";
  }
  ASSERT_EQ(host.proposals.size(), 4u);
  EXPECT_EQ(epoch_in(host.proposals[3]), 2u);
  agreement.on_prepared(1, {.epoch = 1});  // late
  for (const uint32_t machine : {1u, 2u}) agreement.on_prepared(machine, {.epoch = 2});
  EXPECT_EQ(host.installed, 2u);
  EXPECT_EQ(host.outcomes, std::vector{StatusCode::kOK});
}

TEST(PlanAgreement, AsksForNothingElseWhenItEnds) {
  Machine host(0);
  host.asks_once_more = true;
  PlanAgreement agreement(host.members, host);
  agreement.propose(PlanPurpose::kCommit, /*dry_run=*/false, 0, host.question(), host.told());
  agreement.end({StatusCode::kRESOURCE_EXHAUSTED, "a rank registers too much"});
  EXPECT_EQ(host.outcomes, std::vector{StatusCode::kRESOURCE_EXHAUSTED});
  EXPECT_EQ(host.proposals.size(), 2u) << "one for each other machine";
}

TEST(PlanAgreement, FreesWhatIsAskedForOtherwise) {
  Machine host(1);
  PlanAgreement agreement(host.members, host);
  agreement.on_prepare(host.proposal(1));
  EXPECT_GT(agreement.reserved_bytes(nullptr), 0u);
  ASSERT_TRUE(
      agreement
          .on_decided(
              {.epoch = 1, .code = StatusCode::kSUPERSEDED, .purpose = PlanPurpose::kPlanner})
          .ok());
  EXPECT_EQ(agreement.reserved_bytes(nullptr), 0u);
  EXPECT_EQ(agreement.undecided_since_ns(), 0u) << "the next one has its own time";
  agreement.on_prepare(host.proposal(2));
  ASSERT_TRUE(agreement.on_decided({.epoch = 2, .purpose = PlanPurpose::kCommit}).ok());
  EXPECT_EQ(host.installed, 2u);
}

// Else it would be asked for again without end.
TEST(PlanAgreement, RefusesAnEpochOfAHistoryThatGoesBack) {
  Machine host(0);
  PlanAgreement agreement(host.members, host);
  const auto question_of = [&](uint64_t epoch) {
    return [&host, epoch](uint64_t) { return host.question()(epoch); };
  };
  agreement.propose(PlanPurpose::kPolicy, true, 0, question_of(9), host.told());
  agreement.propose(PlanPurpose::kPolicy, true, 0, question_of(8), host.told());
  EXPECT_EQ(host.outcomes, std::vector{StatusCode::kPROTOCOL_ERROR});
}

const PlanOrigin kOrigin = {kByPlanner, "on trial against epoch 1"};

// A machine that runs the plan of epoch 1 and hears of trials.
struct OnTrial {
  OnTrial() : agreement(host.members, host) {
    running = prepared(host.proposal(1));
    agreement.note_switch(running, 0, {});
  }
  PlanAgreement::PlanPtr prepared(const Prepare& proposal) {
    const auto facts = make_facts({.table = host.table,
                                   .encoded_plan = proposal.plan,
                                   .machine = 1,
                                   .machines = 3,
                                   .slab_bytes = host.pool.slab_bytes()});
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    return *host.reserve(*facts);
  }
  void announce(uint64_t epoch, const Trial& trial, uint64_t step) {
    Prepare proposal = host.proposal(epoch);
    proposal.purpose = PlanPurpose::kPlanner;
    Result<Plan> plan = decode_plan(proposal.plan);
    ASSERT_TRUE(plan.ok());
    plan->trial = trial;
    proposal.plan = encode_plan(*plan);
    agreement.on_prepare(proposal);
    ASSERT_TRUE(
        agreement.on_decided({epoch, StatusCode::kOK, "", PlanPurpose::kPlanner, step, kOrigin})
            .ok());
  }
  // The epoch under which each of the steps runs, asked as a runner asks.
  std::vector<uint64_t> epochs(uint64_t first, uint64_t end) {
    std::vector<uint64_t> all;
    for (uint64_t step = first; step < end; ++step) {
      EXPECT_EQ(agreement.plan_at(step, running), agreement.plan_at(step, running));
      const auto foretold = agreement.plan_at(step, running);
      running = agreement.plan_for(step, running);
      EXPECT_EQ(running, foretold) << step;
      all.push_back(running->plan.epoch);
    }
    return all;
  }
  Machine host{1};
  PlanAgreement agreement;
  PlanAgreement::PlanPtr running;
};
using Epochs = std::vector<uint64_t>;

TEST(PlanAgreement, AlternatesAPlanOnTrialAndGoesBack) {
  OnTrial job;
  job.announce(2, {.against = job.running->hash, .block = 2, .pairs = 2}, 5);
  EXPECT_EQ(job.epochs(3, 16), (Epochs{1, 1, 2, 2, 1, 1, 1, 1, 2, 2, 1, 1, 1}));
  EXPECT_EQ(job.agreement.switches().size(), 2u) << "it took force once";
  EXPECT_EQ(job.agreement.on_trial(), nullptr);
  EXPECT_EQ(job.agreement.reserved_bytes(job.running), 0u) << "it has gone";
}

TEST(PlanAgreement, RemembersWhoWantedAPlanAndWhy) {
  OnTrial job;
  job.announce(2, {.against = job.running->hash, .block = 2, .pairs = 2}, 5);
  EXPECT_EQ(job.agreement.origin_of(2), PlanOrigin()) << "it is not in force yet";
  (void)job.epochs(3, 7);
  EXPECT_EQ(job.agreement.origin_of(2), kOrigin);
  EXPECT_EQ(job.agreement.origin_of(1), PlanOrigin());
}

TEST(PlanAgreement, TellsAllMachinesWhoWantedAPlanAndWhy) {
  Machine host(0);
  PlanAgreement agreement(host.members, host);
  const PlanOrigin origin = {kByCommit, "the ranks committed their tensors"};
  const auto question = [&](uint64_t epoch) {
    Result<PlanQuestion> asked = host.question()(epoch);
    asked->origin = origin;
    return asked;
  };
  agreement.propose(PlanPurpose::kCommit, /*dry_run=*/false, 0, question, host.told());
  for (const uint32_t machine : {1u, 2u}) agreement.on_prepared(machine, {.epoch = 1});
  ASSERT_EQ(host.decisions.size(), 2u);
  EXPECT_EQ(host.decisions[1].origin, origin);
  EXPECT_EQ(agreement.origin_of(1), origin);
}

TEST(PlanAgreement, ReservesForBothPlansDuringATrial) {
  OnTrial job;
  job.announce(2, {.against = job.running->hash, .block = 1, .pairs = 4}, 5);
  for (uint64_t step = 5; step < 10; ++step) {
    (void)job.epochs(step, step + 1);
    EXPECT_GT(job.agreement.reserved_bytes(job.running), 0u) << step;
  }
}

// What was missing is there from the first step of either on.
TEST(PlanAgreement, CountsResidualsOfATrialUntilItBegins) {
  OnTrial job;
  job.host.missing_bytes = 1000;
  const PlanAgreement::PlanPtr base = job.running;
  job.announce(2, {.against = base->hash, .block = 1, .pairs = 4}, 5);
  const uint64_t announced = job.agreement.reserved_bytes(job.running);
  for (uint64_t step = 5; step < 10; ++step) {
    (void)job.epochs(step, step + 1);
    const PlanAgreement::PlanPtr tried = job.agreement.on_trial();
    ASSERT_NE(tried, nullptr);
    EXPECT_EQ(announced, tried->held_bytes() + 1000);
    EXPECT_EQ(job.agreement.reserved_bytes(job.running),
              (job.running == base ? tried : base)->held_bytes())
        << step;
  }
}

TEST(PlanAgreement, TriesNothingAgainstAnotherPlanThanTheOneThatRuns) {
  OnTrial job;
  job.announce(2, {.against = job.running->hash + 1, .block = 1, .pairs = 2}, 5);
  EXPECT_EQ(job.epochs(4, 12), Epochs(8, 1));
}

TEST(PlanAgreement, AnotherPlanEndsATrial) {
  OnTrial job;
  const uint64_t first = job.running->hash;
  job.announce(2, {.against = first, .block = 1, .pairs = 8}, 1);
  job.announce(3, {}, 4);
  job.announce(4, {.against = first, .block = 1, .pairs = 8}, 6);
  EXPECT_EQ(job.epochs(0, 9), (Epochs{1, 2, 1, 1, 3, 3, 3, 3, 3}));
}

TEST(PlanAgreement, ATrialMayFollowATrialOfTheSamePlan) {
  OnTrial job;
  const uint64_t first = job.running->hash;
  job.announce(2, {.against = first, .block = 1, .pairs = 8}, 1);
  job.announce(3, {.against = first, .block = 1, .pairs = 1}, 4);
  EXPECT_EQ(job.epochs(0, 8), (Epochs{1, 2, 1, 1, 3, 1, 1, 1}));
}

TEST(PlanAgreement, ACommitEndsATrial) {
  OnTrial job;
  job.announce(2, {.against = job.running->hash, .block = 1, .pairs = 8}, 1);
  EXPECT_EQ(job.epochs(1, 2), Epochs{2});
  job.agreement.on_prepare(job.host.proposal(3));
  ASSERT_TRUE(job.agreement.on_decided({.epoch = 3, .switch_step = 2}).ok());
  EXPECT_EQ(job.agreement.on_trial(), nullptr);
  EXPECT_EQ(job.host.installed, 3u);
}

TEST(PlanAgreement, RefusesATrialOfNoSteps) {
  OnTrial job;
  Prepare proposal = job.host.proposal(2);
  Result<Plan> plan = decode_plan(proposal.plan);
  plan->trial = {.against = 7, .block = 0, .pairs = 3};
  proposal.plan = encode_plan(*plan);
  job.agreement.on_prepare(proposal);
  ASSERT_EQ(job.host.answers.size(), 1u);
  EXPECT_EQ(job.host.answers[0].code, StatusCode::kINVALID_ARGUMENT) << job.host.answers[0].text;
}

}  // namespace
}  // namespace cgx::scheduler
