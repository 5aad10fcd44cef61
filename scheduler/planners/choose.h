// The planner `choose`: a codec for every tensor and a way for every group, after ByteComp. Looks
// at far fewer plans than there are, so its answer is the best of what it looked at; unlike
// `boundaries` it may mix codecs in a group.
//
//   starts   every uniform codec x way x size of groups, and the policy's own plan: the best of all
//            is never worse than these
//   order    largest tensor first, of equals the one that arrives last; tensors before a bubble of
//            the link (a pause because nothing was ready) are left out: sending them faster gains
//            nothing
//   descent  codecs one tensor at a time, then ways, merging and moving of boundaries, as long as
//            something gets better; no group has more segments than a policy's may have
//   answer   of all plans within `tolerance` of the best the one with the least of the daemon's
//            work, then the one with fewer groups, as `boundaries` has it
//
// Which raw and coded ways there are comes from the decision tree (scheduler/planners/choices.h);
// ceilings are those of scheduler/planners/proposal.h. Owned by one thread; a search goes on where
// it stopped.
#pragma once

#include <memory>

#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {

class Choose {
 public:
  // REQUIRES: what `question` refers to outlives the search.
  static Result<Choose> create(const PlannerQuestion& question);
  Choose(Choose&&) noexcept;
  ~Choose();

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  Proposal proposal() const;  // the best so far

 private:
  struct Search;
  explicit Choose(std::unique_ptr<Search> search);
  std::unique_ptr<Search> search_;
};

}  // namespace cgx::scheduler
