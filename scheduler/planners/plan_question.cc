#include "scheduler/planners/plan_question.h"

#include <algorithm>

#include "proto/wire/frame.h"
#include "scheduler/exchange/residuals.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/planner.h"
#include "scheduler/planners/proposal.h"

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
      if (segment.spec.bucket != spec.bucket) {  // pieces stay what they are, or are refused
        segment.first_bucket = segment.first_element() / spec.bucket;
        const bool to_the_end = segment.buckets == Segment::kToTheEnd;
        if (!to_the_end) segment.buckets = segment.buckets * segment.spec.bucket / spec.bucket;
      }
      segment.spec = spec;
    }
  }
  return groups;
}

// What was matched for another plan of this table may do. A plan that another machine has made
// runs without, and says no reasons.
Result<DecisionsPtr> decisions_of(const PlanQuestion& question) {
  const DecisionsPtr& known = question.decisions;
  if (known != nullptr && known->hold_for(question.policy)) return known;
  Result<DecisionsPtr> made = Decisions::create(question.policy, *question.table);
  const bool needed = question.encoded_plan.empty() || !strengths_of(question.policy).empty();
  return made.ok() || needed ? made : DecisionsPtr();
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

// Not more than there is room for: the plan is refused then, by who knows the limit.
Status make_residuals(const PlanQuestion& question, PlanFacts& facts) {
  if (!question.make_residual || question.dry_run) return {};
  const auto each = [&](const auto& act) {
    for_each_feedback(facts.plan, *question.table, [&](uint32_t tensor, const TensorDesc& what) {
      if (lacks(question, facts, tensor)) act(tensor, what);
    });
  };
  uint64_t bytes = 0;
  each([&](uint32_t, const TensorDesc& what) { bytes += Residuals::bytes_of(what); });
  if (bytes > question.bytes_free) {
    facts.made->not_made = bytes;
    facts.made->room = question.bytes_free;
    return {};
  }
  if (bytes == 0) return {};
  facts.made->residuals.resize(question.table->size());
  facts.made_bytes += bytes;
  Status why;
  each([&](uint32_t tensor, const TensorDesc& what) {
    if (!why.ok()) return;
    Result<std::shared_ptr<SiteResidual>> made = question.make_residual(what.elements);
    why = made.status();
    if (!made.ok()) return;
    while (const uint64_t slice = (*made)->touch()) {
      if (question.made_memory) question.made_memory(slice);
    }
    facts.made->residuals[tensor] = *std::move(made);
  });
  if (why.ok()) return {};
  return {why.code(), std::to_string(bytes) + " bytes of residuals: " + why.message()};
}

// Where there is no room, it is refused later, as above; a plan that will not run is reserved, too.
Status make_decoded(const PlanQuestion& question, PlanFacts& facts) {
  const uint64_t bytes = facts.decoded_bytes();
  if (bytes == 0 || bytes > question.bytes_free) return {};
  CGX_ASSIGN_OR_RETURN(facts.made->decoded, facts.make_decoded());
  facts.made_bytes += bytes;
  if (question.made_memory) question.made_memory(bytes);
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

Result<FactsPtr> make_facts(const PlanQuestion& question) {
  const auto facts = std::make_shared<PlanFacts>();
  CGX_ASSIGN_OR_RETURN(facts->decisions, decisions_of(question));
  CGX_ASSIGN_OR_RETURN(facts->plan, plan_of(question, facts->decisions));
  const TensorTable& table = *question.table;
  facts->policy = question.policy;
  facts->table = question.table;
  facts->encoded = encode_plan(facts->plan);
  facts->hash = wire::checksum(facts->encoded);
  facts->places.resize(table.size());
  for (const TensorDesc& tensor : table) facts->name_hashes.push_back(tensor.name_hash());

  CGX_RETURN_IF_ERROR(lay_out(question, *facts));
  facts->decoded_pieces = question.decoded_pieces;
  if (question.residual_table != nullptr && question.residual_table != question.table) {
    facts->residuals = renumber(question.residual_table, table);
  }
  facts->residual_bytes = Residuals::bytes_needed(facts->plan, table);
  facts->made = std::make_shared<MadeMemory>();
  CGX_RETURN_IF_ERROR(make_residuals(question, *facts));
  CGX_RETURN_IF_ERROR(make_decoded(question, *facts));
  if (question.prepare_site && !question.dry_run) {
    CGX_RETURN_IF_ERROR(question.prepare_site(*facts));
  }
  make_tables(question, *facts);
  return FactsPtr(facts);
}

}  // namespace cgx::scheduler
