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

}  // namespace
}  // namespace cgx::scheduler
