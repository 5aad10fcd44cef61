#include "daemon/base/shared_region.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "scheduler/recorder.h"
#include "tests/daemon/ipc/raw_client.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kBytes = 64 * 1024;
constexpr uint64_t kNoQuota = UINT64_MAX;

TEST(MapArenaTest, SeesWhatTheClientWrites) {
  const UniqueFd memfd = make_arena(kBytes);
  auto client = SharedRegion::map(memfd.get(), kBytes, SharedRegion::Populate::kNo);
  auto daemon = map_arena(memfd.get(), kBytes, kBytes);
  ASSERT_TRUE(client.ok() && daemon.ok()) << daemon.status().to_string();
  client->bytes()[kBytes - 1] = std::byte{42};
  EXPECT_EQ(daemon->bytes()[kBytes - 1], std::byte{42});
  EXPECT_EQ(daemon->bytes().size(), kBytes);
}

TEST(MapArenaTest, RefusesWhatIsNotSealedExactly) {
  const int kinds[] = {0, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
                       F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE};
  for (const int seals : kinds) {
    const UniqueFd memfd = make_arena(kBytes, seals);
    const auto region = map_arena(memfd.get(), kBytes, kNoQuota);
    EXPECT_EQ(region.status().code(), StatusCode::kINVALID_ARGUMENT) << seals;
    EXPECT_NE(region.status().message().find("seals"), std::string::npos);
  }
}

TEST(MapArenaTest, RefusesAnotherSizeThanAnnounced) {
  const UniqueFd memfd = make_arena(kBytes);
  EXPECT_EQ(map_arena(memfd.get(), kBytes * 2, kNoQuota).status().code(),
            StatusCode::kINVALID_ARGUMENT);
  EXPECT_EQ(map_arena(memfd.get(), kBytes - 1, kNoQuota).status().code(),
            StatusCode::kINVALID_ARGUMENT);
}

TEST(MapArenaTest, RefusesMoreThanTheQuotaWithBothNumbers) {
  const UniqueFd memfd = make_arena(kBytes);
  const auto region = map_arena(memfd.get(), kBytes, kBytes - 1);
  EXPECT_EQ(region.status().code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(region.status().message().find("65536"), std::string::npos);
  EXPECT_NE(region.status().message().find("65535"), std::string::npos);
}

TEST(MapArenaTest, RefusesMemoryTheClientHasNotPaidFor) {
  UniqueFd memfd(::memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memfd.get(), kBytes), 0);
  ASSERT_EQ(::fcntl(memfd.get(), F_ADD_SEALS, kArenaSeals), 0);
  const auto region = map_arena(memfd.get(), kBytes, kNoQuota);
  EXPECT_NE(region.status().message().find("fallocate"), std::string::npos);
}

// The daemon's memory would pay for what is written into a hole.
TEST(MapArenaTest, LeavesNobodyAWayToPunchHoles) {
  const UniqueFd memfd = make_arena(kBytes);
  auto client = SharedRegion::map(memfd.get(), kBytes, SharedRegion::Populate::kNo);
  ASSERT_TRUE(client.ok());
  const auto daemon = map_arena(memfd.get(), kBytes, kBytes);
  ASSERT_TRUE(daemon.ok()) << daemon.status().to_string();
  const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  EXPECT_EQ(::fallocate(memfd.get(), punch, 0, kBytes), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::madvise(client->bytes().data(), kBytes, MADV_REMOVE), -1);
  EXPECT_EQ(::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  client->bytes()[0] = std::byte{7};  // what it has mapped it may write
  EXPECT_EQ(daemon->bytes()[0], std::byte{7});
}

TEST(MapArenaTest, RefusesDescriptorsThatAreNoMemfd) {
  UniqueFd null(::open("/dev/null", O_RDWR));
  EXPECT_EQ(map_arena(null.get(), kBytes, kNoQuota).status().code(), StatusCode::kINVALID_ARGUMENT);
}

// What one maps to record in, another reads by the descriptor.
TEST(RecorderMemoryTest, IsReadThroughItsDescriptor) {
  const Result<OwnMemfd> memory = make_recorder_memory(16);
  ASSERT_TRUE(memory.ok()) << memory.status().to_string();
  EXPECT_EQ(::fcntl(memory->fd.get(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  scheduler::Recorder recorder(memory->region.bytes());
  recorder.record({.time_ns = 7, .kind = scheduler::EventKind::kready});
  const auto elsewhere = SharedRegion::map(memory->fd.get(), scheduler::recorder_bytes(16),
                                           SharedRegion::Populate::kNo);
  ASSERT_TRUE(elsewhere.ok());
  const auto reader = scheduler::RecorderReader::create(elsewhere->bytes());
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  ASSERT_EQ(reader->read(0).events.size(), 1u);
  EXPECT_EQ(reader->read(0).events[0].time_ns, 7u);
}

}  // namespace
}  // namespace cgx::daemon
