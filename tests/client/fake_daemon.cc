// FakeDaemon, its loop and its sockets.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "tests/client/fake_daemon_state.h"

namespace cgx::testing {

using cgx::UniqueFd;
using wire::SessionMessageType;

namespace {

wire::Reply rank_is_alive(uint32_t rank, const std::string& name) {
  return {StatusCode::kALREADY_EXISTS,
          "rank " + std::to_string(rank) + " of " + name + " is alive"};
}

}  // namespace

FakeDaemon::FakeDaemon(Options options) : options_(std::move(options)) {
  static_cast<void>(::getrandom(&instance_, sizeof(instance_), 0) == 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, options_.socket_path.c_str(), sizeof(address.sun_path) - 1);
  ::unlink(address.sun_path);
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    std::perror(options_.socket_path.c_str());
    std::abort();
  }
}

FakeDaemon::~FakeDaemon() {
  die();
}

void FakeDaemon::start() {
  thread_ = std::thread([this] { run(); });
}

void FakeDaemon::run() {
  while (!stop_) {
    turn(5);
    if (options_.exit_when_unused && used_ && sessions_.empty()) break;
  }
  sessions_.clear();
  comms_.clear();
  listener_.reset();
  ::unlink(options_.socket_path.c_str());
}

void FakeDaemon::die() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void FakeDaemon::freeze() {
  frozen_ = true;
  while (!frozen_seen_) std::this_thread::yield();
}

bool FakeDaemon::anything_to_do() {
  for (auto& session : sessions_) {
    if (session->greeted && !session->submits->empty()) return true;
  }
  return false;
}

void FakeDaemon::turn(int timeout_ms) {
  frozen_seen_ = frozen_.load();
  if (frozen_) {
    std::this_thread::yield();
    return;
  }
  for (auto& session : sessions_) {
    if (session->greeted) word_of(session->header().daemon_sleeping).store(1);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
  for (auto& session : sessions_) {
    entries.push_back({session->socket.get(), POLLIN, 0});
    entries.push_back({session->doorbell.get(), POLLIN, 0});
  }
  ::poll(entries.data(), entries.size(), anything_to_do() ? 0 : timeout_ms);
  const size_t known = sessions_.size();
  for (size_t i = 0; i < known; ++i) {
    Session& session = *sessions_[i];
    if (session.greeted) word_of(session.header().daemon_sleeping).store(0);
    if (session.greeted) word_of(session.header().daemon_beat).fetch_add(1);
    uint64_t rings = 0;
    if (entries[2 + 2 * i].revents & POLLIN) {
      static_cast<void>(::read(session.doorbell.get(), &rings, sizeof(rings)) == 0);
      doorbells_ += rings;
    }
    if (session.greeted) drain(session);
    if (entries[1 + 2 * i].revents & (POLLIN | POLLHUP)) read_socket(session);
  }
  if (entries[0].revents & POLLIN) accept_session();
  for (auto& [key, comm] : comms_) advance(*comm);
  for (auto& session : sessions_) {
    if (session->gone) end_session(*session);
  }
  std::erase_if(sessions_, [](const auto& session) { return session->gone; });
  session_count_ = sessions_.size();
  comm_count_ = comms_.size();
  size_t committing = 0;
  for (const auto& [key, comm] : comms_) {
    for (const Member& member : comm->members) committing += member.commit_request != 0;
  }
  committing_count_ = committing;
  waiting_count_ = static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& session) {
        return session->greeted && (word_of(session->header().client_waits).load() & 1);
      }));
}

void FakeDaemon::accept_session() {
  const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  auto session = std::make_unique<Session>();
  session->socket.reset(fd);
  if (options_.mood == Mood::kRefuses) {
    return reply(*session, 0, {StatusCode::kRESOURCE_EXHAUSTED, "the fake daemon is full"});
  }
  session->doorbell.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  session->event.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  sessions_.push_back(std::move(session));
  used_ = true;
}

void FakeDaemon::greet(Session& session, uint32_t request) {
  if (options_.mood == Mood::kSilent) return;
  if (options_.mood == Mood::kGarbageWelcome) {
    const char garbage[] = "HTTP/1.1 400 Bad Request";
    ::send(session.socket.get(), garbage, sizeof(garbage), MSG_NOSIGNAL);
    return;
  }
  const UniqueFd memory(::memfd_create("fake-session", MFD_CLOEXEC));
  if (::ftruncate(memory.get(), CGX_SHM_BYTES) != 0) std::abort();
  session.memory = std::make_unique<Mapping>(memory.get(), CGX_SHM_BYTES);
  session.header().magic = CGX_SHM_MAGIC;
  session.header().version = CGX_SHM_VERSION;
  const wire::SessionMemory parts(session.memory->base);
  session.submits = std::make_unique<wire::SubmitConsumer>(
      parts.submits, &parts.header->submit_tail, &parts.header->submit_head);
  session.completions = std::make_unique<wire::CompletionProducer>(
      parts.completions, &parts.header->completion_tail, &parts.header->completion_head);
  session.greeted = true;
  auto packet = wire::encode_packet(
      wire::Welcome{.instance = instance_, .mesh_address = "", .daemon = "fake"}, request);
  if (options_.mood == Mood::kWrongVersion) packet[4] = std::byte{99};
  const int fds[3] = {memory.get(), session.doorbell.get(), session.event.get()};
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (options_.mood != Mood::kNoDescriptors) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(c), fds, sizeof(fds));
  }
  ::sendmsg(session.socket.get(), &message, MSG_NOSIGNAL);
}

void FakeDaemon::read_socket(Session& session) {
  reading_ = pause_.load().count() > 0;
  std::this_thread::sleep_for(pause_.load());
  reading_ = 0;
  std::vector<std::byte> packet(wire::kSessionPacketBytesMax);
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = ::recvmsg(session.socket.get(), &message, MSG_CMSG_CLOEXEC);
  UniqueFd fd;
  if (size > 0) {
    if (cmsghdr* c = CMSG_FIRSTHDR(&message)) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(c), sizeof(received));
      fd.reset(received);
    }
  }
  if (size == 0 || (size < 0 && errno != EAGAIN)) session.gone = true;
  if (size <= 0) return;
  packet.resize(static_cast<size_t>(size));
  const auto header = wire::parse_header(packet, wire::Side::kDaemon);
  if (!header.ok()) {
    session.gone = true;
    return;
  }
  dispatch(session, *header, std::span(packet).subspan(sizeof(wire::PacketHeader)), std::move(fd));
}

void FakeDaemon::dispatch(Session& session, const wire::PacketHeader& header,
                          std::span<const std::byte> body, UniqueFd fd) {
  const uint32_t request = header.request;
  switch (static_cast<SessionMessageType>(header.type)) {
    case SessionMessageType::kHello:
      session.job = wire::decode_body<wire::Hello>(body)->job;
      return greet(session, request);
    case SessionMessageType::kAddArena:
      return add_arena(session, request, *wire::decode_body<wire::AddArena>(body), std::move(fd));
    case SessionMessageType::kMeet:
      return meet(session, request, *wire::decode_body<wire::Meet>(body));
    case SessionMessageType::kCreateCommunicator:
      return create(session, request, *wire::decode_body<wire::CreateCommunicator>(body));
    case SessionMessageType::kRegisterTensors:
      return register_tensors(session, *wire::decode_body<wire::RegisterTensors>(body));
    case SessionMessageType::kCommit:
      return commit(session, request, *wire::decode_body<wire::Commit>(body));
    case SessionMessageType::kRedoStep:
      return redo(session, request, *wire::decode_body<wire::RedoStep>(body));
    case SessionMessageType::kCloseCommunicator:
      close_communicator(session, wire::decode_body<wire::CloseCommunicator>(body)->comm,
                         "closed its communicator");
      if (!keeps_memory_) reply(session, request, {});
      return;
    case SessionMessageType::kGoodbye:
      session.gone = true;
      return;
    case SessionMessageType::kAskReport:
    case SessionMessageType::kDropArena:
    case SessionMessageType::kWelcome:
    case SessionMessageType::kReply:
      session.gone = true;
      return;
  }
}

void FakeDaemon::reply(Session& session, uint32_t request, const wire::Reply& reply) {
  auto packet = wire::encode_packet(reply, request);
  if (options_.mood == Mood::kGarbageReply) packet.resize(packet.size() / 2);
  ::send(session.socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
}

void FakeDaemon::add_arena(Session& session, uint32_t request, const wire::AddArena& message,
                           UniqueFd fd) {
  struct stat info {};
  ::fstat(fd.get(), &info);
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  const bool good = seals == (F_SEAL_SHRINK | F_SEAL_GROW) &&
                    static_cast<uint64_t>(info.st_size) == message.bytes &&
                    message.arena == session.arenas.size();
  if (!good) {
    return reply(session, request, {StatusCode::kINVALID_ARGUMENT, "arena not sealed or sized"});
  }
  session.arenas.push_back(std::make_unique<Mapping>(fd.get(), message.bytes));
  reply(session, request, {});
}

void FakeDaemon::meet(Session& session, uint32_t request, const wire::Meet& message) {
  const auto found = comms_.find(session.job + "/" + message.name);
  const bool taken = found != comms_.end() && message.rank < found->second->members.size() &&
                     found->second->members[message.rank].session;
  reply(session, request, taken ? rank_is_alive(message.rank, message.name) : wire::Reply{});
}

void FakeDaemon::create(Session& session, uint32_t request,
                        const wire::CreateCommunicator& message) {
  timeout_ms_ = message.timeout_ms;
  auto& comm = comms_[session.job + "/" + message.name];
  if (!comm) {
    comm = std::make_unique<Comm>();
    comm->name = message.name;
    comm->members.resize(message.members.size());
    comm->first_step = message.first_step;
  }
  if (message.rank >= comm->members.size() || comm->members[message.rank].session) {
    return reply(session, request, rank_is_alive(message.rank, message.name));
  }
  Member& member = comm->members[message.rank];
  member.session = &session;
  member.handle = message.comm;
  member.create_request = request;
  session.comms.insert(comm.get());
  for (Member& other : comm->members) {
    if (!other.session) return;
  }
  comm->joined = true;
  for (Member& other : comm->members) reply(*other.session, other.create_request, {});
}

FakeDaemon::Comm* FakeDaemon::comm_of(Session& session, uint32_t handle, Member** member) {
  for (Comm* comm : session.comms) {
    for (Member& candidate : comm->members) {
      if (candidate.session == &session && candidate.handle == handle) {
        *member = &candidate;
        return comm;
      }
    }
  }
  return nullptr;
}

void FakeDaemon::register_tensors(Session& session, const wire::RegisterTensors& message) {
  Member* member = nullptr;
  if (!comm_of(session, message.comm, &member)) return;
  if (member->tensors.size() != message.first) std::abort();
  member->tensors.insert(member->tensors.end(), message.tensors.begin(), message.tensors.end());
}

void FakeDaemon::commit(Session& session, uint32_t request, const wire::Commit& message) {
  Member* self = nullptr;
  Comm* comm = comm_of(session, message.comm, &self);
  if (!comm) return reply(session, request, {StatusCode::kNOT_FOUND, "no such communicator"});
  self->commit_request = request;
  for (Member& member : comm->members) {
    if (member.commit_request == 0) return;
  }
  wire::Reply answer{.value0 = 1, .value1 = comm->first_step};
  const auto& first = comm->members[0].tensors;
  for (size_t rank = 1; rank < comm->members.size(); ++rank) {
    const auto& other = comm->members[rank].tensors;
    for (size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      if (first[i].name == other[i].name && first[i].elements == other[i].elements) continue;
      answer = {StatusCode::kMISMATCH, "rank " + std::to_string(rank) + " registered " +
                                           other[i].name + " where rank 0 registered " +
                                           first[i].name};
    }
  }
  if (answer.code == StatusCode::kOK) comm->committed = first.size();
  for (Member& member : comm->members) {
    reply(*member.session, std::exchange(member.commit_request, 0), answer);
  }
}

void FakeDaemon::redo(Session& session, uint32_t request, const wire::RedoStep& message) {
  Member* self = nullptr;
  Comm* comm = comm_of(session, message.comm, &self);
  if (!comm || !comm->has_failed) {
    return reply(session, request, {StatusCode::kINVALID_ARGUMENT, "no step has failed"});
  }
  self->redo_request = request;
  for (Member& member : comm->members) {
    if (member.redo_request == 0) return;
  }
  ++comm->attempt;
  comm->has_failed = false;
  for (Member& member : comm->members) {
    member.steps.erase(member.steps.lower_bound(comm->failed_step), member.steps.end());
    reply(*member.session, std::exchange(member.redo_request, 0),
          {.value0 = comm->attempt, .value1 = comm->failed_step});
  }
  comm->done.erase(comm->done.lower_bound(comm->failed_step), comm->done.end());
}

void FakeDaemon::close_communicator(Session& session, uint32_t handle, const std::string& why) {
  Member* self = nullptr;
  Comm* comm = comm_of(session, handle, &self);
  if (!comm) return;
  const auto rank = std::to_string(self - comm->members.data());
  const uint64_t step = self->steps.empty() ? comm->first_step : self->steps.rbegin()->first;
  self->session = nullptr;
  session.comms.erase(comm);
  bool alone = true;
  for (Member& member : comm->members) alone &= member.session == nullptr;
  if (alone) {
    std::erase_if(comms_, [&](const auto& entry) { return entry.second.get() == comm; });
    return;
  }
  fail_step(*comm, step, StatusCode::kRANK_LOST, "rank " + rank + " " + why);
  for (Member& member : comm->members) {
    if (!member.session || member.commit_request == 0) continue;
    reply(*member.session, std::exchange(member.commit_request, 0),
          {StatusCode::kRANK_LOST, "rank " + rank + " " + why});
  }
}

void FakeDaemon::end_session(Session& session) {
  while (!session.comms.empty()) {
    Comm* comm = *session.comms.begin();
    for (Member& member : comm->members) {
      if (member.session == &session) {
        close_communicator(session, member.handle, "died");
        break;
      }
    }
  }
}

bool FakeDaemon::drain(Session& session) {
  cgx_submit_record record;
  bool any = false;
  while (session.submits->try_pop(record) == wire::SubmitConsumer::Pop::kRecord) {
    take(session, record);
    any = true;
  }
  session.submits->release();
  if (any && options_.mood == Mood::kEvicts) {
    reply(session, 0, {StatusCode::kPROTOCOL_ERROR, "the fake daemon does not like this record"});
    session.gone = true;
    session.greeted = false;
  }
  if (any && options_.mood == Mood::kWildCompletions) {
    wire::store_release(session.header().completion_tail, 1ull << 40);
    session.completions = std::make_unique<wire::CompletionProducer>(
        nullptr, &session.header().completion_tail, &session.header().completion_head);
    word_of(session.header().wake_word).fetch_add(1);
    ::syscall(SYS_futex, &session.header().wake_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    session.greeted = false;
  }
  return any;
}

}  // namespace cgx::testing
