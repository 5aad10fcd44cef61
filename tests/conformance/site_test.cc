// The rigs: every site that promises what site.h says.
#include "daemon/data/pooled_site.h"
#include "scheduler/sim/costed_site.h"
#include "tests/conformance/site_suite.h"
#include "tests/sim/slow_site.h"

namespace cgx::scheduler {
namespace {

using Now = std::function<uint64_t()>;

std::unique_ptr<Site> host(std::unique_ptr<Site> site, Now) {
  return site;
}

std::unique_ptr<Site> priced(std::unique_ptr<Site> site, Now now_ns) {
  return std::make_unique<cgx::sim::SlowSite>(
      std::move(site),
      cgx::sim::SlowSiteOptions{.takes_ns = cgx::sim::price_ns, .consumes = true, .one_core = true},
      std::move(now_ns));
}

// The later asked, the earlier answered.
std::unique_ptr<Site> late(std::unique_ptr<Site> site, Now now_ns) {
  const auto takes_ns = [left = int64_t{40}](const auto&, const auto&) mutable {
    return --left * 100'000'000;
  };
  return std::make_unique<cgx::sim::SlowSite>(
      std::move(site), cgx::sim::SlowSiteOptions{.takes_ns = takes_ns}, std::move(now_ns));
}

std::unique_ptr<Site> pooled(std::unique_ptr<Site> site, Now) {
  std::unique_ptr<Site> twin = site->twin();
  return std::make_unique<daemon::PooledSite>(std::move(site), std::move(twin));
}

// With a lane for itself, which in a cluster is its machine's.
class CostedAlone final : public Site, private Clock {
 public:
  explicit CostedAlone(Now now) : now_(std::move(now)) {}

  bool consumes_inside() const override { return site_.consumes_inside(); }
  bool reads_frames() const override { return site_.reads_frames(); }
  std::unique_ptr<SiteOperation> begin(const OperationSetup& setup) override {
    return site_.begin(setup);
  }
  ResidualMaker residual_maker() const override { return site_.residual_maker(); }
  int poll(SiteEvents& events, uint64_t now_ns) override {
    lane_.advance(now_ns);
    return site_.poll(events, now_ns);
  }
  uint64_t next_answer_ns() const override {
    return std::min(lane_.next_ns(), site_.next_answer_ns());
  }

 private:
  uint64_t now_ns() const override { return now_(); }

  const Now now_;
  const MachineCosts costs_{.codecs = {{{.codec = 3, .bits = 4, .bucket = 512}, {0, 1}, {0, 1}}},
                            .operation_ns = 1000};
  sim::DaemonLane lane_;
  sim::CostedSite site_{costs_, lane_, *this};
};

std::unique_ptr<Site> costed(std::unique_ptr<Site>, Now now_ns) {
  return std::make_unique<CostedAlone>(std::move(now_ns));
}

INSTANTIATE_TEST_SUITE_P(Every, SiteConformance,
                         ::testing::Values(SiteRig{"Host", host}, SiteRig{"Priced", priced},
                                           SiteRig{"Late", late}, SiteRig{"Pooled", pooled},
                                           SiteRig{"Costed", costed}),
                         rig_name);

}  // namespace
}  // namespace cgx::scheduler
