// The promises of scheduler/exchange/site.h, checked on every site. A rig wraps the inline host
// site, and lets time pass; INSTANTIATE_TEST_SUITE_P lists the rigs (site_test.cc).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "scheduler/exchange/host_site.h"

namespace cgx::scheduler {

struct SiteRig {
  const char* name;
  std::unique_ptr<Site> (*wrap)(std::unique_ptr<Site> host, std::function<uint64_t()> now_ns);
};

inline void PrintTo(const SiteRig& rig, std::ostream* out) {
  *out << rig.name;
}

inline std::string rig_name(const ::testing::TestParamInfo<SiteRig>& info) {
  return info.param.name;
}

// Machine 0 of two, with one local rank and one tensor.
class SiteConformance : public ::testing::TestWithParam<SiteRig>, public SiteEvents {
 protected:
  static constexpr uint64_t kElements = 300'000;

  SiteConformance();

  void site_answered(Ticket ticket, const SiteAnswer& answer) override;
  // Of an operation over the tensor with this codec; the residual is used if the codec has
  // feedback.
  OperationSetup setup(const CodecSpec& spec, SiteResidual* residual = nullptr);
  // Asks and, if need be, waits.
  SiteAnswer run(SiteOperation& work, const SiteJob& job);
  Ticket ask(SiteOperation& work, const SiteJob& job);
  // For each part of the other machine's shard, encoded.
  std::vector<Ticket> ask_for_all(SiteOperation& work, const OperationSetup& about);
  bool wait_for(Ticket ticket, uint64_t limit_ns);
  SlabId slab();
  uint32_t theirs() const {
    return layouts_.back()->shard(1).first;
  }  // a part of the other's shard
  std::vector<std::byte> written(SlabId slab, const SiteAnswer& answer) const;
  void set_gradient(const std::function<float(uint64_t)>& value);  // by element
  // What is measured while the other machine's shard is encoded.
  std::vector<LossSample> losses_of(const OperationSetup& about);
  static uint64_t elements_of(const OperationSetup& about, uint32_t machine);  // its shard

  uint64_t now_ns_ = 1'000;
  bool asking_ = false;
  Ticket last_ticket_ = 0;
  std::map<Ticket, SiteAnswer> answers_;
  TensorTable table_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<GroupLayout>> layouts_;
  std::vector<float> values_;
  ArenaTable arenas_;
  ArenaId arena_;
  std::shared_ptr<SlabStore> slabs_ = std::make_shared<SlabStore>(256 * 1024);
  std::shared_ptr<SlabCounts> in_use_ = std::make_shared<SlabCounts>();
  Presence all_{1, true};
  std::unique_ptr<Site> site_;
  HostSite reference_;
};

}  // namespace cgx::scheduler
