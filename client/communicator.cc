// Communicator, its beginning and end.
#include "client/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/checks.h"
#include "client/cores.h"
#include "client/leader.h"
#include "client/rendezvous.h"

namespace cgx::client {
namespace {

constexpr uint64_t kTimeoutMs = 30ull * 60 * 1000;  // of a daemon that does not say
constexpr uint64_t kGraceMs =
    5'000;  // the daemon's own time-out, which names the culprit, is first
constexpr uint64_t kFlushMs = 2'000;
constexpr uint32_t kRanksMax = 65'536;

Status check_options(const cgx_comm_options& options, uint32_t size, bool leader) {
  const size_t length = options.name ? std::strlen(options.name) : 0;
  if (length == 0 || length > wire::kNameBytesMax) {
    return invalid_argument("the communicator's name must have 1 to " + text(wire::kNameBytesMax) +
                            " bytes, not " + text(length));
  }
  if (size > kRanksMax) {
    return invalid_argument(text(size) + " ranks exceed the limit of " + text(kRanksMax));
  }
  if (options.rank >= size) {
    return invalid_argument("rank " + text(options.rank) + " must be below the number of ranks, " +
                            text(size));
  }
  const bool callbacks = options.rendezvous.put && options.rendezvous.get;
  if (size > 1 && !callbacks && !leader) {
    return invalid_argument("a communicator of " + text(size) +
                            " ranks needs rendezvous.put and rendezvous.get, or CGX_LEADER");
  }
  return {};
}

// What a communicator named that was closed while the daemon owed it answers.
class Unanswered final : public Leftover {
 public:
  Unanswered(StepLedger steps, CallLedger calls, std::vector<std::unique_ptr<Tensor>> tensors)
      : steps_(std::move(steps)), calls_(std::move(calls)), tensors_(std::move(tensors)) {}

 private:
  StepLedger steps_;
  CallLedger calls_;
  std::vector<std::unique_ptr<Tensor>> tensors_;
};

}  // namespace

Communicator::Communicator(Session& session, const cgx_comm_options& options, uint64_t timeout_ms)
    : session_(session), name_(options.name), timeout_ms_(timeout_ms), steps_(options.first_step) {}

Result<std::unique_ptr<Communicator>> Communicator::create(Session& session,
                                                           const cgx_comm_options& options) {
  cgx_comm_options full = options;
  if (full.ranks == 0) full.ranks = 1;
  CGX_RETURN_IF_ERROR(check_options(full, full.ranks, !session.environment().leader.empty()));
  CGX_ASSIGN_OR_RETURN(const uint64_t daemons_ms, session.communicator_ms());
  const uint64_t usual_ms = daemons_ms == 0 ? kTimeoutMs : daemons_ms;
  std::unique_ptr<Communicator> comm(
      new Communicator(session, full, full.timeout_ms == 0 ? usual_ms : full.timeout_ms));
  CGX_RETURN_IF_ERROR(comm->join(full));
  return comm;
}

// The daemon knows of other processes with this rank's number, and which ranks died before they
// met.
Status Communicator::may_meet(uint32_t rank) {
  CGX_RETURN_IF_ERROR(session_.enter().status());
  const wire::Meet message{.comm = handle_, .name = name_, .rank = rank};
  return session_.socket().call(message, deadline()).status();
}

// The caller's store or, without one, that of CGX_LEADER, which rank 0 serves where it can.
Result<std::unique_ptr<Store>> Communicator::store_for(const Meeting& meeting,
                                                       const cgx_comm_options& options) {
  if (options.rendezvous.put != nullptr || options.ranks == 1) {
    return std::unique_ptr<Store>(std::make_unique<CallbackStore>(options.rendezvous));
  }
  const auto serve = [&] {
    return options.rank == 0 ? session_.serve_leader(options.ranks) : Status();
  };
  CGX_RETURN_IF_ERROR(serve());
  CGX_ASSIGN_OR_RETURN(
      std::unique_ptr<LeaderStore> store,
      LeaderStore::connect(session_.environment().leader, meeting.deadline, meeting.go_on, serve));
  return std::unique_ptr<Store>(std::move(store));
}

Status Communicator::join(const cgx_comm_options& options) {
  uint32_t arena = wire::kNoArena;
  std::string staged;
  CGX_RETURN_IF_ERROR(choose_site(options, arena, staged));
  Meeting meeting{.prefix = "cgx/" + session_.job() + "/" + name_,
                  .name = name_,
                  .rank = options.rank,
                  .size = options.ranks,
                  .self = {session_.daemon().instance, session_.daemon().mesh_address,
                           device_.value_or(wire::DeviceId{})},
                  .deadline = deadline_in_ms(timeout_ms_),
                  .go_on = [this, &options] { return may_meet(options.rank); }};
  CGX_ASSIGN_OR_RETURN(meeting.key_if_first, random_key());
  {
    CGX_ASSIGN_OR_RETURN(const Lock lock, session_.enter());
    handle_ = session_.attach(*this);
    if (session_.job_key) meeting.key_if_first = *session_.job_key;
  }
  CGX_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, store_for(meeting, options));
  Result<Agreement> met = meet(meeting, store.get());
  store.reset();  // others may need its connection's place
  const bool led = options.rendezvous.put == nullptr;
  if (!met.ok()) return led ? session_.end_meeting(met.status()) : met.status();
  Agreement agreement = *std::move(met);
  const auto local = std::count_if(
      agreement.members.begin(), agreement.members.end(),
      [&](const wire::Member& member) { return member.instance == meeting.self.instance; });
  CGX_RETURN_IF_ERROR(check_spinning(session_.spin_us(), static_cast<uint32_t>(local)));
  {
    CGX_ASSIGN_OR_RETURN(const Lock lock, session_.enter());
    if (!session_.job_key) session_.job_key = agreement.job_key;
  }
  wire::CreateCommunicator message{.comm = handle_,
                                   .name = name_,
                                   .rank = options.rank,
                                   .first_step = options.first_step,
                                   .timeout_ms = std::min(options.timeout_ms, kTimeoutMsMax),
                                   .meeting = agreement.number,
                                   .job_key = agreement.job_key,
                                   .arena = arena,
                                   .staged = std::move(staged),
                                   .members = std::move(agreement.members)};
  CGX_RETURN_IF_ERROR(check_members(message));
  const Status made = session_.socket().call(message, deadline()).status();
  if (!device_ || made.code() != StatusCode::kDEVICE_LOST) return made;
  // The worker that had the arena has died meanwhile; a new one gets an arena of its own.
  CGX_ASSIGN_OR_RETURN(message.arena, session_.arenas().arena_instead(*device_));
  return session_.socket().call(message, deadline()).status();
}

// On the GPU that is named, unless its memory cannot be shared: tensors are staged on the host
// then.
Status Communicator::choose_site(const cgx_comm_options& options, uint32_t& arena,
                                 std::string& staged) {
  wire::DeviceId device{};
  std::memcpy(device.data(), options.device, sizeof(options.device));
  if (device == wire::DeviceId{}) return {};
  const Result<uint32_t> there = session_.arena_on(device);
  if (there.ok()) {
    device_ = device;
    arena = *there;
    return {};
  }
  staged = there.status().message();
  if (there.status().code() == StatusCode::kUNIMPLEMENTED) return {};
  return {there.status().code(), "communicator " + name_ + ": " + staged};
}

Status Communicator::cancel() {
  CGX_ASSIGN_OR_RETURN(const Lock lock, session_.enter_to_look());
  end_waits();
  return {};
}

// With the lock held.
void Communicator::end_waits() {
  closed_ = true;
  session_.wake_waiters();
  for (const uint32_t request : asked_) session_.socket().cancel(request);
}

Communicator::~Communicator() {
  static_cast<void>(close().ok());
}

Status Communicator::close() {
  auto entered = session_.enter_to_look();
  if (!entered.ok()) {  // a forked child's copy
    session_.arenas().abandon();
    return {};
  }
  Lock lock = std::move(entered).value();
  end_waits();
  left_.wait_until(lock, deadline(), [this] { return users_ == 0 && copying_ == 0; });
  left_.wait(lock, [this] { return users_ == 0; });
  const uint32_t copying = std::exchange(copying_, 0);
  if (copying > 0) *self_ = nullptr;  // nobody is told of them any more
  session_.copies().leave(this);
  const Status left = leave(lock);
  if (copying == 0 || !left.ok()) return left;
  return {StatusCode::kTIMED_OUT, "communicator " + name_ + " was closed, but " + text(copying) +
                                      " copies of its tensors from the GPU still wait on their "
                                      "streams; their memory is kept until they are made"};
}

// Nobody is inside any more.
Status Communicator::leave(Lock& lock) {
  const uint32_t handle = std::exchange(handle_, 0);
  if (handle == 0) return {};
  session_.flush(lock, deadline_in_ms(kFlushMs));
  const Status answered = let_go(lock, handle);
  session_.drain();
  for (const auto& tensor : tensors_) {
    if (tensor->owned) static_cast<void>(session_.arenas().release(tensor->home).ok());
  }
  session_.detach(handle);
  session_.forget_slots(steps_.reserved() + calls_.in_flight());
  const bool owed = steps_.owed() || calls_.in_flight() > 0;
  if (!answered.ok() && owed) {
    session_.keep(
        std::make_unique<Unanswered>(std::move(steps_), std::move(calls_), std::move(tensors_)));
  }
  return answered.code() == StatusCode::kTIMED_OUT ? answered : Status();
}

// Asks the daemon to say when it is done with this communicator's memory.
Status Communicator::let_go(Lock& lock, uint32_t handle) {
  if (!session_.lost().ok()) return session_.lost();
  lock.unlock();
  const Status answered = session_.socket()
                              .call(wire::CloseCommunicator{.comm = handle}, deadline(),
                                    {.patience = Patience::kAnswers})
                              .status();
  lock.lock();
  if (answered.code() != StatusCode::kTIMED_OUT) return answered;
  return {StatusCode::kTIMED_OUT,
          "communicator " + name_ +
              " was closed, but the daemon has not let go of its memory: " + answered.message()};
}

Deadline Communicator::deadline(int64_t timeout_ms) const {
  const uint64_t own = std::min(timeout_ms_, kTimeoutMsMax) + kGraceMs;
  return deadline_in_ms(timeout_ms < 0 ? own : std::min(static_cast<uint64_t>(timeout_ms), own));
}

Status Communicator::timed_out(const Status& status, const std::string& what) const {
  if (status.code() != StatusCode::kTIMED_OUT) return status;
  return {StatusCode::kTIMED_OUT, what + " of communicator " + name_ + ": " + status.message()};
}

Status Communicator::cancelled() const {
  if (!broken_.ok()) return broken_;
  return {StatusCode::kCANCELLED, "communicator " + name_ + " was closed"};
}

Status Communicator::being_committed() const {
  return {StatusCode::kBUSY, "communicator " + name_ + " is being committed"};
}

}  // namespace cgx::client
