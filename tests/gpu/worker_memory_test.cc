// What a worker takes from trainers, and what it refuses by name: cgxd's end (daemon/gpu/worker.h),
// a real cgxd-gpu behind it, memory of the driver that the environment chooses.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "daemon/gpu/worker.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/gpu/worker_case.h"

namespace cgx::daemon::gpu {
namespace {

using namespace cgx::device;

class WorkerMemory : public WorkerTest {
 protected:
  static std::string refusal(const Result<Worker::AddedArena>& added) {
    return added.status().to_string();
  }
};

TEST_F(WorkerMemory, AGpuThatIsNotHereIsRefusedByItsUuid) {
  uuid_[3] = std::byte{0xfe};
  const auto worker = try_to_start();
  EXPECT_EQ(worker.status().code(), StatusCode::kNOT_FOUND) << worker.status().to_string();
  EXPECT_NE(worker.status().message().find("has the UUID"), std::string::npos);
}

// UNIMPLEMENTED is what trainers stage their tensors for.
TEST_F(WorkerMemory, AGpuThatCannotBeHadIsUnimplementedWithTheReason) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver has its GPU";
  for (const auto& [words, why] :
       {std::pair{" devices=0", "starting the CUDA driver: CUDA_ERROR_NO_DEVICE"},
        std::pair{" fail=cuInit:*=999", "starting the CUDA driver: CUDA_ERROR_UNKNOWN"},
        std::pair{" fail=cuDevicePrimaryCtxRetain:*=46",
                  "opening the GPU: CUDA_ERROR_DEVICE_UNAVAILABLE"}}) {
    const Status status = try_to_start_with(words).status();
    EXPECT_EQ(status.code(), StatusCode::kUNIMPLEMENTED) << status.to_string();
    EXPECT_NE(status.message().find(why), std::string::npos) << status.to_string();
  }
}

// Which trainers are told, and do not remember.
TEST_F(WorkerMemory, AGpuThatIsFullNowIsExhaustedWithTheReason) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver has room";
  for (const auto& [words, why] :
       {std::pair{" fail=cuDevicePrimaryCtxRetain:*=2",
                  "opening the GPU: CUDA_ERROR_OUT_OF_MEMORY"},
        std::pair{" memory=1M", "scratch memory: CUDA_ERROR_OUT_OF_MEMORY"}}) {
    const Status status = try_to_start_with(words).status();
    EXPECT_EQ(status.code(), StatusCode::kRESOURCE_EXHAUSTED) << status.to_string();
    EXPECT_NE(status.message().find(why), std::string::npos) << status.to_string();
  }
}

TEST_F(WorkerMemory, AWorkerThatCannotBeStartedNowIsExhaustedAndOneThatIsNotThereIsUnimplemented) {
  for (const int passes : {EAGAIN, ENOMEM}) {
    EXPECT_EQ(spawn_status("cgxd-gpu", passes).code(), StatusCode::kRESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(spawn_status("cgxd-gpu", EACCES).code(), StatusCode::kUNIMPLEMENTED);
  const Status none = try_to_start("/nowhere/cgxd-gpu").status();
  EXPECT_EQ(none.code(), StatusCode::kUNIMPLEMENTED) << none.to_string();
  EXPECT_NE(none.message().find("/nowhere/cgxd-gpu, which cannot be started: No such file"),
            std::string::npos)
      << none.to_string();
}

TEST_F(WorkerMemory, AMachineWithoutADriverIsUnimplemented) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver is there";
  const std::string before = std::getenv("LD_LIBRARY_PATH");
  ::unsetenv("LD_LIBRARY_PATH");
  const Status status = try_to_start().status();
  ::setenv("LD_LIBRARY_PATH", before.c_str(), 1);
  if (status.ok()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(status.code(), StatusCode::kUNIMPLEMENTED) << status.to_string();
  EXPECT_NE(status.message().find("no CUDA driver"), std::string::npos) << status.to_string();
}

// Of two GPUs NVIDIA's driver shows those that CUDA_VISIBLE_DEVICES names; so does the stand-in
// here, which calls the second one `name` and notes what it was asked for.
class WorkerVisible : public WorkerMemory {
 protected:
  void SetUp() override {
    WorkerMemory::SetUp();
    if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real driver looks by itself";
    uuid_[4] = std::byte{'1'};  // the second one's
    ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  }
  void TearDown() override {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    WorkerMemory::TearDown();
  }
  Result<std::shared_ptr<Worker>> start_where_it_is(const std::string& name) const {
    std::ofstream(program()) << "#!/bin/sh\n"
                             << "echo ${CUDA_VISIBLE_DEVICES-all} >>" << folder_.path()
                             << "/asked\n"
                             << "case ${CUDA_VISIBLE_DEVICES-all} in\n"
                             << "  all) seen=devices=2 ;;\n"
                             << "  0) seen=visible=0 ;;\n"
                             << "  " << name << ") seen='devices=2 visible=1' ;;\n"
                             << "  *) seen=devices=0 ;;\n"
                             << "esac\n"
                             << "export CGX_STANDIN=\"$CGX_STANDIN $seen\"\n"
                             << "exec " << CGXD_GPU << "\n";
    EXPECT_EQ(::chmod(program().c_str(), 0755), 0);
    return try_to_start(program());
  }
  std::string program() const { return folder_.path() + "/cgxd-gpu"; }
  std::vector<std::string> asked() const {
    std::ifstream file(folder_.path() + "/asked");
    return {std::istream_iterator<std::string>(file), {}};
  }
  std::string text() const { return wire::to_text(uuid_); }

 private:
  const ScratchDirectory folder_;
};

TEST_F(WorkerVisible, AWorkerSeesItsGpuWhicheverItsDaemonSees) {
  const auto worker = start_where_it_is("GPU-" + text());
  EXPECT_TRUE(worker.ok()) << worker.status().to_string();
  EXPECT_EQ(asked(), std::vector{"GPU-" + text()});
}

TEST_F(WorkerVisible, APartOfAGpuIsLookedForByItsName) {
  const auto worker = start_where_it_is("MIG-" + text());
  EXPECT_TRUE(worker.ok()) << worker.status().to_string();
  EXPECT_EQ(asked(), (std::vector{"GPU-" + text(), "MIG-" + text()}));
}

TEST_F(WorkerVisible, AGpuThatNobodyHasIsRefusedAmongAllThatThereAre) {
  uuid_[4] = std::byte{'7'};
  const auto worker = start_where_it_is("GPU-that-is-there");
  EXPECT_EQ(worker.status().code(), StatusCode::kNOT_FOUND) << worker.status().to_string();
  EXPECT_NE(worker.status().message().find("none of the 2 GPUs"), std::string::npos)
      << worker.status().to_string();
  EXPECT_EQ(asked(), (std::vector{"GPU-" + text(), "MIG-" + text(), std::string("all")}));
}

TEST_F(WorkerMemory, AMemfdIsNoMemoryOfAGpu) {
  const auto worker = start();
  const UniqueFd memfd = make_memfd(2 << 20, F_SEAL_SHRINK | F_SEAL_GROW);
  const auto added =
      worker->add_arena(message(wire::ArenaWay::kVmm, 2 << 20), words_.get(), memfd.get());
  EXPECT_EQ(added.status().code(), StatusCode::kINVALID_ARGUMENT) << refusal(added);
  EXPECT_NE(refusal(added).find("descriptor is not one of a GPU's memory"), std::string::npos);
}

TEST_F(WorkerMemory, AForgedHandleIsRefused) {
  const auto worker = start();
  wire::AddArena forged = message(wire::ArenaWay::kIpc, 4096);
  std::memset(forged.handle.data(), 0x5a, forged.handle.size());
  const auto added = worker->add_arena(forged, words_.get(), -1);
  EXPECT_EQ(added.status().code(), StatusCode::kINVALID_ARGUMENT) << refusal(added);
}

// UNIMPLEMENTED is what trainers copy their tensors for.
TEST_F(WorkerMemory, AHandleThatTheMachineLetsNotThroughIsUnimplemented) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a real machine lets it through";
  const CUdeviceptr memory = allocate(4096);
  for (const char* const code : {"201", "205", "400", "711"}) {
    const auto worker = start_with(std::string(" fail=cuIpcOpenMemHandle:*=") + code);
    const auto added = worker->add_arena(message_of(memory, 4096), words_.get(), -1);
    EXPECT_EQ(added.status().code(), StatusCode::kUNIMPLEMENTED) << refusal(added);
    EXPECT_NE(refusal(added).find("is either in a container"), std::string::npos);
  }
}

TEST_F(WorkerMemory, AHandleReachesNoFurtherThanItsAllocation) {
  const auto worker = start();
  const CUdeviceptr memory = allocate(1 << 20);
  wire::AddArena arena = message_of(memory, 1 << 20);
  arena.offset = 64;
  auto added = worker->add_arena(arena, words_.get(), -1);
  EXPECT_NE(refusal(added).find("ends past its allocation of 1048576"), std::string::npos)
      << refusal(added);
  arena.offset = UINT64_MAX - 8;
  added = worker->add_arena(arena, words_.get(), -1);
  EXPECT_EQ(added.status().code(), StatusCode::kINVALID_ARGUMENT) << refusal(added);
  arena.offset = 64;
  arena.bytes -= 64;
  added = worker->add_arena(arena, words_.get(), -1);
  ASSERT_TRUE(added.ok()) << refusal(added);
  const std::vector<uint8_t> here = read(memory + 64, 8);
  EXPECT_EQ(std::memcmp(here.data(), &added->pattern, 8), 0);
  worker->drop_arena(added->number);
  EXPECT_TRUE(worker->make_residual(16).ok()) << "it has closed the handle by now";
}

TEST_F(WorkerMemory, APatternGoesWhereItWasAskedForAndNowhereElse) {
  const auto worker = start();
  CUdeviceptr memory = 0;
  ASSERT_CU(cu_->cuMemAlloc(&memory, 4096));
  const std::vector<uint8_t> before = read(memory, 4096);
  wire::AddArena arena = message_of(memory, 4096);
  for (const uint64_t beyond : {uint64_t{4089}, UINT64_MAX, UINT64_MAX - 7}) {
    arena.pattern_at = beyond;
    const auto refused = worker->add_arena(arena, words_.get(), -1);
    EXPECT_EQ(refused.status().code(), StatusCode::kINVALID_ARGUMENT) << refusal(refused);
    EXPECT_NE(refusal(refused).find("is not in the arena of 4096 bytes"), std::string::npos);
  }
  arena.pattern_at = 4088;
  const auto added = worker->add_arena(arena, words_.get(), -1);
  ASSERT_TRUE(added.ok()) << refusal(added);
  const std::vector<uint8_t> after = read(memory, 4096);
  EXPECT_TRUE(std::equal(before.begin(), before.end() - 8, after.begin()));
  EXPECT_EQ(std::memcmp(after.data() + 4088, &added->pattern, 8), 0);
  EXPECT_TRUE(worker->close_arena(added->number).ok());
  EXPECT_CU(cu_->cuMemFree(memory));  // the stand-in accuses us if it is open there
}

TEST_F(WorkerMemory, APatternIsThereWhenTheWorkerSaysSo) {
  if (std::getenv("CGX_STANDIN") == nullptr)
    GTEST_SKIP() << "a real driver takes the time that it takes";
  const auto worker = start_with(" lag_us=300000");
  const CUdeviceptr memory = allocate(4096);
  wire::AddArena arena = message_of(memory, 4096);
  const auto added = worker->add_arena(arena, words_.get(), -1);
  ASSERT_TRUE(added.ok()) << refusal(added);
  EXPECT_EQ(std::memcmp(read(memory, 8).data(), &added->pattern, 8), 0);
  EXPECT_TRUE(worker->close_arena(added->number).ok());
}

TEST_F(WorkerMemory, WordsThatCouldShrinkAreRefused) {
  const auto worker = start();
  const UniqueFd open = make_memfd(4096, F_SEAL_GROW), small = make_memfd(64, F_SEAL_SHRINK);
  for (const UniqueFd* each : {&open, &small}) {
    const auto added = worker->add_arena(message(wire::ArenaWay::kIpc, 4096), each->get(), -1);
    EXPECT_EQ(added.status().code(), StatusCode::kINVALID_ARGUMENT) << refusal(added);
    EXPECT_NE(refusal(added).find("timeline words"), std::string::npos) << refusal(added);
  }
}

TEST_F(WorkerMemory, WhoIsKilledSaysSo) {
  const auto worker = start();
  worker->kill();
  const auto residual = worker->make_residual(16);
  EXPECT_EQ(residual.status().code(), StatusCode::kDEVICE_LOST);
  pollfd gone{worker->pidfd(), POLLIN, 0};
  ASSERT_EQ(::poll(&gone, 1, 10'000), 1);
  EXPECT_NE(worker->death().find("was killed by signal 9"), std::string::npos) << worker->death();
}

// Whoever comes next gets another worker.
TEST_F(WorkerMemory, AWorkerWhoseGpuHasFailedEndsWhateverItWasAsked) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a GPU does not fail on demand";
  const auto ends = [](const Worker& worker) {
    pollfd gone{worker.pidfd(), POLLIN, 0};
    return ::poll(&gone, 1, 10'000) == 1;
  };
  const auto asked = start_with(" fail=cuMemsetD32Async:1=719");
  EXPECT_EQ(asked->make_residual(16).status().code(), StatusCode::kDEVICE_LOST);
  EXPECT_TRUE(ends(*asked));
  const auto shared = start_with(" fail=cuMemImportFromShareableHandle:1=715");
  const UniqueFd memfd = make_memfd(2 << 20, F_SEAL_SHRINK | F_SEAL_GROW);
  const auto added =
      shared->add_arena(message(wire::ArenaWay::kVmm, 2 << 20), words_.get(), memfd.get());
  EXPECT_EQ(added.status().code(), StatusCode::kDEVICE_LOST) << refusal(added);
  EXPECT_TRUE(ends(*shared));
  const auto idle = start_with(" fail=cuStreamQuery:*=810");
  EXPECT_TRUE(ends(*idle)) << "nobody has asked it anything";
}

// A process that has said its last word is there until the kernel has closed all that it had.
TEST_F(WorkerMemory, WhoeverComesWhileAWorkerDiesGetsAnother) {
  if (std::getenv("CGX_STANDIN") == nullptr) GTEST_SKIP() << "a GPU does not fail on demand";
  const ScratchDirectory folder;
  const std::string program = folder.path() + "/cgxd-gpu";
  std::ofstream(program) << "#!/bin/sh\n"
                         << "export CGX_STANDIN=\"$CGX_STANDIN fail=cuMemsetD32Async:1=719\"\n"
                         << CGXD_GPU << "\n"
                         << "exec 3>&-\n"
                         << "exec sleep 1\n";
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  Workers workers(program);
  const auto failed = workers.of({.job = "a", .device = uuid_});
  ASSERT_TRUE(failed.ok()) << failed.status().to_string();
  EXPECT_EQ((*failed)->make_residual(16).status().code(), StatusCode::kDEVICE_LOST);
  const auto killed = workers.of({.job = "a", .device = uuid_});
  ASSERT_TRUE(killed.ok()) << killed.status().to_string();
  EXPECT_NE(*failed, *killed);
  EXPECT_FALSE((*failed)->alive()) << "and so has the GPU's memory";
  EXPECT_TRUE((*killed)->reserve_work(1, 4096).ok());
  (*killed)->kill();
  const auto last = workers.of({.job = "a", .device = uuid_});
  ASSERT_TRUE(last.ok()) << last.status().to_string();
  EXPECT_NE(*killed, *last);
  EXPECT_TRUE((*last)->reserve_work(1, 4096).ok());
}

TEST_F(WorkerMemory, OneUserLeavesWorkersToOthers) {
  constexpr uint32_t kMost = 8;  // an eighth is kept
  Workers workers(CGXD_GPU, kMost);
  const auto start = [&](uint32_t uid, const std::string& job) {
    return workers.of(
        {.job = job, .uid = uid, .holder = "uid " + std::to_string(uid), .device = uuid_});
  };
  std::vector<std::shared_ptr<Worker>> running;
  for (uint32_t i = 0; i + 1 < kMost; ++i) {
    const auto worker = start(1, std::to_string(i));
    ASSERT_TRUE(worker.ok()) << worker.status().to_string();
    running.push_back(*worker);
  }
  EXPECT_EQ(*start(1, "0"), running.front()) << "it is there already";
  const Status refused = start(1, "more").status();
  EXPECT_EQ(refused.code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_NE(refused.message().find("limits.gpu_workers is 8: 7 taken (7 by uid 1)"),
            std::string::npos)
      << refused.to_string();
  const auto other = start(2, "0");
  EXPECT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(workers.share().used(), kMost);
  running.resize(5);
  EXPECT_TRUE(start(1, "more").ok());
}

TEST_F(WorkerMemory, AWorkerThatEndsHasItsPlaceUntilItIsGone) {
  Workers workers(CGXD_GPU, 8);
  const auto start = [&](const std::string& job) {
    return workers.of({.job = job, .uid = 1, .holder = "uid 1", .device = uuid_});
  };
  auto hangs = start("hangs");
  ASSERT_TRUE(hangs.ok()) << hangs.status().to_string();
  const int pidfd = ::dup((*hangs)->pidfd());
  ASSERT_EQ(::syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, nullptr, 0), 0);
  *hangs = nullptr;
  EXPECT_EQ(workers.share().used(), 1u) << "its process is there";
  std::vector<std::shared_ptr<Worker>> running;
  for (int i = 0; i < 6; ++i) {
    const auto worker = start(std::to_string(i));
    ASSERT_TRUE(worker.ok()) << worker.status().to_string();
    running.push_back(*worker);
  }
  std::thread continues([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::syscall(SYS_pidfd_send_signal, pidfd, SIGCONT, nullptr, 0);
  });
  const auto last = start("waits for it");
  EXPECT_TRUE(last.ok()) << last.status().to_string();
  continues.join();
  EXPECT_EQ(workers.share().used(), 7u);
  ::close(pidfd);
}

TEST_F(WorkerMemory, WorkMemoryGrowsAndIsRefusedWithItsSize) {
  const auto worker = start();
  EXPECT_TRUE(worker->reserve_work(2, 4096).ok());
  EXPECT_TRUE(worker->reserve_work(1, 64).ok());
  const Status much = worker->reserve_work(2, 1ull << 40);
  EXPECT_EQ(much.code(), StatusCode::kRESOURCE_EXHAUSTED) << much.to_string();
  EXPECT_NE(much.message().find("work memory of sparse codecs, 10995"), std::string::npos)
      << much.to_string();
  EXPECT_TRUE(worker->reserve_work(UINT32_MAX, 4096).ok()) << "no more than multiprocessors take";
}

// Of what is left beside these residuals others take all but a little, so the large one has room
// where these have gone. It is small enough to be cleared soon also on a busy machine.
TEST_F(WorkerMemory, WhatIsDroppedIsFreedHoweverBusyTheWorkerWas) {
  if (std::getenv("CGX_STANDIN") == nullptr)
    GTEST_SKIP() << "a real driver has as much memory as it has";
  const auto worker = start_with(" memory=64M");
  std::vector<uint32_t> residuals;
  for (int i = 0; i < 100; ++i) {
    const auto made = worker->make_residual(8 << 10);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    residuals.push_back(*made);
  }
  constexpr uint64_t kLarge = 512 << 10;
  for (uint64_t elements = 4 << 20; elements >= kLarge; elements /= 2) {
    while (worker->make_residual(elements).ok()) continue;
  }
  ASSERT_EQ(::syscall(SYS_pidfd_send_signal, worker->pidfd(), SIGSTOP, nullptr, 0), 0);
  siginfo_t how{};
  ASSERT_EQ(::waitid(P_PIDFD, static_cast<id_t>(worker->pidfd()), &how, WSTOPPED | WNOWAIT), 0);
  for (const uint32_t residual : residuals) worker->drop_residual(residual);
  EXPECT_FALSE(worker->flush()) << "its socket has room for all of these";
  ASSERT_EQ(::syscall(SYS_pidfd_send_signal, worker->pidfd(), SIGCONT, nullptr, 0), 0);
  const auto large = worker->make_residual(kLarge);
  EXPECT_TRUE(large.ok()) << large.status().to_string();
}

TEST_F(WorkerMemory, TooMuchIsRefusedWithItsSize) {
  const auto worker = start();
  const auto residual = worker->make_residual(1ull << 40);
  EXPECT_EQ(residual.status().code(), StatusCode::kRESOURCE_EXHAUSTED)
      << residual.status().to_string();
  EXPECT_TRUE(worker->make_residual(1 << 10).ok());
}

}  // namespace
}  // namespace cgx::daemon::gpu
