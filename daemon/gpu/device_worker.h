// cgxd-gpu: computes for one job on one GPU. Takes what cgxd sends over a socket and a ring until
// cgxd closes the socket or the GPU fails.
//
// Thread rule: one thread, and those of the driver.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "daemon/gpu/device_memory.h"
#include "daemon/gpu/held_jobs.h"
#include "daemon/gpu/job_runner.h"
#include "daemon/net/packet_socket.h"

namespace cgx::daemon::gpu {

class DeviceWorker {
 public:
  // Waits for the greeting on the socket and answers it, whatever comes of it.
  static Result<std::unique_ptr<DeviceWorker>> open(UniqueFd socket, bool mps);
  ~DeviceWorker();
  DeviceWorker(const DeviceWorker&) = delete;

  // Until cgxd has gone: OK; or why this GPU cannot go on, which cgxd has been told.
  Status run();

 private:
  explicit DeviceWorker(UniqueFd socket) : socket_(std::move(socket)) {}

  Status greet();
  Status open_channel(Packet& packet);
  Status open_driver();
  Result<device::CUdevice> find_device(const wire::DeviceId& wanted) const;
  Status open_device(device::CUdevice found);
  Status check_kernels();
  Result<int> take_packets();
  void handle(const WorkerPacket& packet, std::vector<UniqueFd>& fds);
  void answer(uint32_t request, const Status& status, uint64_t value = 0);
  Result<int> take_jobs();
  int begin_jobs();
  void cancel(const std::vector<uint64_t>& tickets);
  void tell_held(uint64_t now_ns);
  int answer_jobs();
  void push(const Answer& answer);
  bool flush();
  void publish();
  void sleep();
  void end();

  UniqueFd socket_, channel_, doorbell_, notifier_;
  std::byte* memory_ = nullptr;  // of the channel
  ChannelHead* head_ = nullptr;
  std::unique_ptr<ByteConsumer> jobs_;
  std::unique_ptr<ByteProducer> answers_;
  std::deque<std::vector<std::byte>> unsent_;  // answers that the ring has no room for
  bool gone_ = false;                          // cgxd has
  uint64_t worked_ns_ = 0, told_ns_ = 0;

  device::Driver driver_;
  device::CUdevice device_ = -1;
  std::unique_ptr<kernels::cuda::DriverLane> lane_;
  std::unique_ptr<DeviceMemory> arenas_;
  std::unique_ptr<HeldJobs> held_;
  std::unique_ptr<JobRunner> runner_;
  std::vector<uint32_t> numbers_;  // of arenas
};

}  // namespace cgx::daemon::gpu
