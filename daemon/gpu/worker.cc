#include "daemon/gpu/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "daemon/base/clock.h"
#include "daemon/base/spawn.h"
#include "daemon/net/packet_socket.h"

extern char** environ;

namespace cgx::daemon::gpu {
namespace {

constexpr int kAnswersWithinMs = 5'000, kPlansWithinMs = 1'000;
constexpr uint64_t kOpensWithinNs = 25 * kSecond;  // trainers wait 30 s
constexpr uint64_t kLoadsWithinMs = 120'000;       // once for a GPU: drivers keep what they compile
constexpr int kLookMs = 100;                       // whether it loads
constexpr int kSocketOfChild = 3;
constexpr std::string_view kVisible = "CUDA_VISIBLE_DEVICES=";

std::string program_beside_this() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  const std::string self(path, length > 0 ? static_cast<size_t>(length) : 0);
  return self.substr(0, self.rfind('/') + 1) + "cgxd-gpu";
}

Result<OwnMemfd> make_channel() {
  OwnMemfd made{UniqueFd(::memfd_create("cgx-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING)), {}};
  if (!made.fd || ::ftruncate(made.fd.get(), kChannelBytes) != 0 ||
      ::fcntl(made.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "memory for a GPU worker's rings");
  }
  CGX_ASSIGN_OR_RETURN(
      made.region, SharedRegion::map(made.fd.get(), kChannelBytes, SharedRegion::Populate::kYes));
  return made;
}

bool readable(int fd, int timeout_ms) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, timeout_ms) > 0;
}

// There is room for a packet. Refused ones say why when they are sent.
bool writable(int fd) {
  pollfd ready{fd, POLLOUT, 0};
  return ::poll(&ready, 1, 0) > 0;
}

// Ours, but for the GPUs that are seen, which are `visible`; empty: all of them. What a daemon has
// from a rank that started it are the GPUs of that rank.
std::vector<char*> environment_with(std::string& visible) {
  std::vector<char*> words;
  for (char** each = environ; *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with(kVisible)) words.push_back(*each);
  }
  if (!visible.empty()) words.push_back(visible.insert(0, kVisible).data());
  words.push_back(nullptr);
  return words;
}

// No descriptor but the one.
int spawn_worker(const std::string& program, std::string visible, int socket, int& pid) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, socket, kSocketOfChild);
  const SpawnAttributes attributes;
  char* const words[] = {const_cast<char*>(program.c_str()), nullptr};
  const int error = ::posix_spawn(&pid, program.c_str(), &files, attributes.get(), words,
                                  environment_with(visible).data());
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

// UNIMPLEMENTED is what trainers remember.
Status spawn_status(const std::string& program, int error) {
  const bool passes = error == EAGAIN || error == ENOMEM;
  return {
      passes ? StatusCode::kRESOURCE_EXHAUSTED : StatusCode::kUNIMPLEMENTED,
      "tensors on a GPU need " + program + ", which cannot be started: " + std::strerror(error)};
}

// Of a block that is here: they do not move, and what is there stays.
const Staging::Block* Staging::find(const std::byte* memory) const {
  const std::span all(blocks_.data(), there_.load(std::memory_order_acquire));
  const auto found = std::find_if(all.begin(), all.end(), [&](const Block& block) {
    return memory >= block.memory && memory < block.memory + block.bytes;
  });
  CGX_ASSERT(found != all.end());
  return &*found;
}

Result<std::byte*> Staging::map(uint64_t bytes) {
  if (blocks_.size() == kBlocksMax) return resource_exhausted("too many blocks of staging memory");
  UniqueFd fd(::memfd_create("cgx-gpu-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "staging memory");
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "staging memory");
  const Result<uint32_t> number = worker_->add_staging(bytes, fd.get());
  if (!number.ok()) {
    ::munmap(memory, bytes);
    return number.status();
  }
  blocks_.push_back({static_cast<std::byte*>(memory), bytes, *number});
  there_.store(blocks_.size(), std::memory_order_release);
  return static_cast<std::byte*>(memory);
}

// When its store goes, so nobody names a block any more.
void Staging::unmap(std::byte* memory, uint64_t bytes) {
  worker_->drop_staging(find(memory)->number);
  ::munmap(memory, bytes);
}

Staged Staging::locate(std::span<const std::byte> bytes) const {
  const Block& block = *find(bytes.data());
  return {.block = block.number,
          .length = static_cast<uint32_t>(bytes.size()),
          .offset = static_cast<uint64_t>(bytes.data() - block.memory)};
}

// A worker

// A driver that sees one GPU starts sooner. A part of a GPU (MIG) has another kind of name there,
// and which of them has the UUID is not known before.
Result<std::shared_ptr<Worker>> Worker::start(const WorkerOptions& options) {
  const std::string uuid = wire::to_text(options.device);
  const uint64_t until_ns = monotonic_ns() + kOpensWithinNs;
  for (const char* const kind : {"GPU-", "MIG-"}) {
    Result<std::shared_ptr<Worker>> worker = start_seeing(options, kind + uuid, until_ns);
    if (worker.status().code() != StatusCode::kNOT_FOUND) return worker;
  }
  return start_seeing(options, "", until_ns);
}

Result<std::shared_ptr<Worker>> Worker::start_seeing(const WorkerOptions& options,
                                                     const std::string& visible,
                                                     uint64_t until_ns) {
  const auto worker = std::shared_ptr<Worker>(new Worker(options, visible));
  CGX_RETURN_IF_ERROR(worker->open_channel());
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "a socket for a GPU worker");
  }
  worker->socket_ = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  CGX_RETURN_IF_ERROR(worker->spawn(theirs.get()));
  CGX_RETURN_IF_ERROR(worker->greet(until_ns));
  return worker;
}

Status Worker::open_channel() {
  CGX_ASSIGN_OR_RETURN(channel_, make_channel());
  doorbell_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  notifier_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell_ || !notifier_) {
    return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "descriptors of a GPU worker");
  }
  std::byte* const memory = channel_.region.bytes().data();
  head_ = reinterpret_cast<ChannelHead*>(memory);
  jobs_ = std::make_unique<ByteProducer>(&head_->jobs, memory + kJobRingOffset, kJobRingBytes);
  answers_ =
      std::make_unique<ByteConsumer>(&head_->answers, memory + kAnswerRingOffset, kAnswerRingBytes);
  return {};
}

Status Worker::spawn(int socket) {
  const std::string program = options_.program.empty() ? program_beside_this() : options_.program;
  // dup2 to itself would keep the close-on-exec flag.
  const UniqueFd apart(::fcntl(socket, F_DUPFD_CLOEXEC, kSocketOfChild + 1));
  const int error = spawn_worker(program, visible_, apart.get(), pid_);
  if (error != 0) {
    pid_ = 0;
    return spawn_status(program, error);
  }
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "watching a GPU worker");
  return {};
}

Status Worker::greet(uint64_t until_ns) {
  WorkerPacket hello{.kind = PacketKind::kHello};
  hello.device = options_.device;
  hello.number = visible_.empty() ? 0 : 1;
  const MutexLock lock(asking_);
  CGX_RETURN_IF_ERROR(tell(hello, {channel_.fd.get(), doorbell_.get(), notifier_.get()}));
  Packet packet;
  const uint64_t now_ns = monotonic_ns();
  if (!hears(static_cast<int>((std::max(until_ns, now_ns) - now_ns) / kMillisecond))) {
    return {StatusCode::kDEVICE_LOST,
            name() + " did not open its GPU; where NVIDIA's MPS is on, one user at a time may"};
  }
  CGX_ASSIGN_OR_RETURN(const ReceiveOutcome got,
                       receive_packet(socket_.get(), sizeof(WorkerPacket), packet));
  if (got != ReceiveOutcome::kPacket || packet.bytes.size() != sizeof(WorkerPacket)) {
    readable(pidfd_.get(), kAnswersWithinMs);
    return {StatusCode::kDEVICE_LOST, death()};
  }
  WorkerPacket answer;
  std::memcpy(static_cast<void*>(&answer), packet.bytes.data(), sizeof(answer));
  answer.text[sizeof(answer.text) - 1] = 0;
  if (answer.status != 0) return {static_cast<StatusCode>(answer.status), answer.text};
  driver_ = answer.text;
  mps_ = (answer.bytes & kMpsServes) != 0;
  asks_events_ = (answer.bytes & kAsksEvents) != 0;
  return {};
}

Worker::Worker(const WorkerOptions& options, std::string visible)
    : options_(options), visible_(std::move(visible)) {
  if (place() != nullptr) place()->ends = false;  // the same one, tried anew
}

// Nobody waits for it: it ends when its socket closes, or is ended. Its place is taken until then.
Worker::~Worker() {
  socket_.reset();
  if (place() != nullptr) place()->ends = true;
  if (pid_ == 0) return;
  std::thread([pid = pid_, pidfd = std::move(pidfd_), place = place()] {
    if (!readable(pidfd.get(), kAnswersWithinMs)) ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }).detach();
}

std::string Worker::name() const {
  return "cgxd-gpu (process " + std::to_string(pid_) + ", GPU " + wire::to_text(options_.device) +
         ") of job '" + options_.job + "'";
}

scheduler::GpuSnapshot Worker::shown() const {
  return scheduler::GpuSnapshot{.uid = options_.uid,
                                .job = options_.job,
                                .device = wire::to_text(options_.device),
                                .driver = driver_,
                                .mps = mps_,
                                .asks_events = asks_events_};
}

// The GPU's memory, and a GPU that one process at a time may have, are free when it is gone.
void Worker::see_off() {
  if (!readable(pidfd_.get(), kAnswersWithinMs)) kill();
}

bool Worker::alive() const {
  if (readable(pidfd_.get(), 0)) found_dead_ = true;
  return !found_dead_;
}

std::string Worker::death() const {
  if (const char* const why = killed_for_.load()) return name() + " " + why;
  siginfo_t how{};
  const auto process = static_cast<id_t>(pidfd_.get());
  const bool known = ::waitid(P_PIDFD, process, &how, WEXITED | WNOHANG | WNOWAIT) == 0;
  if (!known || how.si_pid == 0) return name() + " no longer answers";
  const std::string number = std::to_string(how.si_status);
  return name() + (how.si_code == CLD_EXITED ? " ended with status " + number
                                             : " was killed by signal " + number);
}

void Worker::kill(const char* why) {
  if (why != nullptr) killed_for_ = why;
  write_off();
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

// In order, and without waiting: a worker that is busy takes them when it can.
Status Worker::tell(const WorkerPacket& packet, std::initializer_list<int> fds) {
  const MutexLock lock(sending_);
  send_waiting();
  if (unsent_.empty() && writable(socket_.get())) return send(packet, fds);
  Unsent& last = unsent_.emplace_back(Unsent{packet, {}});
  for (const int fd : fds) last.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  waits_ = true;
  const bool whole =
      std::all_of(last.fds.begin(), last.fds.end(), [](const UniqueFd& fd) { return fd.valid(); });
  if (whole) return {};
  unsent_.pop_back();
  return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "a descriptor for a GPU worker");
}

bool Worker::flush() {
  if (!waits_.load()) return true;
  const MutexLock lock(sending_);
  send_waiting();
  return unsent_.empty();
}

// One that does not listen any more gets nothing.
void Worker::send_waiting() {
  while (!unsent_.empty() && writable(socket_.get())) {
    const Unsent& first = unsent_.front();
    const auto fd = [&](size_t i) { return first.fds[i].get(); };
    const Status sent = first.fds.empty()       ? send(first.packet, {})
                        : first.fds.size() == 1 ? send(first.packet, {fd(0)})
                                                : send(first.packet, {fd(0), fd(1)});
    if (!sent.ok()) unsent_.clear();
    if (sent.ok()) unsent_.pop_front();
  }
  waits_ = !unsent_.empty();
}

// Whether there is something to read. What is unsent goes out meanwhile. Time in which the worker
// loads kernels does not count.
bool Worker::hears(int timeout_ms) {
  const uint64_t began = monotonic_ns(),
                 patience_ns = static_cast<uint64_t>(timeout_ms) * kMillisecond;
  uint64_t until = began + patience_ns;
  for (uint64_t now = began; now < until; now = monotonic_ns()) {
    if (loads() && now - began < kLoadsWithinMs * kMillisecond) until = now + patience_ns;
    const bool sent = flush();
    pollfd ready{socket_.get(), static_cast<short>(sent ? POLLIN : POLLIN | POLLOUT), 0};
    const auto left_ms = static_cast<int>((until - now) / kMillisecond) + 1;
    const int found = ::poll(&ready, 1, std::min(left_ms, kLookMs));
    if (found > 0 && (ready.revents & ~POLLOUT) != 0) return true;
  }
  return false;
}

bool Worker::loads() const {
  return std::atomic_ref<uint32_t>(head_->worker_loads).load() != 0;
}

uint32_t Worker::beat() const {
  return std::atomic_ref<uint32_t>(head_->worker_beat).load(std::memory_order_relaxed);
}

Status Worker::send(const WorkerPacket& packet, std::initializer_list<int> fds) {
  const Status sent = send_packet(socket_.get(), std::as_bytes(std::span(&packet, 1)), fds);
  if (sent.ok()) return sent;
  write_off();
  return {StatusCode::kDEVICE_LOST, name() + " does not listen: " + sent.message()};
}

Result<WorkerPacket> Worker::ask(WorkerPacket packet, std::initializer_list<int> fds,
                                 const Patience& patience) {
  const MutexLock lock(asking_);
  packet.request = ++requests_;
  CGX_RETURN_IF_ERROR(tell(packet, fds));
  const uint64_t until = monotonic_ns() + static_cast<uint64_t>(patience.ms) * kMillisecond;
  bool late = true;
  while (monotonic_ns() < until && hears(patience.ms)) {
    late = false;
    Packet got;
    CGX_ASSIGN_OR_RETURN(const ReceiveOutcome outcome,
                         receive_packet(socket_.get(), sizeof(WorkerPacket), got));
    if (outcome == ReceiveOutcome::kNothing) continue;
    if (outcome != ReceiveOutcome::kPacket || got.bytes.size() != sizeof(packet)) break;
    std::memcpy(static_cast<void*>(&packet), got.bytes.data(), sizeof(packet));
    if (packet.kind != PacketKind::kAnswered || packet.request != requests_) continue;
    packet.text[sizeof(packet.text) - 1] = 0;
    if (packet.status == 0) return packet;
    if (static_cast<StatusCode>(packet.status) == StatusCode::kDEVICE_LOST) write_off();
    return Status(static_cast<StatusCode>(packet.status), packet.text);
  }
  kill(late ? patience.lost : nullptr);
  if (readable(pidfd_.get(), kAnswersWithinMs)) found_dead_ = true;
  return Status(StatusCode::kDEVICE_LOST, death());
}

constexpr Worker::Patience kUsersPatience{kAnswersWithinMs, "did not answer within 5 s"};
constexpr Worker::Patience kPlannersPatience{kPlansWithinMs, "did not answer within 1 s"};

Result<Worker::AddedArena> Worker::add_arena(const wire::AddArena& message, int words, int memory) {
  WorkerPacket packet{.kind = PacketKind::kAddArena};
  packet.number = ++numbers_;
  packet.bytes = message.bytes;
  packet.way = message.way;
  packet.offset = message.offset;
  packet.handle = message.handle;
  packet.pattern_at = message.pattern_at;
  Result<WorkerPacket> answer = memory >= 0 ? ask(packet, {words, memory}, kUsersPatience)
                                            : ask(packet, {words}, kUsersPatience);
  CGX_RETURN_IF_ERROR(answer.status());
  return AddedArena{packet.number, answer->bytes};
}

void Worker::drop_arena(uint32_t number) {
  static_cast<void>(tell({.kind = PacketKind::kDropArena, .number = number}).ok());
}

Status Worker::close_arena(uint32_t number) {
  return ask({.kind = PacketKind::kDropArena, .number = number}, {}, kUsersPatience).status();
}

void Worker::free_words(uint32_t number) {
  static_cast<void>(tell({.kind = PacketKind::kFreeWords, .number = number}).ok());
}

Result<uint32_t> Worker::make_residual(uint64_t elements) {
  WorkerPacket packet{.kind = PacketKind::kMakeResidual};
  packet.number = ++numbers_;
  packet.bytes = elements;
  CGX_RETURN_IF_ERROR(ask(packet, {}, kPlannersPatience).status());
  return packet.number;
}

void Worker::drop_residual(uint32_t number) {
  static_cast<void>(tell({.kind = PacketKind::kDropResidual, .number = number}).ok());
}

Status Worker::reserve_work(uint32_t buckets, uint64_t bytes) {
  WorkerPacket packet{.kind = PacketKind::kReserveWork};
  packet.number = buckets;
  packet.bytes = bytes;
  return ask(packet, {}, kPlannersPatience).status();
}

Status Worker::load_kernels(const CodecSpec& spec) {
  WorkerPacket packet{.kind = PacketKind::kLoadKernels};
  packet.spec = spec;
  return ask(packet, {}, kPlannersPatience).status();
}

// A driver pins fresh pages at some GB a second.
Result<uint32_t> Worker::add_staging(uint64_t bytes, int fd) {
  constexpr uint64_t kPinnedInMs = 256 << 10;
  WorkerPacket packet{.kind = PacketKind::kAddStaging};
  packet.number = ++numbers_;
  packet.bytes = bytes;
  const Patience patience{kPlansWithinMs + static_cast<int>(bytes / kPinnedInMs),
                          "did not pin staging memory in time"};
  CGX_RETURN_IF_ERROR(ask(packet, {fd}, patience).status());
  return packet.number;
}

void Worker::drop_staging(uint32_t number) {
  static_cast<void>(tell({.kind = PacketKind::kDropStaging, .number = number}).ok());
}

// The worker raises the flag, fences and looks at the ring; here it is the other way round.
void Worker::ring_if_asleep() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (std::atomic_ref<uint32_t>(head_->worker_sleeping).load() == 0) return;
  constexpr uint64_t kOne = 1;
  static_cast<void>(::write(doorbell_.get(), &kOne, sizeof(kOne)));
}

void Worker::set_sleeping(bool sleeping) {
  std::atomic_ref<uint32_t>(head_->daemon_sleeping).store(sleeping ? 1 : 0);
}

// All of them

Workers::Entry* Workers::find(const WorkerOptions& of) {
  for (Entry& each : entries_) {
    if (each.uid == of.uid && each.job == of.job && each.device == of.device) return &each;
  }
  return nullptr;
}

std::shared_ptr<Mutex> Workers::gate(const WorkerOptions& of) {
  const MutexLock lock(mutex_);
  std::erase_if(entries_, [](const Entry& each) {
    return each.worker.expired() && each.starting.use_count() == 1;
  });
  Entry* known = find(of);
  if (known == nullptr) {
    known = &entries_.emplace_back(Entry{of.uid, of.job, of.device, {}, std::make_shared<Mutex>()});
  }
  return known->starting;
}

scheduler::Share Workers::share_beside(const WorkerPlace* own) {
  std::erase_if(places_, [](const auto& each) { return each.expired(); });
  scheduler::Share share("limits.gpu_workers", most_);
  for (const auto& each : places_) {
    const std::shared_ptr<WorkerPlace> place = each.lock();
    if (place != nullptr && place.get() != own) share.add(place->holder);
  }
  return share;
}

scheduler::Share Workers::share() {
  const MutexLock lock(mutex_);
  return share_beside(nullptr);
}

bool Workers::some_end(const WorkerPlace* own) const {
  return std::any_of(places_.begin(), places_.end(), [own](const auto& each) {
    const std::shared_ptr<WorkerPlace> place = each.lock();
    return place != nullptr && place.get() != own && place->ends;
  });
}

// `own`: of the worker that the new one follows.
Result<std::shared_ptr<WorkerPlace>> Workers::take_place(const std::string& holder,
                                                         const WorkerPlace* own) {
  constexpr int kLookAgainMs = 10;
  Status room;
  for (int ms = 0; ms <= kAnswersWithinMs; ms += kLookAgainMs) {
    if (ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(kLookAgainMs));
    const MutexLock lock(mutex_);
    room = share_beside(own).check(holder);
    if (room.ok()) {
      auto place = std::make_shared<WorkerPlace>();
      place->holder = holder;
      places_.push_back(place);
      return place;
    }
    if (!some_end(own)) break;
  }
  return room;
}

Result<std::shared_ptr<Worker>> Workers::of(WorkerOptions wanted) {
  const std::shared_ptr<Mutex> starting = gate(wanted);
  const MutexLock one_at_a_time(*starting);
  std::shared_ptr<Worker> running;
  {
    const MutexLock lock(mutex_);
    running = find(wanted)->worker.lock();
  }
  if (running != nullptr && running->alive() && !running->over()) return running;
  if (running != nullptr) running->see_off();
  wanted.program = program_;
  const WorkerPlace* const before = running != nullptr ? running->place().get() : nullptr;
  CGX_ASSIGN_OR_RETURN(wanted.place, take_place(wanted.holder, before));
  Result<std::shared_ptr<Worker>> worker = Worker::start(wanted);
  if (!worker.ok()) return worker;
  const MutexLock lock(mutex_);
  find(wanted)->worker = *worker;
  return worker;
}

}  // namespace cgx::daemon::gpu
