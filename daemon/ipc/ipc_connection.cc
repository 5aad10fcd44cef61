#include "daemon/ipc/ipc_connection.h"

#include <poll.h>

#include <algorithm>

#include "config/text.h"
#include "daemon/base/clock.h"

namespace cgx::daemon {

using wire::SessionMessageType;

namespace {

constexpr size_t kDescriptorsOfASession = 5;      // until it is open; two stay
constexpr size_t kDescriptorsOfAPacketMax = 253;  // SCM_MAX_FD

bool has_spoken(int socket) {
  pollfd one{socket, POLLIN, 0};
  return ::poll(&one, 1, 0) > 0 && one.revents == POLLIN;
}

}  // namespace

IpcAgent::Connection::Connection(IpcAgent& agent, SessionSerial serial, UniqueFd socket,
                                 PeerProcess peer, std::string holder,
                                 Unserved::Count unserved_of_user, uint64_t deadline_ns)
    : agent_(agent),
      serial_(serial),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      holder_(std::move(holder)),
      unserved_of_user_(std::move(unserved_of_user)),
      deadline_ns_(deadline_ns) {}

Status IpcAgent::Connection::watch() {
  CGX_RETURN_IF_ERROR(agent_.poller().add(socket_.get(), EPOLLIN, serial_ * 2));
  if (!peer_.pidfd) return {};
  return agent_.poller().add(peer_.pidfd.get(), EPOLLIN, serial_ * 2 + 1);
}

std::string IpcAgent::Connection::description() const {
  std::string text = peer_.pid != 0 ? "process " + std::to_string(peer_.pid)
                                    : std::string("a process of another pid namespace");
  if (!client_.empty()) text += " (" + client_ + ")";
  if (!job_.empty()) text += " of job '" + job_ + "'";
  return text + ", uid " + std::to_string(peer_.uid);
}

Status IpcAgent::Connection::death() const {
  const bool dead = peer_.pidfd && has_exited(peer_.pidfd.get());
  return Status(StatusCode::kRANK_LOST,
                description() + (dead ? " died" : " closed its session without saying goodbye"));
}

template <typename Body>
void IpcAgent::Connection::ask(uint32_t request, Body body) {
  agent_.ports_.host.ask(
      {serial_, request, std::move(body), Unserved(unserved_, unserved_of_user_)});
}

bool IpcAgent::Connection::too_much_waits() const {
  return *unserved_ >= kUnservedMax || *unserved_of_user_ >= kUnservedOfUserMax ||
         agent_.too_much_waits(holder_);
}

Admission::Answer IpcAgent::Connection::ask_for_descriptors(size_t sent) {
  const bool is_in = state_ != State::kGreeting;
  return admission_.ask(socket_.get(), agent_.now_ns_, sent + (is_in ? 0 : kDescriptorsOfASession),
                        is_in);
}

// What finds no room the kernel closes while this thread receives it, and that may take long.
Admission::Answer IpcAgent::Connection::ask_for_room(NextPacket next) {
  if (next == NextPacket::kWithDescriptors) {
    const size_t sent = unread_descriptors(socket_.get()).value_or(kDescriptorsOfAPacketMax);
    return ask_for_descriptors(std::min(sent, kDescriptorsOfAPacketMax));
  }
  const bool greets = state_ == State::kGreeting && has_spoken(socket_.get());
  return greets ? ask_for_descriptors(0) : Admission::Answer::kLetIn;
}

// Nobody says more than Hello before it is answered: what else came is not even taken.
Status IpcAgent::Connection::check_greeting(NextPacket next) const {
  if (state_ != State::kGreeting || next != NextPacket::kWithDescriptors) return {};
  const size_t sent = unread_descriptors(socket_.get()).value_or(0);
  if (sent <= kPacketFdsMax) return {};
  return protocol_error(std::to_string(sent) + " descriptors came before the handshake ended");
}

void IpcAgent::Connection::read_again() {
  const bool must_wait =
      too_much_waits() || ask_for_room(next_packet(socket_.get())) == Admission::Answer::kWait;
  paused_ = must_wait || !agent_.poller().add(socket_.get(), EPOLLIN, serial_ * 2).ok();
}

Status IpcAgent::Connection::read_packets(bool died) {
  using Answer = Admission::Answer;
  for (int i = 0; i < kPacketsPerRound; ++i) {
    const NextPacket next = next_packet(socket_.get());
    CGX_RETURN_IF_ERROR(check_greeting(next));
    const Answer room = too_much_waits() && !died ? Answer::kWait : ask_for_room(next);
    if (room == Answer::kWait && !died) {
      agent_.pause_reading(*this);
      paused_ = true;
      return {};
    }
    if (next == NextPacket::kNone) return {};
    const bool no_room = next == NextPacket::kWithDescriptors && room != Answer::kLetIn;
    if (no_room) return died ? Status() : no_descriptor_left();
    Packet packet;
    const Result<ReceiveOutcome> outcome =
        receive_packet(socket_.get(), wire::kSessionPacketBytesMax, packet);
    Status status = outcome.status();
    if (outcome.ok() && *outcome == ReceiveOutcome::kClosed) status = death();
    if (outcome.ok() && *outcome == ReceiveOutcome::kPacket) status = handle(packet);
    for (UniqueFd& fd : packet.fds) agent_.users_.close(holder_, std::move(fd));
    if (!status.ok() || goodbye_ || *outcome == ReceiveOutcome::kNothing) return status;
  }
  return {};
}

Status IpcAgent::Connection::handle(Packet& packet) {
  CGX_ASSIGN_OR_RETURN(const wire::PacketHeader header,
                       wire::parse_header(packet.bytes, wire::Side::kDaemon));
  const auto body = std::span<const std::byte>(packet.bytes).subspan(sizeof(header));
  UniqueFd none;
  UniqueFd& fd = packet.fds.empty() ? none : packet.fds.front();
  if (state_ == State::kOpen) return handle_open(header, body, packet.fds);
  if (state_ == State::kOpening ||
      header.type != static_cast<uint16_t>(SessionMessageType::kHello)) {
    return protocol_error("message " + std::to_string(header.type) + " before the handshake ended");
  }
  CGX_ASSIGN_OR_RETURN(const wire::Hello message, wire::decode_body<wire::Hello>(body));
  return hello(header.request, message, fd);
}

Status IpcAgent::Connection::hello(uint32_t request, const wire::Hello& hello, UniqueFd& pidfd) {
  if (hello.job.empty() || hello.job.size() > wire::kNameBytesMax ||
      hello.client.size() > wire::kNameBytesMax) {
    return invalid_argument("Hello: job name of " + std::to_string(hello.job.size()) +
                            " bytes, client name of " + std::to_string(hello.client.size()) +
                            "; 1 to " + std::to_string(wire::kNameBytesMax) + " are allowed");
  }
  if (!config::is_plain_text(hello.job)) {
    return invalid_argument(
        "Hello: the job's name must be UTF-8 without control characters, as other machines and "
        "operators are told it");
  }
  if (!peer_.pidfd) {
    CGX_RETURN_IF_ERROR(adopt_pidfd(pidfd, peer_));
    CGX_RETURN_IF_ERROR(agent_.poller().add(peer_.pidfd.get(), EPOLLIN, serial_ * 2 + 1));
  }
  CGX_RETURN_IF_ERROR(agent_.may_open(holder_));
  if (ask_for_descriptors(0) != Admission::Answer::kLetIn) return no_descriptor_left();
  job_ = hello.job;
  client_ = hello.client;
  hello_request_ = request;
  CGX_ASSIGN_OR_RETURN(ChannelEnds channel, make_session_channel());
  ends_ = std::move(channel.theirs);
  state_ = State::kOpening;
  deadline_ns_ = kNever;
  ask(request,
      OpenSession{{job_, client_, peer_.uid, peer_.pid, holder_}, std::move(channel.ours)});
  return {};
}

Status IpcAgent::Connection::handle_open(const wire::PacketHeader& header,
                                         std::span<const std::byte> body,
                                         std::vector<UniqueFd>& fds) {
  const uint32_t request = header.request;
  switch (static_cast<SessionMessageType>(header.type)) {
    case SessionMessageType::kAddArena: {
      CGX_ASSIGN_OR_RETURN(const auto message, wire::decode_body<wire::AddArena>(body));
      return add_arena(request, message, fds);
    }
    case SessionMessageType::kDropArena:
      return drop_arena(request, body);
    case SessionMessageType::kMeet:
      return forward<wire::Meet>(request, body);
    case SessionMessageType::kCreateCommunicator:
      return forward<wire::CreateCommunicator>(request, body);
    case SessionMessageType::kRegisterTensors:
      return forward<wire::RegisterTensors>(request, body);
    case SessionMessageType::kCommit:
      return forward<wire::Commit>(request, body);
    case SessionMessageType::kRedoStep:
      return forward<wire::RedoStep>(request, body);
    case SessionMessageType::kAskReport:
      return forward<wire::AskReport>(request, body);
    case SessionMessageType::kCloseCommunicator:
      return forward<wire::CloseCommunicator>(request, body);
    case SessionMessageType::kGoodbye:
      goodbye_ = true;
      return wire::decode_body<wire::Goodbye>(body).status();
    case SessionMessageType::kHello:
    case SessionMessageType::kWelcome:
    case SessionMessageType::kReply:
      break;
  }
  return protocol_error("message " + std::to_string(header.type) +
                        " is none a client sends on an open session");
}

template <typename Message>
Status IpcAgent::Connection::forward(uint32_t request, std::span<const std::byte> body) {
  CGX_ASSIGN_OR_RETURN(Message message, wire::decode_body<Message>(body));
  ask(request, std::move(message));
  return {};
}

// Who asks again has not waited long enough, and hears of it once.
Status IpcAgent::Connection::drop_arena(uint32_t request, std::span<const std::byte> body) {
  CGX_ASSIGN_OR_RETURN(const auto message, wire::decode_body<wire::DropArena>(body));
  if (message.arena < wire::kArenasMax) {
    const auto [place, first] = dropped_.try_emplace(message.arena, Drop{.first = request});
    place->second.last = request;
    if (place->second.closed) return send({}, request);
    if (!first) return {};
  }
  ask(request, message);
  return {};
}

Status IpcAgent::Connection::add_arena(uint32_t request, const wire::AddArena& message,
                                       std::vector<UniqueFd>& fds) {
  const bool device = message.kind == wire::ArenaKind::kDevice;
  if (!device && message.kind != wire::ArenaKind::kHost) {
    const std::string kind = std::to_string(static_cast<int>(message.kind));
    return send({StatusCode::kUNIMPLEMENTED, "arena kind " + kind + " is not known", 0, 0},
                request);
  }
  const size_t wanted = device && message.way == wire::ArenaWay::kVmm ? 2 : 1;
  if (fds.size() < wanted) return protocol_error("AddArena without its descriptors");
  if (message.arena >= wire::kArenasMax || arenas_[message.arena]) {
    return protocol_error("AddArena " + std::to_string(message.arena) +
                          ": taken, or beyond the last one, " +
                          std::to_string(wire::kArenasMax - 1));
  }
  const uint64_t shared = device ? 0 : message.bytes;  // a GPU's memory is not the machine's
  if (const Status room = agent_.may_share(holder_, shared); !room.ok()) {
    return send(
        {room.code(), "an arena of " + std::to_string(message.bytes) + " bytes: " + room.message(),
         0, 0},
        request);
  }
  arenas_.set(message.arena);
  dropped_.erase(message.arena);
  if (device) {
    import_on_gpu(request, message, std::exchange(fds, {}));
  } else {
    map_on_host(request, message, std::move(fds.front()));
  }
  return {};
}

// Mapping takes seconds where the arena is large: the user's own thread does it.
void IpcAgent::Connection::map_on_host(uint32_t request, const wire::AddArena& message,
                                       UniqueFd memory) {
  const uint64_t quota_left = agent_.options_.arena_bytes_max - arena_bytes_;
  const uint64_t reserved = std::min(message.bytes, quota_left);
  arena_bytes_ += reserved;
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(memory));
  auto map = [inbox = agent_.inbox_, serial = serial_, request, message, quota_left, reserved,
              holder = holder_](const std::vector<UniqueFd>& sent) {
    ArenaMapped mapped{holder,   message.arena,
                       reserved, map_arena(sent[0].get(), message.bytes, quota_left),
                       nullptr,  0};
    // A mailbox that takes no more is an agent that has stopped: the mapping ends here.
    (void)inbox->post({serial, request, std::move(mapped)});
  };
  agent_.users_.run(holder_, std::move(fds), std::move(map));
}

// So does starting a GPU's worker, and importing there: other GPUs' ranks need not wait for it.
void IpcAgent::Connection::import_on_gpu(uint32_t request, const wire::AddArena& message,
                                         std::vector<UniqueFd> fds) {
  auto add = [inbox = agent_.inbox_, workers = agent_.workers_, serial = serial_, request, message,
              uid = uid(), job = job_, holder = holder_](const std::vector<UniqueFd>& sent) {
    ArenaMapped mapped{holder, message.arena, 0, SharedRegion(), nullptr, 0};
    const auto imported = [&]() -> Status {
      CGX_ASSIGN_OR_RETURN(
          std::shared_ptr<gpu::Worker> worker,
          workers->of({.job = job, .uid = uid, .holder = holder, .device = message.device}));
      const int memory = sent.size() > 1 ? sent[1].get() : -1;
      CGX_ASSIGN_OR_RETURN(const gpu::Worker::AddedArena added,
                           worker->add_arena(message, sent[0].get(), memory));
      mapped.pattern = added.pattern;
      mapped.device = std::make_shared<gpu::DeviceArena>(std::move(worker), added.number, message);
      return {};
    };
    if (Status status = imported(); !status.ok()) mapped.region = std::move(status);
    (void)inbox->post({serial, request, std::move(mapped)});
  };
  agent_.users_.run(holder_, std::move(fds), std::move(add), wire::to_text(message.device));
}

Status IpcAgent::Connection::on_mapped(uint32_t request, ArenaMapped mapped) {
  if (!mapped.region.ok()) {
    arenas_.reset(mapped.arena);
    arena_bytes_ -= mapped.reserved_bytes;
    const Status& why = mapped.region.status();
    return send({why.code(), why.message(), 0, 0}, request);
  }
  ask(request, AddMappedArena{mapped.arena, std::move(mapped.region).value(),
                              std::move(mapped.device), mapped.pattern});
  return {};
}

// Its number is free again once the worker has closed it.
Status IpcAgent::Connection::on_dropped(uint32_t request, ArenaDropped dropped) {
  if (dropped.device == nullptr) {
    arenas_.reset(dropped.arena);
    Drop& drop = dropped_[dropped.arena];
    drop.closed = dropped.why.ok();
    const uint32_t last = drop.last;
    if (!drop.closed) dropped_.erase(dropped.arena);
    return send({dropped.why.code(), dropped.why.message(), 0, 0}, last);
  }
  agent_.users_.run(holder_, [inbox = agent_.inbox_, serial = serial_, request,
                              dropped = std::move(dropped)]() mutable {
    dropped.why = dropped.device->close();
    dropped.device = nullptr;
    (void)inbox->post({serial, request, std::move(dropped)});
  });
  return {};
}

Status IpcAgent::Connection::on_answer(uint32_t /*request*/, const Opened&) {
  CGX_ASSERT(state_ == State::kOpening);
  state_ = State::kOpen;
  const ClientEnds ends = std::move(ends_);
  const wire::Welcome welcome{agent_.options_.instance, agent_.options_.mesh_address,
                              agent_.options_.version};
  return send_packet(socket_.get(), wire::encode_packet(welcome, hello_request_),
                     {ends.memory.get(), ends.doorbell.get(), ends.notifier.get()});
}

Status IpcAgent::Connection::on_answer(uint32_t request, const wire::Reply& reply) {
  std::erase_if(dropped_, [request](const auto& each) { return each.second.first == request; });
  return send(reply, request);
}

Status IpcAgent::Connection::send(const wire::Reply& reply, uint32_t request) {
  return send_packet(socket_.get(), wire::encode_packet(reply, request));
}

void IpcAgent::Connection::say(const Status& why) {
  (void)send({why.code(), why.message(), 0, 0}, 0);  // it may be gone: nobody to tell
}

void IpcAgent::Connection::hang_up(const Status& why) {
  if (!why.ok()) say(why);
  if (state_ == State::kGreeting) return;
  ask(0, CloseSession{why});
}

}  // namespace cgx::daemon
