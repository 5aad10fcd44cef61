#include "scheduler/communicator/view.h"

#include <gtest/gtest.h>

#include "scheduler/communicator/members.h"

namespace cgx::scheduler {
namespace {

TEST(View, StaysWhatItWasWhenItsTermBegan) {
  Members members;
  members.name = "world";
  members.job = "job";
  members.machine = 1;
  members.machine_of_rank = {0, 1, 1};
  members.lowest_rank = {0, 1};
  members.addresses = {"a", "b"};
  members.devices.resize(2);
  members.local = {{.rank = 1, .session = {}}, {.rank = 2, .session = {}}};
  const ViewPtr view = members.view_of(4);
  members.addresses[1] = "elsewhere";
  members.machine_of_rank.pop_back();
  members.local.clear();
  EXPECT_EQ(view->term, 4u);
  EXPECT_EQ(view->ranks(), 3u);
  EXPECT_EQ(view->machines(), 2u);
  EXPECT_FALSE(view->coordinator());
  EXPECT_EQ(view->machine_name(1), "machine 1 (b) with ranks 1, 2");
  EXPECT_EQ(view->title(), "communicator 'world' of job 'job'");
  EXPECT_EQ(members.ranks(), 2u);
}

TEST(View, SaysHowManyMachinesEachDaemonIs) {
  const auto each = [](const std::vector<uint8_t>& daemons) {
    View view;
    view.lowest_rank.resize(daemons.size());
    for (const uint8_t daemon : daemons) view.instances.push_back({daemon});
    return view.sites_each();
  };
  EXPECT_EQ(each({1, 1, 2, 2, 3, 3}), 2u);
  EXPECT_EQ(each({1, 1, 1, 2, 2, 2}), 3u);
  EXPECT_EQ(each({1, 1}), 2u);
  EXPECT_EQ(each({1, 2, 3}), 0u) << "no daemon has several";
  EXPECT_EQ(each({1, 1, 2}), 0u) << "not as many everywhere";
  EXPECT_EQ(each({1, 1, 2, 2, 2, 2}), 0u) << "not as many everywhere";
  EXPECT_EQ(each({1, 2, 1, 2}), 0u) << "they do not stand beside each other";
}

}  // namespace
}  // namespace cgx::scheduler
