#include "daemon/net/listen_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <fstream>

#include "tests/daemon/base/scratch_directory.h"

namespace cgx::daemon {
namespace {

ListenSocketOptions at(const std::string& path) {
  return {.path = path, .type = SOCK_SEQPACKET};
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

TEST(ListenSocketTest, MakesItsDirectoryAndRemovesSocketAndLockAtTheEnd) {
  ScratchDirectory scratch;
  const std::string path = scratch.path() + "/run/cgxd.sock";
  {
    auto socket = ListenSocket::open(at(path));
    ASSERT_TRUE(socket.ok()) << socket.status().to_string();
    struct stat status;
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0660u);
  }
  EXPECT_FALSE(exists(path));
  EXPECT_FALSE(exists(path + ".lock"));
}

TEST(ListenSocketTest, NamesTheKeyOfAFolderThatCannotBeMade) {
  const auto socket = ListenSocket::open(at("/proc/cgxd/cgxd.sock"));
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.status().message(),
            "cannot make the folder /proc/cgxd for the socket /proc/cgxd/cgxd.sock (run_directory "
            "says where sockets are): No such file or directory");
}

TEST(ListenSocketTest, RefusesASecondOneOnTheSameNameAndNamesTheProcess) {
  ScratchDirectory scratch;
  const std::string path = scratch.path() + "/cgxd.sock";
  auto first = ListenSocket::open(at(path));
  ASSERT_TRUE(first.ok());
  const auto second = ListenSocket::open(at(path));
  EXPECT_EQ(second.status().code(), StatusCode::kALREADY_EXISTS);
  EXPECT_NE(second.status().message().find("process " + std::to_string(::getpid())),
            std::string::npos)
      << second.status().to_string();
  EXPECT_TRUE(exists(path));
}

TEST(ListenSocketTest, ReplacesTheSocketOfAProcessThatDied) {
  ScratchDirectory scratch;
  const std::string path = scratch.path() + "/cgxd.sock";
  const pid_t child = ::fork();
  if (child == 0) {
    auto socket = ListenSocket::open(at(path));
    ::_exit(socket.ok() ? 0 : 1);  // without closing
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(exists(path));
  EXPECT_TRUE(ListenSocket::open(at(path)).ok());
}

// As a cleaner of /tmp does with the folder of a daemon that runs.
TEST(ListenSocketTest, RemovesNothingOfAnotherThatServesItsPathByNow) {
  ScratchDirectory scratch;
  const std::string path = scratch.path() + "/cgxd.sock";
  for (const bool socket_too : {false, true}) {
    auto first = ListenSocket::open(at(path));
    ASSERT_TRUE(first.ok());
    ASSERT_EQ(::unlink((path + ".lock").c_str()), 0);
    EXPECT_EQ(socket_too ? ::unlink(path.c_str()) : 0, 0);
    const auto second = ListenSocket::open(at(path));
    ASSERT_TRUE(second.ok()) << second.status().to_string();
    first->close();
    EXPECT_TRUE(exists(path));
    EXPECT_TRUE(exists(path + ".lock"));
    EXPECT_EQ(ListenSocket::open(at(path)).status().code(), StatusCode::kALREADY_EXISTS);
  }
}

TEST(ListenSocketTest, RemovesItsLockButNoFileThatHasComeInPlaceOfItsSocket) {
  ScratchDirectory scratch;
  const std::string path = scratch.path() + "/cgxd.sock";
  auto socket = ListenSocket::open(at(path));
  ASSERT_TRUE(socket.ok());
  ASSERT_EQ(::unlink(path.c_str()), 0);
  std::ofstream(path) << "data";
  socket->close();
  EXPECT_TRUE(exists(path));
  EXPECT_FALSE(exists(path + ".lock"));
}

TEST(ListenSocketTest, DoesNotRemoveAFileThatIsNoSocket) {
  ScratchDirectory scratch;
  const std::string path = scratch.path() + "/precious";
  std::ofstream(path) << "data";
  EXPECT_EQ(ListenSocket::open(at(path)).status().code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_TRUE(exists(path));
}

TEST(ListenSocketTest, RefusesADirectoryOthersCanWriteTo) {
  ScratchDirectory scratch;
  const std::string directory = scratch.path() + "/open";
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(directory.c_str(), 0777), 0);
  EXPECT_EQ(ListenSocket::open(at(directory + "/cgxd.sock")).status().code(),
            StatusCode::kPERMISSION_DENIED);
}

TEST(ListenSocketTest, NamesAPathThatIsTooLong) {
  const auto socket = ListenSocket::open(at("/tmp/" + std::string(200, 'x')));
  EXPECT_EQ(socket.status().code(), StatusCode::kINVALID_ARGUMENT);
}

}  // namespace
}  // namespace cgx::daemon
