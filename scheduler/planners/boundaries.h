// The planner `boundaries`: where groups end, and the codec and the way of each, so that the
// timeline's step is shortest. Exact: dynamic programming over boundaries. What is known of the
// first k tensors is a set of lane states of which none is nowhere later than another; each is
// extended by every next group and every option.
//
//   option := {level of the menu} x {scatter, allgather}
//
// The policy is the ceiling. Tensors that a rule, their size or their type decided keep their
// codec; the others take the policy's, or one of the menu that sends more bytes; a collective that
// the policy names is kept. Gradients that arrive at once stay together, up to the policy's
// group_bytes. Among plans within `tolerance` of the shortest step the one with the least of the
// daemon's work wins, then the one with fewer groups.
//
// Owned by one thread; a search is a value that goes on where it stopped.
#pragma once

#include <memory>

#include "scheduler/planners/proposal.h"

namespace cgx::scheduler {

class Boundaries {
 public:
  // REQUIRES: what `question` refers to outlives the search. An error: no plan follows from the
  // policy, or a codec has no cost.
  static Result<Boundaries> create(const PlannerQuestion& question);
  Boundaries(Boundaries&&) noexcept;
  ~Boundaries();

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  Proposal proposal() const;  // REQUIRES: done

 private:
  struct Search;
  explicit Boundaries(std::unique_ptr<Search> search);
  std::unique_ptr<Search> search_;
};

}  // namespace cgx::scheduler
