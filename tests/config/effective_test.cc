#include "config/effective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "config/config.h"
#include "proto/wire/run_directory.h"

namespace cgx::config {
namespace {

using ::testing::HasSubstr;

TEST(RunDirectory, DependsOnTheUser) {
  EXPECT_EQ(default_run_directory(0, "/run/user/0"), "/run/cgxd");
  EXPECT_EQ(default_run_directory(1000, "/run/user/1000"), "/run/user/1000/cgxd");
  EXPECT_EQ(default_run_directory(1000, nullptr), "/tmp/cgxd-1000");
  EXPECT_EQ(default_run_directory(1000, ""), "/tmp/cgxd-1000");
  EXPECT_EQ(default_run_directory(1000, "relative"), "/tmp/cgxd-1000");
}

class RunDirectoryOnDisk : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(root_.data()), nullptr); }
  void TearDown() override { ASSERT_EQ(std::system(("rm -r " + root_).c_str()), 0); }
  std::string root_ = ::testing::TempDir() + "/cgx-run-XXXXXX";
};

TEST_F(RunDirectoryOnDisk, IsTrustedWhenItsOwnerAloneCanWrite) {
  EXPECT_TRUE(check_run_directory(root_, geteuid()).ok());
  EXPECT_EQ(check_run_directory(root_ + "/missing", 0).code(), StatusCode::kNOT_FOUND);
}

TEST_F(RunDirectoryOnDisk, MustNotBeWritableByOthers) {
  ASSERT_EQ(chmod(root_.c_str(), 0777), 0);
  EXPECT_THAT(check_run_directory(root_, geteuid()).message(), HasSubstr("writable by others"));
}

TEST_F(RunDirectoryOnDisk, MustNotBeALinkOrAFile) {
  ASSERT_EQ(symlink(root_.c_str(), (root_ + "/link").c_str()), 0);
  EXPECT_THAT(check_run_directory(root_ + "/link", geteuid()).message(),
              HasSubstr("not a directory"));
}

TEST_F(RunDirectoryOnDisk, MustBelongToRootOrTheUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  ASSERT_EQ(chown(root_.c_str(), 1234, 1234), 0);
  EXPECT_THAT(check_run_directory(root_, 1000).message(), HasSubstr("belongs to user 1234"));
  EXPECT_TRUE(check_run_directory(root_, 1234).ok());
}

TEST(Effective, PutsTheSocketsIntoTheRunDirectory) {
  v1::Config config;
  config.set_run_directory("/somewhere");
  config.mutable_control()->set_socket("/elsewhere/c.sock");
  fill_defaults(config);
  resolve_paths(config);
  EXPECT_EQ(config.client().socket(), "/somewhere/cgxd.sock");
  EXPECT_EQ(config.control().socket(), "/elsewhere/c.sock");
}

TEST(Effective, HasARunDirectoryWithoutAFile) {
  ::setenv("XDG_RUNTIME_DIR", "/run/user/4711", 1);
  v1::Config config;
  fill_defaults(config);
  resolve_paths(config);
  EXPECT_EQ(config.run_directory(), geteuid() == 0 ? "/run/cgxd" : "/run/user/4711/cgxd");
}

}  // namespace
}  // namespace cgx::config
