// What somebody wants a plan for, and how it becomes a plan with all that follows from it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/exchange/plan_facts.h"
#include "scheduler/plan/plan_origin.h"

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
  PlanOrigin origin;  // whoever asks takes it out

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
  std::shared_ptr<const TensorTable> residual_table;  // null: there are none
  std::vector<bool> has_residual;                     // by tensor of that table
  uint64_t bytes_free = 0;
};

// Answers a question in steps, between which whoever asks may do something else: which rules hold
// for which names, some names each time, the plan, then its residuals' memory, which may take
// seconds, a slice each time.
class FactsMaker {
 public:
  // What a step makes at most, and a bit: what a residual touches at once.
  static constexpr uint64_t kSliceBytes = 2 << 20;

  explicit FactsMaker(PlanQuestion question) : question_(std::move(question)) {}

  bool work();  // one step; true: done
  bool ranks_wait() const { return question_.ranks_wait; }
  uint64_t slice_bytes() const { return slice_bytes_; }  // that the last step made
  Result<FactsPtr> facts() const;                        // once it is done

 private:
  Status decide();
  Status match();
  Status plan();
  void find_lacking();
  Status make_slice();
  Status finish();

  PlanQuestion question_;
  std::optional<DecisionsMaker> matching_;
  DecisionsPtr decisions_;
  bool decided_ = false;
  std::shared_ptr<PlanFacts> facts_;
  std::vector<uint32_t> lacking_;           // tensors, the next one last
  uint64_t lacking_bytes_ = 0;              // of all that were
  std::shared_ptr<SiteResidual> residual_;  // of the last of those, half made
  uint64_t slice_bytes_ = 0;
  Status status_;
};

Result<FactsPtr> make_facts(const PlanQuestion& question);

}  // namespace cgx::scheduler
