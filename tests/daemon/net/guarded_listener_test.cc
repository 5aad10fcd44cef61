#include "daemon/net/guarded_listener.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <mutex>
#include <thread>

#include "daemon/base/open_files.h"
#include "daemon/net/packet_socket.h"
#include "tests/daemon/base/lingering.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::daemon {
namespace {

class GuardedListenerTest : public ::testing::Test {
 protected:
  void start(ListenerOptions options = {}) {
    options.opening = "HELLO";
    if (options.opening_timeout_ns == ListenerOptions().opening_timeout_ns) {
      options.opening_timeout_ns = 60'000'000'000;
    }
    Result<std::unique_ptr<GuardedListener>> created =
        GuardedListener::create(listening_.get(), options,
                                {.on_connection =
                                     [this](UniqueFd fd, int) {
                                       std::lock_guard lock(mutex_);
                                       served_.push_back(std::move(fd));
                                     },
                                 .on_junk = [this] { junk_.fetch_add(1); }});
    ASSERT_TRUE(created.ok());
    listener_ = *std::move(created);
  }
  UniqueFd connect() { return connect_unix(path_); }
  static void send(const UniqueFd& fd, const std::string& bytes) {
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  static void send_with(const UniqueFd& fd, const std::string& bytes, UniqueFd attached) {
    const auto sent = send_packet(fd.get(), std::as_bytes(std::span(bytes)), {attached.get()});
    ASSERT_TRUE(sent.ok()) << sent.to_string();
  }
  size_t served() {
    std::lock_guard lock(mutex_);
    return served_.size();
  }
  std::string read_served(size_t index) {
    std::lock_guard lock(mutex_);
    char bytes[64];
    const ssize_t got = ::recv(served_[index].get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return {bytes, static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }
  // The listener closed the connection.
  static bool closed(const UniqueFd& fd) {
    return eventually([&] { return has_ended(fd); });
  }
  static bool has_ended(const UniqueFd& fd) {
    char byte;
    const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  OpenDirectory directory_;
  std::string path_ = directory_ / "s";
  UniqueFd listening_ = listen_unix(path_);
  std::mutex mutex_;
  std::vector<UniqueFd> served_;
  std::atomic<int> junk_{0};
  std::unique_ptr<GuardedListener> listener_;
};

TEST_F(GuardedListenerTest, HandsOverTheUntouchedConnection) {
  start();
  const UniqueFd client = connect();
  send(client, "HELLO and more");
  ASSERT_TRUE(eventually([&] { return served() == 1; }));
  std::string read;
  EXPECT_TRUE(eventually([&] { return (read += read_served(0)) == "HELLO and more"; })) << read;
  EXPECT_EQ(junk_, 0);
}

TEST_F(GuardedListenerTest, DescriptorsThatLingerKeepNeitherTheNextNorTheEndWaiting) {
  const UniqueFd junk = connect(), half = connect();
  Lingering of_junk, of_half;
  send_with(junk, "JUNK", std::move(of_junk.socket));
  send_with(half, "HE", std::move(of_half.socket));
  start();  // now, so that it closes them last
  const UniqueFd next = connect();
  send(next, "HELLO");
  EXPECT_TRUE(eventually([&] { return served() == 1; }));
  EXPECT_TRUE(eventually([&] { return junk_ == 1; }));
  const auto end = std::async(std::launch::async, [this] { listener_.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  of_junk.reader.reset();
  of_half.reader.reset();
}

// Reading it without room for descriptors would close them.
TEST_F(GuardedListenerTest, DescriptorsThatComeLaterKeepNoReaderWaiting) {
  const UniqueFd client = connect();
  Lingering lingering;
  send(client, "HELLO");
  send_with(client, "more", std::move(lingering.socket));
  start();  // now, so that it closes the descriptor last
  ASSERT_TRUE(eventually([&] { return served() == 1; }));
  const auto ended = std::async(std::launch::async, [this] {
    const std::lock_guard lock(mutex_);
    char bytes[64];
    while (::recv(served_[0].get(), bytes, sizeof bytes, 0) > 0) {
    }
  });
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(eventually([&] { return has_ended(served_[0]); }));
  const UniqueFd next = connect();
  send(next, "HELLO");
  EXPECT_TRUE(eventually([&] { return served() == 2; }));
  lingering.reader.reset();
  ::shutdown(client.get(), SHUT_RDWR);
}

TEST_F(GuardedListenerTest, ConnectionsAfterADescriptorThatLingersTakeNoDescriptors) {
  Lingering lingering;
  const UniqueFd junk = connect();
  send_with(junk, "JUNK", std::move(lingering.socket));
  start();  // now, so that it closes the descriptor last
  EXPECT_TRUE(closed(junk));
  const uint64_t before = open_files().open;
  for (int i = 0; i < 100; ++i) {
    const UniqueFd more = connect();
    send(more, "JUNK");
    EXPECT_TRUE(closed(more));
  }
  EXPECT_LT(open_files().open, before + 20);
  lingering.reader.reset();
}

TEST_F(GuardedListenerTest, EndsTheConnectionThatIsNotServed) {
  start();
  const UniqueFd client = connect();
  send(client, "HELLO");
  ASSERT_TRUE(eventually([&] { return served() == 1; }));
  served_[0].reset();
  EXPECT_TRUE(closed(client));
}

TEST_F(GuardedListenerTest, WaitsForAnOpeningInPieces) {
  start();
  const UniqueFd client = connect();
  send(client, "HE");
  send(client, "L");
  send(client, "LO");
  EXPECT_TRUE(eventually([&] { return served() == 1; }));
}

TEST_F(GuardedListenerTest, CountsAndClosesWrongBytes) {
  start();
  const UniqueFd client = connect(), partly = connect();
  send(client, "GET / HTTP/1.1\r\n");
  send(partly, "HEX");
  EXPECT_TRUE(closed(client));
  EXPECT_TRUE(closed(partly));
  EXPECT_EQ(junk_, 2);
  EXPECT_EQ(served(), 0u);
}

TEST_F(GuardedListenerTest, ClosesWhoeverSaysNothingInTime) {
  const UniqueFd silent = connect(), slow = connect();
  send(slow, "HELL");
  start({.opening_timeout_ns = 1'000'000});  // now: slow may be closed at once
  EXPECT_TRUE(closed(silent));
  EXPECT_TRUE(closed(slow));
  EXPECT_TRUE(eventually([&] { return junk_ == 2; }));
}

TEST_F(GuardedListenerTest, ClosesWhomItDoesNotAdmitBeforeTheySpeak) {
  start({.admits = [](const std::string&) { return false; }});
  const UniqueFd client = connect();
  EXPECT_TRUE(closed(client));
  EXPECT_TRUE(eventually([&] { return junk_ == 1; }));
}

TEST_F(GuardedListenerTest, DoesNotCountSomebodyWhoOnlyLooked) {
  start();
  connect();
  const UniqueFd client = connect();
  send(client, "HELLO");
  ASSERT_TRUE(eventually([&] { return served() == 1; }));
  EXPECT_EQ(junk_, 0);
}

TEST_F(GuardedListenerTest, HandsOverNobodyWhoHasGone) {
  for (int i = 0; i < 8; ++i) send(connect(), "HELLO");
  start();
  const UniqueFd client = connect();
  send(client, "HELLO");
  ASSERT_TRUE(eventually([&] { return served() > 0; }));
  EXPECT_EQ(served(), 1u);
}

TEST_F(GuardedListenerTest, KeepsTheReserveFromAUserWhoHasMore) {
  start({.alive_max = 16});
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 14; ++i) {
    clients.push_back(connect());
    send(clients.back(), "HELLO");
  }
  ASSERT_TRUE(eventually([&] { return served() == 14; }));
  const UniqueFd one_more = connect();
  send(one_more, "HELLO");
  EXPECT_TRUE(closed(one_more));
  EXPECT_EQ(served(), 14u);
}

TEST_F(GuardedListenerTest, MakesRoomWhenAConnectionEnds) {
  start({.alive_max = 1});
  UniqueFd first = connect();
  send(first, "HELLO");
  ASSERT_TRUE(eventually([&] { return served() == 1; }));
  first.reset();
  // Until the end of the first one is noticed, others are still refused.
  EXPECT_TRUE(eventually([&] {
    const UniqueFd next = connect();
    ::send(next.get(), "HELLO", 5, MSG_NOSIGNAL);
    eventually([&] { return served() == 2 || has_ended(next); });
    return served() == 2;
  }));
}

TEST_F(GuardedListenerTest, StopsWithConnectionsWaiting) {
  start();
  const UniqueFd client = connect();
  send(client, "HE");
  listener_.reset();
  listening_.reset();  // it may not have been accepted yet
  EXPECT_TRUE(closed(client));
}

TEST_F(GuardedListenerTest, ServesOthersBesideMoreThanMayWait) {
  start({.waiting_max = 8});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect());
  EXPECT_TRUE(closed(silent.front())) << "the oldest goes";
  const UniqueFd client = connect();
  send(client, "HELLO");
  EXPECT_TRUE(eventually([&] { return served() == 1; }));
}

}  // namespace
}  // namespace cgx::daemon
