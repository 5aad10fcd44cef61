// The site of a machine's host ranks: arithmetic on the calling thread, each job answered at once.
#pragma once

#include <memory>

#include "kernels/codec.h"
#include "scheduler/site.h"

namespace cgx::scheduler {

class HostSite final : public Site {
 public:
  // Whatever a job names lies in these.
  HostSite(const kernels::Lane& lane, const ArenaTable& arenas, const SlabStore& slabs)
      : lane_(lane), arenas_(arenas), slabs_(slabs) {}

  bool consumes_inside() const override { return true; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override;
  std::unique_ptr<SiteResidual> make_residual(uint64_t elements) override;

 private:
  const kernels::Lane& lane_;
  const ArenaTable& arenas_;
  const SlabStore& slabs_;
};

}  // namespace cgx::scheduler
