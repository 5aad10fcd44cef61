// The page's door: who asks and goes costs little, and those who stay are answered.
#include "daemon/net/http_door.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "daemon/base/open_files.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::daemon {
namespace {

constexpr std::string_view kGet = "GET /metrics HTTP/1.1\r\n\r\n";

class HttpDoorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<TcpListener> listener = TcpListener::open("127.0.0.1:0", "metrics.port");
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    auto created = HttpDoor::create(*std::move(listener),
                                    {.closing_timeout_ns = 200'000'000, .on_junk = [] {}},
                                    [this](const std::string&) { return answer(); });
    ASSERT_TRUE(created.ok());
    door_ = *std::move(created);
  }
  void TearDown() override { let_answer(); }

  HttpAnswer answer() {
    answers_.fetch_add(1);
    std::unique_lock lock(mutex_);
    may_answer_.wait(lock, [this] { return answers_freely_; });
    return {.body = "fine"};
  }
  void let_answer() {
    const std::lock_guard lock(mutex_);
    answers_freely_ = true;
    may_answer_.notify_all();
  }
  UniqueFd ask() {
    UniqueFd client = connect_tcp(door_->port());
    EXPECT_EQ(::send(client.get(), kGet.data(), kGet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(kGet.size()));
    return client;
  }
  static std::string read_all(const UniqueFd& client) {
    std::string all;
    char bytes[512];
    pollfd polled{client.get(), POLLIN, 0};
    while (::poll(&polled, 1, 10'000) == 1) {
      const ssize_t got = ::recv(client.get(), bytes, sizeof(bytes), 0);
      if (got <= 0) break;
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }

  std::mutex mutex_;
  std::condition_variable may_answer_;
  bool answers_freely_ = false;
  std::atomic<int> answers_{0};
  std::unique_ptr<HttpDoor> door_;
};

TEST_F(HttpDoorTest, AnswersWhoHasSaidAll) {
  let_answer();
  const UniqueFd client = ask();
  ::shutdown(client.get(), SHUT_WR);
  EXPECT_TRUE(read_all(client).ends_with("\r\n\r\nfine"));
}

TEST_F(HttpDoorTest, WhoStaysAfterTheAnswerHasItsConnectionClosed) {
  let_answer();
  const uint64_t before = open_files().open;
  const UniqueFd client = ask();
  EXPECT_TRUE(read_all(client).ends_with("\r\n\r\nfine"));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (open_files().open > before + 1 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(open_files().open, before + 1) << "the client's own";
}

TEST_F(HttpDoorTest, ThoseWhoAskAndGoTakeFewDescriptorsAndFewAnswers) {
  constexpr int kAsked = 1'000, kFew = 250;
  const uint64_t before = open_files().open;
  uint64_t most = 0;
  for (int i = 0; i < kAsked; ++i) {
    ask();
    most = std::max(most, open_files().open);
  }
  EXPECT_LT(most, before + kFew);
  const UniqueFd client = ask();
  let_answer();
  EXPECT_TRUE(read_all(client).ends_with("\r\n\r\nfine"));
  EXPECT_LT(answers_, kFew);
}

}  // namespace
}  // namespace cgx::daemon
