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
  // By machine, what came with the rack's codec: its values, and where they lie.
  std::vector<std::vector<float>> decoded;
  std::vector<const void*> values;
  std::vector<std::byte> encoded;  // losses that are measured: what comes of it
  std::vector<float> lost;
};

class HostSite final : public Site {
 public:
  // Whatever a job names lies in these.
  HostSite(const kernels::Lane& lane, const ArenaTable& arenas, const SlabStore& slabs)
      : lane_(lane), arenas_(arenas), slabs_(slabs) {}

  bool consumes_inside() const override { return true; }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override;
  ResidualMaker residual_maker() const override;
  std::unique_ptr<Site> twin() const override {
    return std::make_unique<HostSite>(lane_, arenas_, slabs_);
  }

 private:
  const kernels::Lane& lane_;
  const ArenaTable& arenas_;
  const SlabStore& slabs_;
  HostScratch scratch_;
};

}  // namespace cgx::scheduler
