// What somebody wants a plan for, and how it becomes a plan with all that follows from it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "scheduler/exchange/plan_facts.h"

namespace cgx::scheduler {

// What somebody wants a plan for, with all that an answer needs: it may be answered on any thread.
struct PlanQuestion {
  std::shared_ptr<const TensorTable> table;
  Policy policy;
  uint64_t epoch = 0;
  // Which plan: one another machine has made, or, where that is empty, one to be made.
  std::vector<std::byte> encoded_plan;
  uint64_t policy_version = 0;
  std::vector<uint32_t> order;      // tensor indices in the order they are expected to arrive
  std::vector<Group> groups;        // that somebody has chosen; empty: as the policy says
  std::vector<CodecSpec> ceilings;  // by tensor; empty: the policy's codec for all
  bool under_new_ceilings = false;  // groups: what is compressed by default takes its ceiling
  DecisionsPtr decisions;           // of the same table, if somebody has matched its names
  Trial trial;

  uint32_t machine = 0, machines = 1;
  uint32_t sites_each = 0;      // machines that share a daemon (View)
  uint64_t slab_bytes = 0;      // a frame must fit
  bool site_consumes = true;    // Site::consumes_inside()
  uint32_t decoded_pieces = 0;  // Site::decoded_pieces()
  bool ranks_wait = false;      // a commit: goes before what operators ask
  bool dry_run = false;         // it will not run

  uint32_t local_ranks = 0;  // of a new table: ledgers for so many are made, too
  // The message that asks other machines to prepare it.
  std::function<std::vector<std::byte>(const PlanFacts&)> message;

  // What is there for residuals; without a maker memory is made when the plan takes force.
  ResidualMaker make_residual;
  SitePreparer prepare_site;                          // Site::preparer()
  bool residuals_elsewhere = false;                   // Site::residuals_elsewhere()
  std::function<void(uint64_t bytes)> made_memory;    // told of each slice; whoever plans may rest
  std::shared_ptr<const TensorTable> residual_table;  // null: there are none
  std::vector<bool> has_residual;                     // by tensor of that table
  uint64_t bytes_free = 0;
};
Result<FactsPtr> make_facts(const PlanQuestion& question);

}  // namespace cgx::scheduler
