#include "client/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "client/cores.h"
#include "client/discovery.h"

namespace cgx::client {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kConnectTimeoutMs = 10'000;
constexpr uint64_t kArenaBytes = 64 << 20;
constexpr uint64_t kArenaAnnounceMs = 30'000, kArenaBytesPerMs = 1 << 20;  // mapping takes time
constexpr milliseconds kSlice(50);  // how long who waits goes without a look at the daemon
constexpr std::chrono::microseconds kRingPause(50);
constexpr std::chrono::seconds kStopped(4), kStoppedInRequest(30);  // preparing a plan takes time
constexpr std::chrono::milliseconds kLookMax(1100);
constexpr uint64_t kCopiesMs = 10'000;  // a stream that has not made them by then has got stuck
constexpr milliseconds kLookForCopies(2);
constexpr uint64_t kHearMs = 1'000;  // ranks that meet look into the store more often

// "python3 train.py", for the daemon's log.
std::string command_line() {
  std::string text(256, '\0');
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/cmdline", "re"), std::fclose);
  text.resize(file ? std::fread(text.data(), 1, text.size(), file.get()) : 0);
  std::replace(text.begin(), text.end(), '\0', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string job_name(const SessionOptions& options, const Environment& environment) {
  if (!options.job.empty()) return options.job;
  return environment.job.empty() ? "default" : environment.job;
}

std::string not_reached(const std::string& leader, const std::string& loopback) {
  return "CGX_LEADER=" + leader + " is " + loopback +
         " on this machine, where other machines cannot reach it: for ranks there give an address "
         "of the network";
}

Status check_job(const std::string& job) {
  if (job.size() <= wire::kNameBytesMax) return {};
  return invalid_argument("job name of " + std::to_string(job.size()) + " bytes; the limit is " +
                          std::to_string(wire::kNameBytesMax));
}

}  // namespace

Result<std::unique_ptr<Session>> Session::open(const SessionOptions& options) {
  CGX_ASSIGN_OR_RETURN(Environment environment, read_environment());
  if (options.spin_us > kSpinUsMax) {
    return invalid_argument("cgx_open_options.spin_us is " + std::to_string(options.spin_us) +
                            "; at most " + std::to_string(kSpinUsMax));
  }
  if (options.spin_us != 0) environment.spin_us = options.spin_us;
  CGX_RETURN_IF_ERROR(check_spinning(environment.spin_us, 1));
  const std::string job = job_name(options, environment);
  CGX_RETURN_IF_ERROR(check_job(job));
  const Deadline deadline = deadline_in_ms(
      options.connect_timeout_ms == 0 ? kConnectTimeoutMs : options.connect_timeout_ms);
  const wire::Hello hello{.job = job, .client = command_line()};
  CGX_ASSIGN_OR_RETURN(Connection daemon,
                       connect_daemon(environment, options.socket, hello, deadline));
  Handshake& granted = daemon.handshake;
  CGX_ASSIGN_OR_RETURN(auto channel,
                       Channel::map(std::move(granted.memory), std::move(granted.doorbell),
                                    std::move(granted.completion_event)));
  return std::unique_ptr<Session>(new Session(std::move(environment), std::move(daemon.socket),
                                              std::move(channel), std::move(granted.welcome),
                                              options));
}

Session::Session(Environment environment, std::unique_ptr<SessionSocket> socket,
                 std::unique_ptr<Channel> channel, wire::Welcome daemon,
                 const SessionOptions& options)
    : environment_(std::move(environment)),
      job_(job_name(options, environment_)),
      daemon_(std::move(daemon)),
      spin_us_(environment_.spin_us),
      socket_(std::move(socket)),
      channel_(std::move(channel)),
      arenas_(
          options.arena_bytes == 0 ? kArenaBytes : options.arena_bytes,
          [this](uint32_t arena, const ArenaMemory& memory) {
            return announce_arena(arena, memory);
          },
          wire::kArenasMax, [this](uint32_t arena) { return drop_arena(arena); }) {
  socket_->set_health_check([this](Patience patience) {
    const Lock lock(mutex_);
    return stopped(patience == Patience::kPrepares ? kStoppedInRequest : kStopped);
  });
  guard_.close_in_child(socket_->fd());
  guard_.close_in_child(channel_->doorbell());
  guard_.close_in_child(channel_->completion_event());
}

Session::~Session() {
  if (guard_.forked()) {  // descriptors are closed, the channel is not mapped here
    arenas_.abandon();
    socket_->release();
    channel_->abandon_descriptors();
    [[maybe_unused]] SessionSocket* const waited_for =
        socket_.release();  // its condition would wait for threads of the parent
    [[maybe_unused]] LeaderServer* const elsewhere =
        leader_.release();  // its thread is the parent's
    [[maybe_unused]] Channel* const unmapped = channel_.release();
    [[maybe_unused]] CopyWatch* const watching = copies_.release();
    [[maybe_unused]] Staging* const driver = staging_.release();
    return;
  }
  copies_.reset();
  staging_.reset();
  Lock lock(mutex_);
  closing_ = true;
  channel_->wake_all();
  left_.wait(lock, [this] { return polling_ == 0; });
  if (lost_.ok()) static_cast<void>(socket_->post(wire::Goodbye{}).ok());
  guard_.forget(socket_->fd());
  guard_.forget(channel_->doorbell());
  guard_.forget(channel_->completion_event());
  if (leader_ != nullptr) guard_.forget(leader_->listening());
}

Status Session::serve_leader(uint32_t ranks) {
  CGX_RETURN_IF_ERROR(open_leader());
  CGX_ASSIGN_OR_RETURN(const Lock lock, enter());
  const bool unreached = leader_ != nullptr && !leader_->loopback().empty();
  if (!unreached || !some_elsewhere(environment_.launcher, ranks)) return {};
  return invalid_argument(not_reached(environment_.leader, leader_->loopback()));
}

Status Session::end_meeting(const Status& why) {
  const LeaderServer* leader = nullptr;  // stays until the session is closed
  {
    CGX_ASSIGN_OR_RETURN(const Lock lock, enter_to_look());
    leader = leader_.get();
  }
  if (leader == nullptr) return why;
  leader->wait_for_others(deadline_in_ms(kHearMs));
  if (why.code() != StatusCode::kTIMED_OUT || leader->loopback().empty()) return why;
  return {why.code(), why.message() + "; " + not_reached(environment_.leader, leader->loopback())};
}

Status Session::open_leader() {
  {
    CGX_ASSIGN_OR_RETURN(const Lock lock, enter());
    if (leader_ != nullptr) return {};
  }
  // Without the lock: the resolver may take its time.
  Result<std::unique_ptr<LeaderServer>> served = LeaderServer::open(environment_.leader);
  if (served.status().code() == StatusCode::kNOT_FOUND) return {};
  CGX_RETURN_IF_ERROR(served.status());
  CGX_ASSIGN_OR_RETURN(const Lock lock, enter());
  if (leader_ != nullptr) return {};
  leader_ = *std::move(served);
  guard_.close_in_child(leader_->listening());  // where nobody would answer, and nobody else could
  return {};
}

Status Session::announce_arena(uint32_t arena, const ArenaMemory& memory) {
  if (memory.device() != nullptr) return announce_device(arena, *memory.device());
  const wire::AddArena message{.arena = arena, .bytes = memory.bytes()};
  const uint64_t limit_ms = kArenaAnnounceMs + memory.bytes() / kArenaBytesPerMs;
  return socket_->call(message, deadline_in_ms(limit_ms), {.fd = memory.fd()}).status();
}

Status Session::announce_device(uint32_t arena, DeviceMemory& memory) {
  CGX_ASSIGN_OR_RETURN(const wire::Reply reply,
                       socket_->call(memory.announcement(arena), deadline_in_ms(kArenaAnnounceMs),
                                     {.fd = memory.words_fd(), .second_fd = memory.memory_fd()}));
  memory.announced(reply.value0);
  return {};
}

Status Session::drop_arena(uint32_t arena) {
  const wire::DropArena message{.arena = arena};
  return socket_->call(message, deadline_in_ms(kArenaAnnounceMs)).status();
}

Status Session::import(const wire::DeviceId& device, const void* memory, uint64_t bytes) {
  CGX_ASSIGN_OR_RETURN(Staging* const driver, staging());
  CGX_RETURN_IF_ERROR(driver->check_range(memory, bytes, "the memory to import"));
  return arenas_.import(device, memory, bytes, [driver, &device, memory] {
    return DeviceMemory::import(driver->driver(), device, memory);
  });
}

Status Session::end_import(const void* memory, Deadline deadline) {
  take_in();
  for (;;) {
    CGX_ASSIGN_OR_RETURN(const bool ended, arenas_.try_end_import(memory));
    if (ended) return {};
    CGX_ASSIGN_OR_RETURN(Lock lock, enter());
    const Status unnamed = wait(lock, deadline, [&] { return !arenas_.named(memory); });
    if (unnamed.code() == StatusCode::kTIMED_OUT) {
      return {
          StatusCode::kTIMED_OUT,
          "the imported memory is named by a call or step that is unfinished, or is the home of "
          "a tensor; close its communicator"};
    }
    CGX_RETURN_IF_ERROR(unnamed);
    lock.unlock();
    CGX_RETURN_IF_ERROR(wait_for_words(memory, deadline));
  }
}

// A rank that was lost ends the steps that name memory, not what streams still do there.
Status Session::wait_for_words(const void* imported, Deadline deadline) {
  while (!arenas_.idle(imported)) {
    if (Clock::now() >= deadline) {
      return {StatusCode::kTIMED_OUT,
              "streams have not done yet what was handed over in the imported memory"};
    }
    std::this_thread::sleep_for(kLookForCopies);
  }
  return {};
}

ArenaSet::MakeDevice Session::make_on(const wire::DeviceId& device) {
  return
      [this, device](wire::ArenaWay way, uint64_t bytes) -> Result<std::unique_ptr<DeviceMemory>> {
        CGX_ASSIGN_OR_RETURN(Staging* const driver, staging());
        return DeviceMemory::create(driver->driver(), device, way, bytes);
      };
}

Result<void*> Session::allocate_on(const wire::DeviceId& device, uint64_t bytes,
                                   uint64_t alignment) {
  return arenas_.allocate_on(device, bytes, alignment, make_on(device));
}

Status Session::check_not_forked() const {
  if (!guard_.forked()) return {};
  return {StatusCode::kFORKED,
          "the session belongs to the parent process; open one in this process"};
}

Result<Lock> Session::enter_to_look() {
  CGX_RETURN_IF_ERROR(check_not_forked());
  return Lock(mutex_);
}

Result<Lock> Session::enter() {
  CGX_ASSIGN_OR_RETURN(Lock lock, enter_to_look());
  if (!lost_.ok()) return lost_;
  return lock;
}

uint32_t Session::attach(CompletionSink& sink) {
  sinks_.emplace(++last_handle_, &sink);
  return last_handle_;
}

void Session::detach(uint32_t handle) {
  sinks_.erase(handle);
}

void Session::take_in() {
  const Lock lock(mutex_);
  drain();
}

Status Session::make_room(Lock& lock, uint32_t records, uint32_t completions, Deadline deadline,
                          const bool& closed) {
  for (;;) {
    CGX_RETURN_IF_ERROR(wait(lock, deadline, [&] {
      return reserved_ + completions <= CGX_COMPLETION_CAPACITY || closed || !lost_.ok();
    }));
    if (!lost_.ok()) return lost_;
    if (closed) return {};
    if (channel_->submit_room() >= records) return {};
    if (Clock::now() >= deadline) {
      return {StatusCode::kTIMED_OUT, "the daemon takes no records from the submit ring"};
    }
    channel_->publish();
    pause_for_ring(lock);
  }
}

// The daemon does not tell when it reads the submit ring: look again soon.
void Session::pause_for_ring(Lock& lock) {
  lock.unlock();
  std::this_thread::sleep_for(kRingPause);
  const Status gone = socket_->gone();
  lock.lock();
  if (!gone.ok()) lose(gone);
}

void Session::flush(Lock& lock, Deadline deadline) {
  while (channel_->submit_room() < CGX_SUBMIT_CAPACITY && lost_.ok() && Clock::now() < deadline) {
    pause_for_ring(lock);
  }
}

void Session::push(const cgx_submit_record& record, uint32_t completions) {
  reserved_ += completions;
  channel_->push(record);
}

Status Session::failure_of(const cgx_completion_record& record) const {
  if (record.outcome != CGX_OUTCOME_ERROR) return {};
  const auto code = static_cast<StatusCode>(record.status);
  if (code == StatusCode::kOK) return internal_error("the daemon reported an error without a code");
  std::string text = channel_->text_of(record);
  return {code, text.empty() ? std::string(status_meaning(code)) : std::move(text)};
}

void Session::drain() {
  cgx_completion_record record;
  Channel::Pop popped = channel_->try_pop(record);
  if (popped == Channel::Pop::kEmpty) return;
  for (; popped == Channel::Pop::kRecord; popped = channel_->try_pop(record)) {
    ++events_;
    const auto sink = sinks_.find(record.comm);
    if (sink == sinks_.end()) continue;
    reserved_ -= std::min(sink->second->complete(record, failure_of(record)), reserved_);
  }
  channel_->release();
  if (popped == Channel::Pop::kViolation) {
    lose(protocol_error("the daemon's completion cursor is out of range"));
  }
}

void Session::lose(Status why) {
  if (!lost_.ok()) return;
  lost_ = std::move(why);
  ++events_;
  socket_->shut_down(lost_);
  channel_->wake_all();
}

// Asked for by CGX_SPIN_US: burns the core while an answer is likely to be near.
void Session::spin(Lock& lock, Deadline deadline) {
  if (spin_us_ == 0) return;
  const Deadline end =
      std::min<Deadline>(deadline, Clock::now() + std::chrono::microseconds(spin_us_));
  const uint64_t tail = channel_->completion_tail();
  drain();
  lock.unlock();
  while (channel_->completion_tail() == tail && Clock::now() < end) pause_core();
  lock.lock();
  drain();
}

void Session::sleep_slice(Lock& lock, uint32_t word, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  lock.unlock();
  channel_->sleep(word, std::clamp<std::chrono::nanoseconds>(left, milliseconds(0), kSlice));
  lock.lock();
}

// However short the sleeps between are, or if there are none.
bool Session::daemon_lives() {
  if (!lost_.ok()) return false;
  if (Clock::now() - last_look_ < kSlice) return true;
  Status gone = socket_->gone();
  if (gone.ok()) gone = stopped(kStopped);
  if (gone.ok()) return true;
  drain();  // what it finished before it went
  lose(gone);
  return false;
}

// A stopped daemon keeps its sockets open but beats no more. A look counts for at most kLookMax, so
// a process that was itself suspended does not blame the daemon for it.
Status Session::stopped(std::chrono::nanoseconds limit) {
  const uint32_t beat = channel_->beat();
  const Deadline now = Clock::now();
  if (beat == 0 || beat != last_beat_) {
    still_ = std::chrono::nanoseconds(0);
  } else {
    still_ += std::min<std::chrono::nanoseconds>(now - last_look_, kLookMax);
  }
  last_beat_ = beat;
  last_look_ = now;
  if (still_ < limit) return {};
  return {StatusCode::kDAEMON_LOST,
          "the daemon at " + socket_->path() + " has not moved for " +
              std::to_string(std::chrono::duration_cast<milliseconds>(still_).count()) +
              " ms; is it stopped?"};
}

Status Session::poll(uint64_t& seen, std::optional<Deadline> deadline) {
  CGX_ASSIGN_OR_RETURN(Lock lock, enter_to_look());
  ++polling_;
  channel_->clear_event();
  drain();
  const Status waited = wait(lock, deadline.value_or(deadline_in_ms(kTimeoutMsMax)),
                             [&] { return events_ != seen || closing_; });
  if (--polling_ == 0) left_.notify_all();
  CGX_RETURN_IF_ERROR(waited);
  if (closing_) return {StatusCode::kCANCELLED, "the session is being closed"};
  seen = events_;
  return {};
}

Status Session::wake() {
  CGX_ASSIGN_OR_RETURN(const Lock lock, enter_to_look());
  ++events_;
  channel_->wake_all();
  return {};
}

Result<uint64_t> Session::communicator_ms() {
  CGX_ASSIGN_OR_RETURN(const Lock lock, enter());  // in a forked child there is no channel
  return channel_->communicator_ms();
}

Status Session::end_copies() {
  if (guard_.forked()) return {};
  const auto idle = [this] {
    const MutexLock lock(staging_mutex_);
    return copies_->idle() && (staging_ == nullptr || staging_->idle()) && arenas_.idle();
  };
  const Deadline deadline = deadline_in_ms(kCopiesMs);
  while (!idle()) {
    if (Clock::now() >= deadline) {
      return {StatusCode::kTIMED_OUT,
              "copies between the GPU and the arena still wait on their streams after " +
                  std::to_string(kCopiesMs) +
                  " ms; the session is over, and its memory stays until the process ends"};
    }
    std::this_thread::sleep_for(kLookForCopies);
  }
  return {};
}

void Session::say_goodbye() {
  const Lock lock(mutex_);
  if (lost_.ok()) static_cast<void>(socket_->post(wire::Goodbye{}).ok());
}

Result<Staging*> Session::staging() {
  const MutexLock lock(staging_mutex_);
  if (staging_ == nullptr) {
    CGX_ASSIGN_OR_RETURN(staging_, Staging::open());
  }
  return staging_.get();
}

void Session::keep_for(void* stream) {
  if (guard_.forked()) return;
  const Result<Staging*> staging = this->staging();
  if (!staging.ok() || !(*staging)->check_not_captured(stream).ok()) return;
  (*staging)->sweep();
  static_cast<void>((*staging)->copy_of_nothing(stream, nullptr).ok());
}

Result<StagedIn> Session::stage_in(const DeviceBuffers& buffers,
                                   const std::optional<wire::DeviceId>& device) {
  CGX_ASSIGN_OR_RETURN(Staging* const staging, this->staging());
  if (device && arenas_.on_device(buffers.in) && arenas_.on_device(buffers.out)) {
    CGX_RETURN_IF_ERROR(staging->check_not_captured(buffers.stream));
    return order({.memory = nullptr, .copy = {}}, buffers.in, buffers.stream);
  }
  CGX_RETURN_IF_ERROR(staging->check(buffers).status());
  take_in();
  staging->sweep();
  const uint64_t bytes = std::max<uint64_t>(buffers.bytes, 1);
  CGX_ASSIGN_OR_RETURN(void* const memory,
                       device ? allocate_on(*device, bytes, 64) : arenas_.allocate(bytes, 64));
  StagedIn staged{.memory = std::shared_ptr<void>(
                      memory, [this](void* p) { static_cast<void>(arenas_.release(p).ok()); })};
  if (device) {
    CGX_RETURN_IF_ERROR(staging->copy_within(memory, buffers));
    return order(std::move(staged), memory, buffers.stream);
  }
  CGX_RETURN_IF_ERROR(staging->pin(arenas_.holder(memory)));
  CGX_ASSIGN_OR_RETURN(staged.copy, staging->copy_in(staged.memory, buffers));
  return staged;
}

// The worker waits for the stream's word; where there is none, the host waits for the stream.
Result<StagedIn> Session::order(StagedIn staged, const void* memory, void* stream) {
  CGX_ASSIGN_OR_RETURN(Staging* const staging, this->staging());
  std::shared_ptr<ArenaMemory> arena = arenas_.holder(memory);
  const Result<Ready> ready = arena->device()->when_done(stream);
  if (ready.ok()) {
    staged.ready = *ready;
    staged.host_waits = false;
    if (staged.memory == nullptr) return staged;
    staged.copy = staging->copy_until(std::move(arena), *ready, staged.memory);
    return staged;
  }
  const bool none = ready.status().code() == StatusCode::kUNIMPLEMENTED;
  if (!none && staged.memory == nullptr) return ready.status();
  staging->sweep();
  Result<Copy> copy =
      staging->copy_of_nothing(stream, staged.memory);  // keeps it, whatever follows
  if (!none) return ready.status();
  CGX_ASSIGN_OR_RETURN(staged.copy, std::move(copy));
  return staged;
}

Result<int> Session::event_descriptor() {
  CGX_ASSIGN_OR_RETURN(const Lock lock, enter());
  return channel_->arm_event();
}

}  // namespace cgx::client
