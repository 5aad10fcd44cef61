#include "daemon/gpu/device_worker.h"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "daemon/base/clock.h"
#include "daemon/gpu/images.h"

namespace cgx::daemon::gpu {
namespace {

constexpr int kJobsPerRound = 64;
constexpr uint64_t kSpinNs = 20'000;
// While the device works or a trainer's does: a quarter of the time that nothing has happened,
// within these.
constexpr uint64_t kNapMinNs = 5'000, kNapMaxNs = 50'000;
constexpr timespec kIdle{1, 0};            // then whether the GPU is well
constexpr uint64_t kTellNs = 100'000'000;  // of jobs that are held
constexpr uint64_t kEndNs = 500'000'000;
constexpr size_t kFdsMax = 3;

std::string hex(const wire::DeviceId& id) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte each : id) {
    text += kDigits[std::to_integer<unsigned>(each) >> 4];
    text += kDigits[std::to_integer<unsigned>(each) & 15];
  }
  return text;
}

void ring(const UniqueFd& bell) {
  constexpr uint64_t kOne = 1;
  static_cast<void>(::write(bell.get(), &kOne, sizeof(kOne)));
}

// Where a GPU cannot be had tensors are staged, and whoever asks is told why. One that is full now
// may have room later.
Status or_staged(const Status& opened) {
  const bool stays = !opened.ok() && opened.code() != StatusCode::kRESOURCE_EXHAUSTED;
  return stays ? Status(StatusCode::kUNIMPLEMENTED, opened.message()) : opened;
}

}  // namespace

Result<std::unique_ptr<DeviceWorker>> DeviceWorker::open(UniqueFd socket, bool mps) {
  std::unique_ptr<DeviceWorker> worker(new DeviceWorker(std::move(socket)));
  const Status greeted = worker->greet();
  const std::string text = greeted.ok() ? worker->driver_.version_text() : greeted.message();
  const bool asks = greeted.ok() && !worker->runner_->writes_words();
  worker->answer(0, {greeted.code(), text}, (mps ? kMpsServes : 0) | (asks ? kAsksEvents : 0));
  CGX_RETURN_IF_ERROR(greeted);
  return worker;
}

DeviceWorker::~DeviceWorker() {
  runner_.reset();
  held_.reset();
  lane_.reset();
  arenas_.reset();
  if (device_ >= 0) driver_.cuDevicePrimaryCtxRelease(device_);
  if (memory_ != nullptr) ::munmap(memory_, kChannelBytes);
}

Status DeviceWorker::greet() {
  pollfd ready{socket_.get(), POLLIN, 0};
  ::poll(&ready, 1, 5'000);
  Packet packet;
  CGX_ASSIGN_OR_RETURN(const ReceiveOutcome got,
                       receive_packet(socket_.get(), sizeof(WorkerPacket), packet, kFdsMax));
  if (got != ReceiveOutcome::kPacket || packet.bytes.size() != sizeof(WorkerPacket)) {
    return protocol_error("cgxd-gpu is started by cgxd only");
  }
  WorkerPacket hello;
  std::memcpy(static_cast<void*>(&hello), packet.bytes.data(), sizeof(hello));
  if (hello.kind != PacketKind::kHello || hello.form != kWorkerForm) {
    return Status(StatusCode::kVERSION_MISMATCH,
                  "cgxd speaks form " + std::to_string(hello.form) + " to its GPU workers, this " +
                      "cgxd-gpu form " + std::to_string(kWorkerForm));
  }
  CGX_RETURN_IF_ERROR(open_channel(packet));
  const Status driver = open_driver();
  const bool may_have_another_name = hello.number != 0 && driver.code() == StatusCode::kNOT_FOUND;
  if (may_have_another_name) return driver;
  CGX_RETURN_IF_ERROR(or_staged(driver));
  CGX_ASSIGN_OR_RETURN(const device::CUdevice found, find_device(hello.device));
  return or_staged(open_device(found));
}

Status DeviceWorker::open_channel(Packet& packet) {
  if (packet.fds.size() != kFdsMax) return protocol_error("the greeting lacks its descriptors");
  channel_ = std::move(packet.fds[0]);
  doorbell_ = std::move(packet.fds[1]);
  notifier_ = std::move(packet.fds[2]);
  void* const memory = ::mmap(nullptr, kChannelBytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_POPULATE, channel_.get(), 0);
  if (memory == MAP_FAILED) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "the channel");
  memory_ = static_cast<std::byte*>(memory);
  head_ = reinterpret_cast<ChannelHead*>(memory_);
  jobs_ = std::make_unique<ByteConsumer>(&head_->jobs, memory_ + kJobRingOffset, kJobRingBytes);
  answers_ = std::make_unique<ByteProducer>(&head_->answers, memory_ + kAnswerRingOffset,
                                            kAnswerRingBytes);
  return {};
}

Status DeviceWorker::open_driver() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // no kernel at its first launch (prepare())
  Result<device::Driver> driver = device::Driver::open();
  const Status& opened = driver.status();
  if (!opened.ok()) return {opened.code(), "cgxd-gpu has no GPU: " + opened.message()};
  driver_ = *std::move(driver);
  return {};
}

Result<device::CUdevice> DeviceWorker::find_device(const wire::DeviceId& wanted) const {
  int count = 0;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuDeviceGetCount(&count), "counting GPUs"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    device::CUdevice each = 0;
    device::CUuuid id{};
    const bool known = driver_.cuDeviceGet(&each, ordinal) == device::CUDA_SUCCESS &&
                       driver_.cuDeviceGetUuid(&id, each) == device::CUDA_SUCCESS;
    if (known && std::memcmp(id.bytes, wanted.data(), sizeof(id.bytes)) == 0) return each;
  }
  return Status(StatusCode::kNOT_FOUND, "none of the " + std::to_string(count) +
                                            " GPUs that cgxd-gpu sees has the UUID " + hex(wanted));
}

Status DeviceWorker::open_device(device::CUdevice found) {
  device::CUcontext context = nullptr;
  CGX_RETURN_IF_ERROR(
      driver_.check(driver_.cuDevicePrimaryCtxRetain(&context, found), "opening the GPU"));
  device_ = found;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuCtxSetCurrent(context), "opening the GPU"));
  const auto loading = [this](bool begins) {
    std::atomic_ref<uint32_t>(head_->worker_loads).store(begins ? 1 : 0);
  };
  CGX_ASSIGN_OR_RETURN(lane_,
                       kernels::cuda::DriverLane::create(driver_, device_, kernel_image, loading));
  CGX_RETURN_IF_ERROR(check_kernels());
  arenas_ = std::make_unique<DeviceMemory>(driver_, device_);
  held_ = std::make_unique<HeldJobs>(*arenas_);
  CGX_ASSIGN_OR_RETURN(runner_, JobRunner::create(driver_, *lane_, *arenas_));
  return {};
}

Status DeviceWorker::run() {
  uint32_t beat = 0;
  while (!gone_ && runner_->lost().ok()) {
    std::atomic_ref<uint32_t>(head_->worker_beat).store(++beat, std::memory_order_relaxed);
    CGX_ASSIGN_OR_RETURN(int work, take_packets());
    CGX_ASSIGN_OR_RETURN(const int taken, take_jobs());
    work += taken + begin_jobs() + answer_jobs();
    const uint64_t now_ns = monotonic_ns();
    if (!held_->empty() && now_ns - told_ns_ >= kTellNs) tell_held(now_ns);
    if (work > 0) worked_ns_ = now_ns;
    if (work == 0 && now_ns - worked_ns_ > kSpinNs) sleep();
  }
  end();
  return runner_->lost();
}

// What is under way ends. Where the GPU has failed, cgxd hears of it for all that it has asked.
void DeviceWorker::end() {
  for (const uint32_t number : numbers_) arenas_->free_words(number);
  const bool cancels = gone_ || !take_jobs().ok();
  if (cancels) held_->clear();
  const uint64_t until = monotonic_ns() + kEndNs;
  while ((!held_->empty() || runner_->busy() || !unsent_.empty()) && monotonic_ns() < until) {
    if (begin_jobs() + answer_jobs() == 0) std::this_thread::yield();
  }
}

Status DeviceWorker::check_kernels() {
  const Status loaded = lane_->load("casts");
  if (loaded.ok()) return {};
  const char* const why = has_kernel_code() ? "cgxd-gpu has no kernels for this GPU: "
                                            : "cgxd-gpu was built without nvcc: ";
  return {StatusCode::kUNIMPLEMENTED, why + loaded.message()};
}

Result<int> DeviceWorker::take_packets() {
  for (int taken = 0;; ++taken) {
    Packet packet;
    CGX_ASSIGN_OR_RETURN(const ReceiveOutcome got,
                         receive_packet(socket_.get(), sizeof(WorkerPacket), packet, kFdsMax));
    if (got == ReceiveOutcome::kNothing) return taken;
    if (got == ReceiveOutcome::kClosed) gone_ = true;
    if (gone_) return taken;
    if (packet.bytes.size() != sizeof(WorkerPacket)) return protocol_error("a packet of odd size");
    WorkerPacket message;
    std::memcpy(static_cast<void*>(&message), packet.bytes.data(), sizeof(message));
    handle(message, packet.fds);
  }
}

void DeviceWorker::handle(const WorkerPacket& packet, std::vector<UniqueFd>& fds) {
  const auto fd = [&](size_t index) {
    return index < fds.size() ? std::move(fds[index]) : UniqueFd();
  };
  switch (packet.kind) {
    case PacketKind::kAddArena: {
      const Result<uint64_t> pattern = arenas_->add_arena(packet, fd(0), fd(1));
      if (pattern.ok()) numbers_.push_back(packet.number);
      return answer(packet.request, runner_->look_at(pattern.status()),
                    pattern.ok() ? *pattern : 0);
    }
    case PacketKind::kDropArena:
      std::erase(numbers_, packet.number);
      arenas_->drop_arena(packet.number);
      if (packet.request != 0) answer(packet.request, {});
      return;
    case PacketKind::kFreeWords:
      return arenas_->free_words(packet.number);
    case PacketKind::kAddStaging:
      return answer(packet.request, runner_->look_at(arenas_->add_staging(packet, fd(0))));
    case PacketKind::kDropStaging:
      return arenas_->drop_staging(packet.number);
    case PacketKind::kMakeResidual:
      return answer(packet.request,
                    runner_->look_at(arenas_->make_residual(packet.number, packet.bytes)));
    case PacketKind::kDropResidual:
      arenas_->drop_residual(packet.number);
      if (!runner_->busy()) arenas_->free_unused();
      return;
    case PacketKind::kReserveWork:
      return answer(packet.request,
                    runner_->look_at(runner_->reserve_work(packet.number, packet.bytes)));
    case PacketKind::kLoadKernels:
      return answer(packet.request, runner_->look_at(lane_->load(packet.spec, DType::kF32)));
    case PacketKind::kHello:
    case PacketKind::kAnswered:
      break;
  }
}

void DeviceWorker::answer(uint32_t request, const Status& status, uint64_t value) {
  WorkerPacket packet{.kind = PacketKind::kAnswered, .request = request};
  packet.status = static_cast<uint32_t>(status.code());
  packet.bytes = value;
  const size_t bytes = std::min(status.message().size(), sizeof(packet.text) - 1);
  std::memcpy(packet.text, status.message().data(), bytes);
  static_cast<void>(send_packet(socket_.get(), std::as_bytes(std::span(&packet, 1))).ok());
}

Result<int> DeviceWorker::take_jobs() {
  for (int taken = 0; taken < kJobsPerRound; ++taken) {
    std::vector<std::byte> message;
    const ByteConsumer::Pop pop = jobs_->try_pop(message);
    if (pop == ByteConsumer::Pop::kEmpty) return taken;
    if (pop == ByteConsumer::Pop::kViolation || message.size() < sizeof(JobHead)) {
      return protocol_error("the ring of jobs is broken");
    }
    CGX_RETURN_IF_ERROR(take_packets().status());  // what it names was sent before it
    JobHead head;
    std::memcpy(&head, message.data(), sizeof(head));
    if (head.kind == JobKind::kEnd) {
      cancel(held_->end(head));
    } else if (head.kind == JobKind::kGiveWay) {
      cancel(held_->give_way(head));
    } else {
      CGX_RETURN_IF_ERROR(held_->push(std::move(message)));
    }
  }
  return kJobsPerRound;
}

void DeviceWorker::cancel(const std::vector<uint64_t>& tickets) {
  const Status why(StatusCode::kCANCELLED, "the operation has failed");
  for (const uint64_t ticket : tickets) {
    Answer answer;
    answer.head.ticket = ticket;
    answer.head.status = static_cast<uint16_t>(why.code());
    answer.text = why.message();
    push(answer);
  }
  publish();
}

// What jobs have waited for since the last time.
void DeviceWorker::tell_held(uint64_t now_ns) {
  told_ns_ = now_ns;
  const std::vector<HeldJobs::Awaited> awaited = held_->look();
  for (const HeldJobs::Awaited& each : awaited) {
    Answer answer;
    answer.head.ticket = each.ticket;
    answer.head.held = 1;
    answer.head.slice = each.slice;
    answer.head.input = each.input;
    push(answer);
  }
  if (!awaited.empty()) publish();
}

int DeviceWorker::begin_jobs() {
  for (int begun = 0; begun < kJobsPerRound; ++begun) {
    const JobMessage* const job = held_->next();
    if (job == nullptr || !runner_->begin(*job)) return begun;
    held_->pop();
  }
  return kJobsPerRound;
}

int DeviceWorker::answer_jobs() {
  const int answered =
      runner_->poll([this](const Answer& answer) { push(answer); }, monotonic_ns());
  if (flush() || answered > 0) publish();
  return answered;
}

void DeviceWorker::publish() {
  answers_->publish();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::atomic_ref<uint32_t> sleeping(head_->daemon_sleeping);
  if (sleeping.load() != 0) ring(notifier_);
}

void DeviceWorker::push(const Answer& answer) {
  AnswerHead head = answer.head;
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(answer.measured)),
                                              std::as_bytes(std::span(answer.losses))};
  head.measured = static_cast<uint32_t>(answer.measured.size());
  head.losses = static_cast<uint32_t>(answer.losses.size());
  head.text_bytes = static_cast<uint16_t>(std::min<size_t>(answer.text.size(), 1024));
  const size_t bytes = sizeof(head) + parts[0].size() + parts[1].size() + head.text_bytes;
  head.bytes = static_cast<uint32_t>((bytes + kRingUnit - 1) / kRingUnit * kRingUnit);
  std::vector<std::byte> message(head.bytes);
  std::memcpy(message.data(), &head, sizeof(head));
  std::byte* end = message.data() + sizeof(head);
  for (const std::span<const std::byte> each : parts) {
    end = std::copy(each.begin(), each.end(), end);
  }
  std::memcpy(end, answer.text.data(), head.text_bytes);
  if (!unsent_.empty() || !answers_->try_push(message)) unsent_.push_back(std::move(message));
}

// True: some went out.
bool DeviceWorker::flush() {
  bool sent = false;
  while (!unsent_.empty() && answers_->try_push(unsent_.front())) {
    unsent_.pop_front();
    sent = true;
  }
  return sent;
}

void DeviceWorker::sleep() {
  pollfd ready[2] = {{socket_.get(), POLLIN, 0}, {doorbell_.get(), POLLIN, 0}};
  const bool naps = runner_->busy() || !unsent_.empty() || !held_->empty();
  const std::atomic_ref<uint32_t> sleeping(head_->worker_sleeping);
  sleeping.store(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (jobs_->empty()) {
    const uint64_t quiet_ns = monotonic_ns() - worked_ns_;
    const timespec nap{0, static_cast<long>(std::clamp(quiet_ns / 4, kNapMinNs, kNapMaxNs))};
    ::ppoll(ready, 2, naps ? &nap : &kIdle, nullptr);
  }
  sleeping.store(0);
  uint64_t rung = 0;
  if ((ready[1].revents & POLLIN) != 0) {
    static_cast<void>(::read(doorbell_.get(), &rung, sizeof(rung)));
  }
}

}  // namespace cgx::daemon::gpu
