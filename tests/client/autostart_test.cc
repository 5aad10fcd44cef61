#include "client/autostart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace cgx::client {
namespace {

using ::testing::HasSubstr;

// As where somebody else has made /tmp/cgxd-UID first.
TEST(StartLock, TellsTheWaysOutOfADirectoryThatIsNotTheUsersOwn) {
  char directory[] = "/tmp/cgx-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  ASSERT_EQ(::chmod(directory, 0777), 0);
  Environment environment;
  environment.uid = ::getuid();
  environment.runtime_dir = directory;
  const std::string path = environment.runtime_dir + "/cgxd.sock";
  const Result<StartLock> lock =
      StartLock::take(environment, path, Clock::now() + std::chrono::seconds(1));
  EXPECT_EQ(::rmdir(directory), 0);
  EXPECT_EQ(lock.status().code(), StatusCode::kPERMISSION_DENIED);
  EXPECT_THAT(lock.status().message(), HasSubstr("is writable by others"));
  EXPECT_THAT(lock.status().message(), HasSubstr("set XDG_RUNTIME_DIR"));
  EXPECT_THAT(lock.status().message(), HasSubstr("CGX_SOCKET"));
}

}  // namespace
}  // namespace cgx::client
