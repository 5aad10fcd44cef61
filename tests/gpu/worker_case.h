// A cgxd-gpu of the first device, and cgxd's site of it beside the host's, for tests of workers.
// The environment chooses the driver.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "daemon/gpu/worker_site.h"
#include "scheduler/exchange/host_site.h"
#include "tests/gpu/driver_case.h"

namespace cgx::daemon::gpu {

inline UniqueFd make_memfd(uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

class WorkerTest : public cgx::gpu::DriverTest {
 protected:
  static constexpr uint64_t kWordsBytes = 4096;

  void SetUp() override {
    DriverTest::SetUp();
    if (IsSkipped()) return;
    device::CUuuid id{};
    ASSERT_CU(cu_->cuDeviceGetUuid(&id, device_->device));
    std::memcpy(uuid_.data(), id.bytes, sizeof(id.bytes));
    words_ = make_memfd(kWordsBytes, F_SEAL_SHRINK | F_SEAL_GROW);
  }
  Result<std::shared_ptr<Worker>> try_to_start(const std::string& program = CGXD_GPU) const {
    return Worker::start({.program = program, .job = "a", .device = uuid_});
  }
  // The stand-in of the worker is told more than ours.
  Result<std::shared_ptr<Worker>> try_to_start_with(const std::string& words) const {
    const std::string before = std::getenv("CGX_STANDIN");
    ::setenv("CGX_STANDIN", (before + words).c_str(), 1);
    auto worker = try_to_start();
    ::setenv("CGX_STANDIN", before.c_str(), 1);
    return worker;
  }
  std::shared_ptr<Worker> start_with(const std::string& words) const {
    const auto worker = try_to_start_with(words);
    EXPECT_TRUE(worker.ok()) << worker.status().to_string();
    return worker.ok() ? *worker : nullptr;
  }
  std::shared_ptr<Worker> start() const {
    const auto worker = try_to_start();
    EXPECT_TRUE(worker.ok()) << worker.status().to_string();
    return worker.ok() ? *worker : nullptr;
  }
  wire::AddArena message(wire::ArenaWay way, uint64_t bytes) const {
    return {.kind = wire::ArenaKind::kDevice, .way = way, .device = uuid_, .bytes = bytes};
  }
  // By the handle of all of an allocation.
  wire::AddArena message_of(device::CUdeviceptr memory, uint64_t bytes) {
    device::CUipcMemHandle handle{};
    EXPECT_CU(cu_->cuIpcGetMemHandle(&handle, memory));
    wire::AddArena arena = message(wire::ArenaWay::kIpc, bytes);
    std::memcpy(arena.handle.data(), handle.reserved, sizeof(handle.reserved));
    return arena;
  }

  wire::DeviceId uuid_{};
  UniqueFd words_;
};

// The same values in an arena of the host and in one of the device: memory_ from kBegin on.
class SitesTest : public WorkerTest, protected scheduler::SiteEvents {
 protected:
  static constexpr uint64_t kBegin = 64;  // behind the pattern
  static constexpr uint64_t kSlabBytes = 256 << 10;

  void SetUp() override {
    WorkerTest::SetUp();
    if (IsSkipped()) return;
    worker_ = start();
    ASSERT_NE(worker_, nullptr);
    ASSERT_TRUE(slabs_->reserve(8).ok());
    const auto staging = std::make_shared<Staging>(worker_);
    staged_ = std::make_shared<scheduler::SlabStore>(kSlabBytes, staging);
    there_ = std::make_unique<WorkerSite>(worker_, staging, staged_, arenas_, [](uint64_t) {});
    here_ = std::make_unique<scheduler::HostSite>(kernels::best_lane(), arenas_, *slabs_);
  }
  void TearDown() override {
    if (device_arena_ != scheduler::kNoArena && worker_->alive()) {
      EXPECT_TRUE(worker_->close_arena(number_).ok());
    }
    if (timeline_ != nullptr) {
      EXPECT_CU(cu_->cuMemHostUnregister(timeline_));
      ::munmap(timeline_, kWordsBytes);
    }
    WorkerTest::TearDown();
  }
  // Once memory_ is filled.
  void share() {
    host_arena_ = arenas_.add(std::span(memory_));
    timeline_ = ::mmap(nullptr, kWordsBytes, PROT_READ | PROT_WRITE, MAP_SHARED, words_.get(), 0);
    ASSERT_CU(cu_->cuMemHostRegister(timeline_, kWordsBytes, device::CU_MEMHOSTREGISTER_DEVICEMAP));
    const device::CUdeviceptr copy = allocate(memory_.size());
    const auto added = worker_->add_arena(message_of(copy, memory_.size()), words_.get(), -1);
    ASSERT_TRUE(added.ok()) << added.status().to_string();
    number_ = added->number;
    ASSERT_CU(cu_->cuMemcpyHtoD(copy + kBegin, memory_.data() + kBegin, memory_.size() - kBegin));
    ASSERT_CU(cu_->cuStreamSynchronize(nullptr));
    device_arena_ = arenas_.add(scheduler::SiteMemory{1, number_, memory_.size()});
  }

  // An operation between machines, of which the segments' places are still to be said.
  struct Play {
    scheduler::TensorTable table;
    scheduler::Group group;
    scheduler::GroupLayout layout;
    scheduler::OperationSetup setup;
    scheduler::Presence all;
    std::unique_ptr<scheduler::SiteOperation> work;
    scheduler::SlabId into = scheduler::kNoSlab;
  };
  static std::unique_ptr<Play> play_of(scheduler::TensorTable table, scheduler::Group group,
                                       uint32_t machines = 2) {
    scheduler::Presence all(table.size(), true);
    auto layout = scheduler::GroupLayout::create(group, table, machines, {});
    auto play = std::make_unique<Play>(
        Play{std::move(table), std::move(group), std::move(layout), {}, std::move(all), nullptr});
    play->setup.layout = &play->layout;
    play->setup.group = &play->group;
    play->setup.table = &play->table;
    play->setup.machines = machines;
    return play;
  }

  // As what prepares a plan does, and then the plan.
  void reserve_staged(uint32_t slabs) {
    const auto promised = scheduler::SlabStore::promise(staged_, slabs);
    ASSERT_TRUE(promised.ok()) << promised.status().to_string();
    ASSERT_TRUE(staged_->reserve(slabs).ok());
  }

  std::shared_ptr<Worker> worker_;
  std::vector<std::byte> memory_;
  void* timeline_ = nullptr;
  scheduler::ArenaTable arenas_;
  scheduler::ArenaId host_arena_ = scheduler::kNoArena, device_arena_ = scheduler::kNoArena;
  uint32_t number_ = 0;
  std::shared_ptr<scheduler::SlabStore> slabs_ = std::make_shared<scheduler::SlabStore>(kSlabBytes);
  std::shared_ptr<scheduler::SlabStore> staged_;
  std::shared_ptr<scheduler::SlabCounts> in_use_ = std::make_shared<scheduler::SlabCounts>();
  std::unique_ptr<WorkerSite> there_;
  std::unique_ptr<scheduler::Site> here_;
  scheduler::Ticket tickets_ = 0;
};

}  // namespace cgx::daemon::gpu
