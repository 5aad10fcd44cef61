// A session's imports of memory that somebody else has allocated on a GPU, without a daemon.
#include <cstring>

#include "client/arena.h"
#include "tests/gpu/driver_case.h"

namespace cgx::client {
namespace {

using device::CUdeviceptr;

class Imports : public cgx::gpu::DriverTest {
 protected:
  static constexpr uint64_t kBytes = 4096, kPattern = 7;

  void SetUp() override {
    DriverTest::SetUp();
    if (IsSkipped()) return;
    device::CUuuid id{};
    ASSERT_CU(cu_->cuDeviceGetUuid(&id, device_->device));
    std::memcpy(uuid_.data(), id.bytes, sizeof(id.bytes));
  }
  // As a worker would.
  Status announce(const ArenaMemory& memory) {
    const auto at = reinterpret_cast<CUdeviceptr>(memory.base());
    EXPECT_CU(cu_->cuMemcpyHtoD(at, &kPattern, sizeof(kPattern)));
    EXPECT_CU(cu_->cuStreamSynchronize(nullptr));
    memory.device()->announced(kPattern);
    return {};
  }
  Status import(ArenaSet& arenas, void* memory) {
    return arenas.import(uuid_, memory, kBytes,
                         [&] { return DeviceMemory::import(*cu_, uuid_, memory); });
  }

  wire::DeviceId uuid_{};
};

TEST_F(Imports, AnEndThatTimesOutUndoesNothingAndMayBeCalledAgain) {
  int asked = 0;
  const auto announcing = [this](uint32_t, const ArenaMemory& memory) { return announce(memory); };
  const auto dropping = [&asked](uint32_t) -> Status {
    if (++asked > 1) return {};
    return {StatusCode::kTIMED_OUT, "it has not been closed yet"};
  };
  ArenaSet arenas(1 << 20, announcing, 4, dropping);
  void* const memory = reinterpret_cast<void*>(allocate(kBytes));
  ASSERT_TRUE(import(arenas, memory).ok());
  EXPECT_TRUE(arenas.on_device(memory));
  EXPECT_EQ(arenas.try_end_import(memory).status().code(), StatusCode::kTIMED_OUT);
  EXPECT_FALSE(arenas.on_device(memory)) << "the worker may have closed it";
  EXPECT_FALSE(arenas.locate(memory, kBytes, "it").ok());
  const Result<bool> ended = arenas.try_end_import(memory);
  ASSERT_TRUE(ended.ok()) << ended.status().to_string();
  EXPECT_TRUE(*ended);
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(import(arenas, memory).ok()) << "it is free again";
  EXPECT_TRUE(arenas.try_end_import(memory).ok());
}

}  // namespace
}  // namespace cgx::client
