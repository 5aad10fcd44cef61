// The site of a machine's host ranks: arithmetic on the calling thread, each job answered at once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "scheduler/exchange/site.h"

namespace cgx::scheduler {

// What one job needs and the next one finds there again.
struct HostScratch {
  std::vector<const void*> inputs;
  std::vector<void*> targets;
  std::vector<kernels::Contribution> contributions;
  std::vector<std::span<const std::byte>> rest;  // by machine, what is left of its frame
  std::vector<const void*> values;               // by machine, where those of the rack's codec lie
  std::vector<std::byte> encoded;                // losses that are measured: what comes of it
  std::vector<float> lost;
};

class HostSite final : public Site {
 public:
  // Whatever a job names lies in these. `piece`: which of a plan's decoded memory is this site's.
  HostSite(const kernels::Lane& lane, const ArenaTable& arenas, const SlabStore& slabs,
           uint32_t piece = 0)
      : lane_(lane), arenas_(arenas), slabs_(slabs), piece_(piece) {}

  bool consumes_inside() const override { return true; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override;
  ResidualMaker residual_maker() const override;
  uint32_t decoded_pieces() const override { return 1; }
  std::unique_ptr<Site> twin() const override {
    return std::make_unique<HostSite>(lane_, arenas_, slabs_, piece_ + 1);
  }

 private:
  const kernels::Lane& lane_;
  const ArenaTable& arenas_;
  const SlabStore& slabs_;
  const uint32_t piece_;
  HostScratch scratch_;
};

}  // namespace cgx::scheduler
