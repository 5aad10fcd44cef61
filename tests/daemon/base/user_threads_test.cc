// One holder's tasks keep nobody else waiting, come one after another, and are done at last.
#include "daemon/base/user_threads.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <future>
#include <span>
#include <vector>

#include "daemon/base/open_files.h"
#include "daemon/net/packet_socket.h"
#include "tests/daemon/base/lingering.h"

namespace cgx::daemon {
namespace {

constexpr auto kLong = std::chrono::seconds(10);

TEST(UserThreadsTest, OneHoldersStuckTaskKeepsNobodyElseWaiting) {
  UserThreads users;
  std::promise<void> let_go, other_done, own_done;
  std::shared_future<void> stuck = let_go.get_future().share();
  users.run("uid 1", [stuck] { stuck.wait(); });
  users.run("uid 1", [&own_done] { own_done.set_value(); });
  users.run("uid 1 in container 3f2a81c09d11", [&other_done] { other_done.set_value(); });
  ASSERT_EQ(other_done.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(users.waiting("uid 1"), 2u);
  std::future<void> own = own_done.get_future();
  EXPECT_EQ(own.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  let_go.set_value();
  EXPECT_EQ(own.wait_for(kLong), std::future_status::ready);
}

TEST(UserThreadsTest, OneLanesStuckTaskKeepsOnlyItsOwnLaneWaiting) {
  UserThreads users;
  std::promise<void> let_go, other_done, own_done;
  std::shared_future<void> stuck = let_go.get_future().share();
  users.run(
      "uid 1", {}, [stuck](const auto&) { stuck.wait(); }, "a");
  users.run(
      "uid 1", {}, [&own_done](const auto&) { own_done.set_value(); }, "a");
  users.run(
      "uid 1", {}, [&other_done](const auto&) { other_done.set_value(); }, "b");
  ASSERT_EQ(other_done.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_GE(users.waiting("uid 1"), 2u);
  EXPECT_EQ(users.waiting("uid 11"), 0u);
  std::future<void> own = own_done.get_future();
  EXPECT_EQ(own.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  let_go.set_value();
  EXPECT_EQ(own.wait_for(kLong), std::future_status::ready);
}

TEST(UserThreadsTest, AHolderHasNoMoreLanesThanTheLimit) {
  UserThreads users;
  std::promise<void> let_go, first_done, beyond_done;
  std::shared_future<void> stuck = let_go.get_future().share();
  users.run("uid 1", [stuck] { stuck.wait(); });
  for (size_t i = 1; i < UserThreads::kLanesMax; ++i) {
    users.run(
        "uid 1", {}, [stuck](const auto&) { stuck.wait(); }, std::to_string(i));
  }
  users.run(
      "uid 1", {}, [&](const auto&) { beyond_done.set_value(); }, "one too many");
  users.run(
      "uid 2", {}, [&](const auto&) { first_done.set_value(); }, "its first one");
  ASSERT_EQ(first_done.get_future().wait_for(kLong), std::future_status::ready);
  std::future<void> beyond = beyond_done.get_future();
  EXPECT_EQ(beyond.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(users.waiting("uid 1"), UserThreads::kLanesMax + 1);
  let_go.set_value();
  EXPECT_EQ(beyond.wait_for(kLong), std::future_status::ready);
}

TEST(UserThreadsTest, ATasksDescriptorThatLingersKeepsNoOtherTaskWaiting) {
  UserThreads users;
  Lingering lingering;
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(lingering.socket));
  std::promise<bool> used;
  std::promise<void> next_done;
  users.run("uid 1", std::move(fds), [&used](const std::vector<UniqueFd>& sent) {
    used.set_value(sent.size() == 1 && sent[0].valid());
  });
  users.run("uid 1", [&next_done] { next_done.set_value(); });
  EXPECT_EQ(next_done.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_TRUE(used.get_future().get());
  EXPECT_GE(users.waiting("uid 1"), 1u) << "the descriptor";
  lingering.reader.reset();
}

// One of a connection that was closed by its user, with `fd` unread in it where there is one.
UniqueFd ended_connection(int fd = -1) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd user(ends[1]);
  UniqueFd connection(ends[0]);
  const auto byte = std::as_bytes(std::span("x", 1u));
  EXPECT_TRUE(fd < 0 || send_packet(user.get(), byte, {fd}).ok());
  return connection;
}

TEST(UserThreadsTest, ConnectionsBehindOneThatLingersTakeFewDescriptors) {
  constexpr uint64_t kEnded = 1'000, kFew = 300;
  UserThreads users;
  const UniqueFd any(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Lingering lingering;
  UniqueFd first = ended_connection(lingering.socket.get());
  lingering.socket.reset();
  const uint64_t before = open_files().open;
  users.end("uid 1", std::move(first));
  for (uint64_t i = 0; i < kEnded; ++i) users.end("uid 1", ended_connection());
  EXPECT_LT(open_files().open, before + 10) << "without descriptors in them";
  for (uint64_t i = 0; i < kEnded; ++i) users.end("uid 1", ended_connection(any.get()));
  EXPECT_LT(open_files().open, before + kFew) << "with descriptors in them";
  lingering.reader.reset();
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (open_files().open >= before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_LT(open_files().open, before);
}

TEST(UserThreadsTest, AHoldersTasksComeInOrder) {
  UserThreads users;
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 100; ++i) users.run("uid 7", [&order, i] { order.push_back(i); });
  users.run("uid 7", [&done] { done.set_value(); });
  ASSERT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(UserThreadsTest, TasksOutliveTheObjectAndDescriptorsAreClosed) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  std::promise<void> let_go;
  {
    UserThreads users;
    users.run("uid 3", [go = let_go.get_future().share()] { go.wait(); });
    users.close("uid 3", UniqueFd(ends[1]));
  }
  let_go.set_value();
  char byte;
  EXPECT_EQ(::read(reading.get(), &byte, 1), 0) << "the end of the pipe, once its other end closed";
}

}  // namespace
}  // namespace cgx::daemon
