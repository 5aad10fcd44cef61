// The agreement with messages that overtake each other: large ones take another path than small
// ones, so what became of a proposal may arrive before it.
#include "scheduler/plan_agreement.h"

#include <gtest/gtest.h>

#include "scheduler/planner.h"

namespace cgx::scheduler {
namespace {

class Member final : public PlanAgreement::Host {
 public:
  void send_control(uint32_t, const ControlMessage& message) override {
    answers.push_back(std::get<Prepared>(message));
  }
  Result<PlanAgreement::PlanPtr> prepare_plan(PlanPurpose, const Plan& plan,
                                              const Policy& policy) override {
    return PreparedPlan::create({.plan = plan,
                                 .policy = policy,
                                 .table = table,
                                 .machine = 1,
                                 .machines = 3,
                                 .pool = &pool,
                                 .bytes_free = UINT64_MAX});
  }
  uint64_t now_ns() const override { return 5; }
  uint64_t next_switch_step() const override { return 0; }
  void install_committed(const PlanAgreement::PlanPtr& plan, uint64_t) override {
    installed = plan->plan.epoch;
  }
  void count(Counter, uint64_t) override {}

  Prepare proposal(uint64_t epoch) const {
    const std::vector<uint32_t> order = reverse_registration(table->size());
    const Result<Plan> plan = make_plan({*table, {}, 1, epoch, order});
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    return {PlanPurpose::kCommit, 0, {}, encode_plan(*plan)};
  }

  BufferPool pool{1024 * 1024};
  std::shared_ptr<const TensorTable> table =
      std::make_shared<TensorTable>(TensorTable{{.name = "weight", .elements = 4096}});
  Members members{.lowest_rank = {0, 1, 2}};
  std::vector<Prepared> answers;
  uint64_t installed = 0;
};

Decided dropped(uint64_t epoch) {
  return {.epoch = epoch, .code = StatusCode::kRESOURCE_EXHAUSTED, .text = "machine 2 refuses"};
}

TEST(PlanAgreement, ForgetsAProposalThatWasDroppedBeforeItArrived) {
  Member host;
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

TEST(PlanAgreement, KeepsTheNewerOfTwoProposalsWhateverComesLast) {
  Member host;
  PlanAgreement agreement(host.members, host);
  agreement.on_prepare(host.proposal(4));
  agreement.on_prepare(host.proposal(3));
  ASSERT_TRUE(agreement.on_decided(dropped(3)).ok());
  ASSERT_TRUE(agreement.on_decided({.epoch = 4}).ok());
  EXPECT_EQ(host.installed, 4u);
}

TEST(PlanAgreement, RefusesADecisionForWhatWasNeverPrepared) {
  Member host;
  PlanAgreement agreement(host.members, host);
  const Status status = agreement.on_decided({.epoch = 7});
  EXPECT_EQ(status.code(), protocol_error("").code());
  EXPECT_NE(status.message().find("epoch 7"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace cgx::scheduler
