// A job played around a pilot: steps take what their plan says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/planners/pilot.h"
#include "scheduler/planners/plan_question.h"
#include "scheduler/planners/planner.h"

namespace cgx::scheduler {

inline constexpr CodecSpec kRawSpec{.codec = 0, .bucket = 512};
inline constexpr CodecSpec kEight{.codec = 3, .bits = 8, .bucket = 512};
inline constexpr CodecSpec kFour{
    .codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};

class PlayedJob : public PilotPort {
 public:
  PlayedJob() { take(make({}, {})); }

  // PilotPort
  bool may_propose() const override { return may; }
  void survey(Known known, Wanted until,
              std::function<void(const Result<SurveyPtr>&)> answer) override {
    const int noted = searches_noted();
    if (known.lost.empty() || noted != noted_before) ++searches;
    noted_before = noted;
    counts_as_fast = known.faster;
    seen = known.seen;
    if (!survey_status.ok()) return answer(survey_status);
    wanted = until;
    if (surveys_take_long) return;
    auto made = std::make_shared<Survey>();
    made->running_ns = period_of(*base);
    made->running_bytes = bytes_of(running());
    made->trials_max = trials_max;
    for (const CodecSpec& spec : menu) {
      const auto lost = [&](const auto& groups) { return groups[0].segments[0].spec == spec; };
      if (spec == running() || std::any_of(known.lost.begin(), known.lost.end(), lost)) continue;
      if (predicted(spec) > (spec == kRawSpec ? 1.5 : 1.1) * made->running_ns) continue;
      made->candidates.push_back({.name = spec == kFour    ? "four"
                                          : spec == kEight ? "eight"
                                                           : "raw",
                                  .groups = groups_of(spec),
                                  .step_ns = predicted(spec),
                                  .sent_bytes = bytes_of(spec),
                                  .bypass = spec == kRawSpec});
    }
    std::sort(made->candidates.begin(), made->candidates.end(),
              [](const auto& one, const auto& other) { return one.step_ns < other.step_ns; });
    answer(SurveyPtr(made));
  }
  void propose(std::vector<Group> groups, const Trial& trial,
               std::function<void(const Result<Agreed>&)> answer) override {
    ++proposals;
    if (!refusal.ok()) return answer(std::exchange(refusal, {}));
    if (!trial.on() && never_adopts) return answer(Status(StatusCode::kTIMED_OUT, "no answer"));
    if (plans_held() >= plans_most) {
      return answer(Status(StatusCode::kRESOURCE_EXHAUSTED, "no room for another plan"));
    }
    next = Agreed{make(std::move(groups), trial), step + 2};
    answer(*next);
  }
  void report(const PlanNote& note) override { reported.push_back(note); }

  // One step; its plan follows from what was agreed, as PlanAgreement has it.
  void play_step() {
    if (next && step >= next->first_step) {
      const Agreed taken = *std::exchange(next, std::nullopt);
      trial.reset();
      if (taken.plan->plan.trial.on()) {
        trial = taken;
      } else {
        base = taken.plan;
      }
    }
    const bool trying = trial && trial->plan->plan.trial.tries(step - trial->first_step);
    const PreparedPlan& plan = trying ? *trial->plan : *base;
    StepSample sample;
    sample.step = step;
    sample.epoch = plan.plan.epoch;
    sample.step_ns = load * period_of(plan) * (trial ? while_plans_alternate : 1);
    if (pause_ns > 0) sample.step_ns += 0.01 * static_cast<double>(step % 6);  // none is as another
    sample.period_ns =
        sample.step_ns + between_ns + (step % pauses_every == pauses_at ? pause_ns : 0);
    sample.arithmetic_ns = load * arithmetic_ns;
    sample.answer_ns_per_byte = answer_ns_per_byte;
    total_ns += sample.period_ns;
    extra_ns += load * (period_of(plan) - period_of(*base));
    pilot.completed(base, sample, true);
    ++step;
    if (trial && step >= trial->first_step + trial->plan->plan.trial.steps()) trial.reset();
    pilot.work(base);
  }
  void play(int steps) {
    for (int i = 0; i < steps; ++i) play_step();
  }
  PlanPtr make(std::vector<Group> groups, const Trial& on_trial) {
    const auto facts = make_facts({.table = table,
                                   .policy = policy,
                                   .epoch = ++epoch,
                                   .policy_version = 1,
                                   .order = {0},
                                   .groups = std::move(groups),
                                   .trial = on_trial,
                                   .machines = 2,
                                   .slab_bytes = 256 * 1024});
    EXPECT_TRUE(facts.ok()) << facts.status().to_string();
    const auto prepared = PreparedPlan::create(*facts, pool, 0, UINT64_MAX);
    EXPECT_TRUE(prepared.ok());
    made.push_back(*prepared);
    return *prepared;
  }
  void take(PlanPtr plan) { base = std::move(plan); }
  static std::vector<Group> groups_of(const CodecSpec& spec) {
    return {Group{.segments = {{0, spec}}, .way = {}}};
  }
  static uint64_t bytes_of(const CodecSpec& spec) {
    return spec == kFour ? 4'000 : spec == kEight ? 8'000 : 32'000;
  }
  static CodecSpec codec_of(const PreparedPlan& plan) { return plan.spec_of(0); }
  double period_of(const PreparedPlan& plan) const { return truth(codec_of(plan)); }
  CodecSpec running() const { return codec_of(*base); }
  int plans_held() const {
    return static_cast<int>(
        std::count_if(made.begin(), made.end(), [](const auto& plan) { return !plan.expired(); }));
  }
  void take_times(double raw, double compressed) {
    truth = predicted = [=](const CodecSpec& spec) { return spec == kRawSpec ? raw : compressed; };
  }
  int searches_noted() const {
    return static_cast<int>(std::count_if(reported.begin(), reported.end(),
                                          [](const auto& note) { return note.name == "search"; }));
  }
  std::string verdicts() const {
    std::string text;
    for (const PlanNote& note : reported) text += note.name + ": " + note.verdict + "; ";
    return text;
  }

  std::shared_ptr<const TensorTable> table = std::make_shared<TensorTable>(
      TensorTable{{.name = "weight", .elements = 1 << 16, .shape = {256, 256}}});
  Policy policy = [] {
    Policy policy;
    policy.mode = PlanMode::kAuto;
    return policy;
  }();
  BufferPool pool{1024 * 1024};
  uint64_t epoch = 0, step = 0;
  double total_ns = 0;
  double extra_ns = 0;  // of steps under plans on trial, beyond the plan beside them
  double load = 1, arithmetic_ns = 10, answer_ns_per_byte = 0;  // of every step
  uint64_t pauses_at = 0, pauses_every = 6;                     // steps
  double pause_ns = 0;                                          // of the trainer, before it
  double between_ns = 0;                                        // steps, the trainer computes
  double while_plans_alternate = 1;                             // a step takes so much longer
  bool counts_as_fast = false;                                  // said to the last survey
  std::vector<SeenPlan> seen;                                   // likewise
  PlanPtr base;
  std::optional<Agreed> next, trial;
  std::vector<std::weak_ptr<const PreparedPlan>> made;
  int plans_most = INT_MAX;  // there is memory for
  uint32_t trials_max = Survey().trials_max;
  bool never_adopts = false;  // each plan beside a trial is refused
  bool may = true;
  bool surveys_take_long = false;  // nobody hears of them
  Wanted wanted;                   // the last survey is
  Status survey_status, refusal;
  std::vector<CodecSpec> menu = {kFour, kEight, kRawSpec};
  std::function<double(const CodecSpec&)> truth = [](const CodecSpec& spec) {
    return spec == kFour ? 30.0 : spec == kEight ? 50.0 : 100.0;
  };
  std::function<double(const CodecSpec&)> predicted = truth;
  int searches = 0, proposals = 0, noted_before = 0;
  std::vector<PlanNote> reported;
  Pilot pilot{*this, {}};
};

}  // namespace cgx::scheduler
