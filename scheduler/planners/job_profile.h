// What was measured of a job and fitted to it, as a search for plans goes by it: steps, when
// gradients are there, what the daemon's work takes here, the link. Asked by operators; decides
// nothing.
//
// Owned by one thread; goes on where it stopped.
#pragma once

#include <optional>
#include <utility>

#include "scheduler/planners/fit.h"

namespace cgx::scheduler {

struct JobProfile {
  StepSample step;                             // a usual one
  std::vector<CodecSpec> menu;                 // what plans are made of, and what runs
  std::shared_ptr<const TensorTable> tensors;  // as step.arrival_ns
  Fit fit;
  uint32_t others_heard = 0;  // machines; the fit is of what the slowest takes
  std::string left_out = {};  // as SurveyQuestion's
  uint32_t others_seen = 0;   // plans beside the one that runs, from the same minutes
};

class ProfileSearch {
 public:
  // REQUIRES: question.running and question.costs. NOT_FOUND, here or as the answer, names a codec
  // without costs.
  static Result<ProfileSearch> create(const SurveyQuestion& question);

  // Goes on for about so many evaluations of a group; true: done.
  bool work(uint64_t evaluations);
  const Result<JobProfile>& answer() const { return *found_; }  // REQUIRES: done

 private:
  ProfileSearch(JobProfile profile, FitSearch fitting)
      : profile_(std::move(profile)), fitting_(std::move(fitting)) {}

  JobProfile profile_;
  FitSearch fitting_;
  std::optional<Result<JobProfile>> found_;
};

}  // namespace cgx::scheduler
