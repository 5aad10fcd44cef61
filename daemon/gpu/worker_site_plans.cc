// WorkerSite, before a plan runs: what of it a worker takes, and what is made there for it.
#include <algorithm>

#include "daemon/gpu/worker_site.h"
#include "kernels/cuda/cuda_lane.h"

namespace cgx::daemon::gpu {
namespace {

// One of each row; the raw one's kernels are there since the worker has begun.
std::vector<CodecSpec> codecs_of(const scheduler::Plan& plan) {
  std::vector<CodecSpec> codecs;
  const auto add = [&](const CodecSpec& spec) {
    const bool known = std::any_of(codecs.begin(), codecs.end(), [&](const CodecSpec& each) {
      return each.codec == spec.codec && each.bits == spec.bits;
    });
    if (spec.codec != 0 && !known) codecs.push_back(spec);
  };
  for (const scheduler::Group& group : plan.groups) {
    for (const scheduler::Segment& segment : group.segments) {
      add(segment.spec);
      add(segment.codec(/*in_rack=*/true));
    }
  }
  return codecs;
}

Status make_ready_to_encode(Worker& worker, const scheduler::PlanFacts& facts) {
  const scheduler::JobNeeds& needs = facts.needs;
  if (needs.sparse_buckets > 0) {
    CGX_RETURN_IF_ERROR(
        worker.reserve_work(static_cast<uint32_t>(needs.sparse_buckets), needs.sparse_bytes));
  }
  // To load kernels a driver waits for all streams, and may compile them first: not in a step.
  for (const CodecSpec& each : codecs_of(facts.plan)) {
    CGX_RETURN_IF_ERROR(worker.load_kernels(each));
  }
  return {};
}

}  // namespace

scheduler::SitePreparer WorkerSite::preparer() const {
  return [worker = worker_, slabs = slabs_](const scheduler::PlanFacts& facts) -> Status {
    if (facts.plan.machines > 1) CGX_RETURN_IF_ERROR(make_ready_to_encode(*worker, facts));
    CGX_ASSIGN_OR_RETURN(facts.made->frames,
                         scheduler::SlabStore::promise(slabs, facts.slabs.sum()));
    return {};
  };
}

Status WorkerSite::takes(const CodecSpec& spec, DType dtype) const {
  const kernels::CodecRow* const row = kernels::find_codec(spec.codec);
  const bool takes_type = dtype_is_small_float(dtype) || spec.codec == 0;
  if (takes_type && row != nullptr) return {};
  return {StatusCode::kUNIMPLEMENTED, std::string(dtype_name(dtype)) + " with " +
                                          kernels::to_string(spec) +
                                          " has no kernels for tensors that a GPU worker reduces"};
}

// As one job lists all of them (worker_site.cc), and as the worker makes tables of them
// (job_runner.cc), where each contribution may come with a rack's codec.
Status WorkerSite::fits(const scheduler::JobLists& lists) const {
  constexpr uint64_t kStrengthsMax = 64;
  const uint64_t message =
      sizeof(JobHead) + kStrengthsMax * sizeof(CodecSpec) +
      lists.slices * (sizeof(SliceHead) + 2 * lists.ranks * sizeof(DevicePlace) +
                      lists.contributions * sizeof(Staged));
  constexpr uint64_t kLine = 16;
  constexpr uint64_t kOfContribution = sizeof(kernels::Contribution) + 2 * kLine +
                                       sizeof(kernels::cuda::Segment<kernels::DecodeJob>) + kLine;
  const uint64_t tables = lists.slices * (sizeof(kernels::cuda::Segment<kernels::ReduceJob>) +
                                          kLine + 2 * (lists.ranks * sizeof(void*) + kLine) +
                                          lists.contributions * kOfContribution);
  if (message <= worker_->jobs().longest() && tables <= kTableBytes) return {};
  return resource_exhausted("a part of " + std::to_string(lists.slices) + " tensors takes " +
                            std::to_string(message) + " bytes of places and up to " +
                            std::to_string(tables) + " of tables, a GPU's worker has room for " +
                            std::to_string(worker_->jobs().longest()) + " and " +
                            std::to_string(kTableBytes));
}

}  // namespace cgx::daemon::gpu
