// The rigs: every site that promises what site.h says.
#include "daemon/data/pooled_site.h"
#include "tests/conformance/site_suite.h"
#include "tests/sim/slow_site.h"

namespace cgx::scheduler {
namespace {

using Now = std::function<uint64_t()>;

std::unique_ptr<Site> host(std::unique_ptr<Site> site, Now) {
  return site;
}

std::unique_ptr<Site> priced(std::unique_ptr<Site> site, Now now_ns) {
  return std::make_unique<sim::SlowSite>(
      std::move(site),
      sim::SlowSiteOptions{.takes_ns = sim::price_ns, .consumes = true, .one_core = true},
      std::move(now_ns));
}

// The later asked, the earlier answered.
std::unique_ptr<Site> late(std::unique_ptr<Site> site, Now now_ns) {
  const auto takes_ns = [left = int64_t{40}](const auto&, const auto&) mutable {
    return --left * 100'000'000;
  };
  return std::make_unique<sim::SlowSite>(
      std::move(site), sim::SlowSiteOptions{.takes_ns = takes_ns}, std::move(now_ns));
}

std::unique_ptr<Site> pooled(std::unique_ptr<Site> site, Now) {
  std::unique_ptr<Site> twin = site->twin();
  return std::make_unique<daemon::PooledSite>(std::move(site), std::move(twin));
}

INSTANTIATE_TEST_SUITE_P(Every, SiteConformance,
                         ::testing::Values(SiteRig{"Host", host}, SiteRig{"Priced", priced},
                                           SiteRig{"Late", late}, SiteRig{"Pooled", pooled}),
                         rig_name);

}  // namespace
}  // namespace cgx::scheduler
