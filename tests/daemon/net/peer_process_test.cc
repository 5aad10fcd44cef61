#include "daemon/net/peer_process.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace cgx::daemon {
namespace {

class PeerProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    ours_.reset(ends[0]);
    theirs_.reset(ends[1]);
  }
  UniqueFd ours_, theirs_;
};

TEST_F(PeerProcessTest, IsWhoMadeTheSocket) {
  const Result<PeerProcess> peer = peer_process(ours_.get());
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::getuid());
  if (peer->pidfd) {
    EXPECT_FALSE(has_exited(peer->pidfd.get()));
  }
}

// It lives, and is not to blame.
TEST_F(PeerProcessTest, IsNotCalledDeadWhereThisProcessHasNoDescriptorForIt) {
  if (!peer_process(ours_.get())->pidfd) GTEST_SKIP() << "this kernel has no SO_PEERPIDFD";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Result<PeerProcess> peer = peer_process(ours_.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(peer.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_EQ(peer.status().message(), "the daemon has no descriptor left (ulimit -n)");
}

}  // namespace
}  // namespace cgx::daemon
