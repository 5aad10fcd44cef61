#include "scheduler/planners/plan_question.h"

#include <algorithm>
#include <utility>

#include "proto/wire/frame.h"
#include "scheduler/exchange/residuals.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/planner.h"
#include "scheduler/planners/proposal.h"
#include "scheduler/planners/sound_policy.h"

namespace cgx::scheduler {

namespace {

// A policy of mode auto is where a search begins: nothing is compressed that a rule does not
// compress; one that raises its share, at the weakest.
Policy starting_policy(const Policy& policy) {
  Policy starting = policy;
  if (policy.mode == PlanMode::kAuto) {
    starting.default_codec = {.codec = 0, .bucket = 512};
  } else {
    starting.default_codec = starting_codec(policy);
  }
  return starting;
}

// Pieces of a cut tensor are counted in other buckets from then on: each border goes to the next
// bucket's, and a piece of which nothing is left goes.
void count_in_buckets_of(const CodecSpec& spec, Segment& segment, const TensorTable& table) {
  const uint64_t before = std::exchange(segment.spec, spec).bucket;
  if (before == spec.bucket) return;
  const auto border = [&](uint64_t bucket) {
    return (bucket * before + spec.bucket - 1) / spec.bucket;
  };
  const bool to_the_end = segment.buckets == Segment::kToTheEnd;
  const uint64_t end = to_the_end ? 0 : border(segment.first_bucket + segment.buckets);
  segment.first_bucket = border(segment.first_bucket);
  if (to_the_end) return;
  segment.buckets = end - segment.first_bucket;
  segment.buckets = bucket_count(segment, table);  // the last one may not have been full
}

// The groups with the ceiling of each tensor, where the policy's default decides and it is
// compressed at all. Where nobody searches ceilings a tensor keeps what is weaker than its own.
std::vector<Group> groups_under_ceilings(const PlanQuestion& question, const Decisions& decisions) {
  std::vector<Group> groups = question.groups;
  for (Group& group : groups) {
    for (Segment& segment : group.segments) {
      if (!decisions.by_default(segment.tensor) || segment.spec.codec == 0) continue;
      const CodecSpec& ceiling = question.ceilings[segment.tensor];
      const bool searched = question.policy.ceilings != CeilingPlanner::kpolicy;
      const CodecSpec spec = searched ? ceiling : weaker_of(segment.spec, ceiling);
      count_in_buckets_of(spec, segment, *question.table);
    }
    std::erase_if(group.segments, [](const Segment& segment) { return segment.buckets == 0; });
  }
  std::erase_if(groups, [](const Group& group) { return group.segments.empty(); });
  return groups;
}

Result<Plan> new_plan(const PlanQuestion& question, const Decisions& decisions) {
  const Policy policy = starting_policy(question.policy);
  PlanInputs inputs{*question.table,    policy,         question.policy_version,
                    question.epoch,     question.order, question.machines,
                    question.slab_bytes};
  inputs.decisions = &decisions;
  inputs.sites_each = question.sites_each;
  if (policy.mode != PlanMode::kAuto) inputs.ceilings = question.ceilings;
  std::vector<Group> groups = question.groups;
  if (question.under_new_ceilings && !groups.empty()) {
    groups = groups_under_ceilings(question, decisions);
  }
  Result<Plan> plan = groups.empty() ? make_plan(inputs) : make_plan(inputs, std::move(groups));
  if (plan.ok()) plan->trial = question.trial;
  return plan;
}

Result<Plan> plan_of(const PlanQuestion& question, const DecisionsPtr& decisions) {
  if (question.encoded_plan.empty()) return new_plan(question, *decisions);
  CGX_ASSIGN_OR_RETURN(Plan plan, decode_plan(question.encoded_plan));
  if (plan.machines != question.machines) {
    return Status(StatusCode::kMISMATCH, "plan of epoch " + std::to_string(plan.epoch) +
                                             " was made for " + std::to_string(plan.machines) +
                                             " machines, here are " +
                                             std::to_string(question.machines));
  }
  CGX_RETURN_IF_ERROR(check_plan(plan, *question.table));
  return plan;
}

Status lay_out(const PlanQuestion& question, PlanFacts& facts) {
  FrameNeeds most;
  const std::vector<CodecSpec> strengths = strengths_of(facts.policy);
  for (uint32_t g = 0; g < facts.plan.groups.size(); ++g) {
    const Group& group = facts.plan.groups[g];
    for (uint32_t s = 0; s < group.segments.size(); ++s) {
      facts.places[group.segments[s].tensor].push_back({g, s});
      facts.lossy |= group.segments[s].spec.codec != 0;
    }
    const Setting setting{question.machine, question.machines, group.way};
    const GroupLayout& layout = facts.layouts.emplace_back(
        GroupLayout::create(group, *question.table, Schedule::shards(setting), facts.plan.limits));
    facts.needs.cover(job_needs(group, layout, question.machines));
    facts.needs.cover(loss_needs(strengths, layout));
    if (layout.part_bytes_max() > question.slab_bytes) {
      return resource_exhausted(
          "group " + std::to_string(g) + " of " + std::to_string(group.segments.size()) +
          " tensors needs frames of " + std::to_string(layout.part_bytes_max()) +
          " bytes, the limit is " + std::to_string(question.slab_bytes));
    }
    const Schedule& schedule = facts.schedules.emplace_back(Schedule::create(setting, layout));
    most.cover(frame_needs(schedule, question.site_consumes));
  }
  for (const auto& places : facts.places) {
    facts.segment_counts.push_back(static_cast<uint32_t>(places.size()));
  }
  const auto hears = [](const Schedule& schedule) { return schedule.hears(0); };
  facts.hears_coordinator = question.machine == 0 || facts.schedules.empty() ||
                            std::any_of(facts.schedules.begin(), facts.schedules.end(), hears);
  facts.slabs = slabs_for(most, facts.plan.window, question.machines);
  return {};
}

bool lacks(const PlanQuestion& question, const PlanFacts& facts, uint32_t tensor) {
  const TensorTable* const there = question.residual_table.get();
  if (there == nullptr) return true;
  const bool same = there == question.table.get();
  const uint32_t number = same ? tensor : facts.residuals.of[tensor];
  return number == Renumbering::kNone || !question.has_residual[number] ||
         (*there)[number].elements != (*question.table)[tensor].elements;
}

// Where there is no room, it is refused later, as above; a plan that will not run is reserved, too.
Status make_decoded(const PlanQuestion& question, PlanFacts& facts) {
  const uint64_t bytes = facts.decoded_bytes();
  if (bytes == 0 || bytes > question.bytes_free) return {};
  CGX_ASSIGN_OR_RETURN(facts.made->decoded, facts.make_decoded());
  facts.made_bytes += bytes;
  return {};
}

// What taking the plan into force would have to make.
void make_tables(const PlanQuestion& question, PlanFacts& facts) {
  if (question.message) {
    facts.made->message = std::make_shared<const std::vector<std::byte>>(question.message(facts));
  }
  if (question.dry_run) return;
  const auto tensors = static_cast<uint32_t>(question.table->size());
  const bool numbered = question.residual_table == question.table;
  if (facts.residual_bytes > 0 && !numbered) facts.made->slots.resize(tensors);
  if (question.local_ranks == 0) return;
  for (std::unique_ptr<StepLedger>& ledger : facts.made->ledgers) {
    ledger = std::make_unique<StepLedger>(0, question.local_ranks, tensors);
  }
}

}  // namespace

bool FactsMaker::work() {
  slice_bytes_ = 0;
  if (!decided_) {
    status_ = decide();
    if (status_.ok() && !decided_) return false;
  }
  if (status_.ok()) status_ = facts_ == nullptr ? plan() : make_slice();
  if (status_.ok() && !lacking_.empty()) return false;
  if (status_.ok()) status_ = finish();
  return true;
}

Result<FactsPtr> FactsMaker::facts() const {
  if (!status_.ok()) return status_;
  return FactsPtr(facts_);
}

// What was matched for another plan of this table may do. A plan that another machine has made
// runs without, and says no reasons.
Status FactsMaker::decide() {
  if (!matching_) CGX_RETURN_IF_ERROR(check_sound(question_.policy));
  const DecisionsPtr& known = question_.decisions;
  if (known != nullptr && known->hold_for(question_.policy)) {
    decisions_ = known;
    decided_ = true;
    return {};
  }
  const Status matched = match();
  decided_ |= !matched.ok();
  const bool needed = question_.encoded_plan.empty() || !strengths_of(question_.policy).empty();
  return needed ? matched : Status();
}

Status FactsMaker::match() {
  if (!matching_) {
    CGX_ASSIGN_OR_RETURN(DecisionsMaker begun,
                         DecisionsMaker::begin(question_.policy, *question_.table));
    matching_.emplace(std::move(begun));
  }
  CGX_ASSIGN_OR_RETURN(decided_, matching_->work(*question_.table));
  if (!decided_) return {};
  decisions_ = matching_->made();
  matching_.reset();
  return {};
}

Status FactsMaker::plan() {
  facts_ = std::make_shared<PlanFacts>();
  PlanFacts& facts = *facts_;
  facts.decisions = decisions_;
  CGX_ASSIGN_OR_RETURN(facts.plan, plan_of(question_, facts.decisions));
  const TensorTable& table = *question_.table;
  facts.policy = question_.policy;
  facts.table = question_.table;
  facts.encoded = encode_plan(facts.plan);
  facts.hash = wire::checksum(facts.encoded);
  facts.places.resize(table.size());
  for (const TensorDesc& tensor : table) facts.name_hashes.push_back(tensor.name_hash());

  CGX_RETURN_IF_ERROR(lay_out(question_, facts));
  facts.decoded_pieces = question_.decoded_pieces;
  if (question_.residual_table != nullptr && question_.residual_table != question_.table) {
    facts.residuals = renumber(question_.residual_table, table);
  }
  facts.residual_bytes = Residuals::bytes_needed(facts.plan, table);
  facts.made = std::make_shared<MadeMemory>();
  find_lacking();
  return {};
}

// Not more than there is room for: the plan is refused then, by who knows the limit.
void FactsMaker::find_lacking() {
  if (!question_.make_residual || question_.dry_run) return;
  for_each_feedback(facts_->plan, *question_.table, [&](uint32_t tensor, const TensorDesc& what) {
    if (!lacks(question_, *facts_, tensor)) return;
    lacking_.push_back(tensor);
    lacking_bytes_ += Residuals::bytes_of(what);
  });
  if (lacking_bytes_ > question_.bytes_free) {
    facts_->made->not_made = lacking_bytes_;
    facts_->made->room = question_.bytes_free;
    lacking_.clear();
    return;
  }
  if (lacking_.empty()) return;
  std::reverse(lacking_.begin(), lacking_.end());
  facts_->made->residuals.resize(question_.table->size());
  facts_->made_bytes += lacking_bytes_;
}

Status FactsMaker::make_slice() {
  while (!lacking_.empty() && slice_bytes_ < kSliceBytes) {
    const uint32_t tensor = lacking_.back();
    if (residual_ == nullptr) {
      auto made = question_.make_residual((*question_.table)[tensor].elements);
      if (!made.ok()) {
        return {made.status().code(),
                std::to_string(lacking_bytes_) + " bytes of residuals: " + made.status().message()};
      }
      residual_ = *std::move(made);
    }
    const uint64_t touched = residual_->touch();
    slice_bytes_ += touched;
    if (touched > 0) continue;
    facts_->made->residuals[tensor] = std::move(residual_);
    lacking_.pop_back();
  }
  return {};
}

Status FactsMaker::finish() {
  CGX_RETURN_IF_ERROR(make_decoded(question_, *facts_));
  if (question_.prepare_site && !question_.dry_run) {
    CGX_RETURN_IF_ERROR(question_.prepare_site(*facts_));
  }
  make_tables(question_, *facts_);
  return {};
}

Result<FactsPtr> make_facts(const PlanQuestion& question) {
  FactsMaker maker(question);
  while (!maker.work()) {
  }
  return maker.facts();
}

}  // namespace cgx::scheduler
