// The edge to trainers over real sockets, with real processes where death matters.
#include "daemon/ipc/ipc_agent.h"

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/daemon/base/lingering.h"
#include "tests/daemon/ipc/ipc_fixture.h"

namespace cgx::daemon {
namespace {

using scheduler::Counter;

int descriptors_open() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

std::vector<std::byte> hello_bytes() {
  return wire::encode_packet(wire::Hello{"train", "test"}, 1);
}

// As behind a daemon that was stopped: they have spoken before they are let in.
TEST_F(IpcAgentTest, WelcomesACrowdThatHasIntroducedItself) {
  listen();
  std::deque<RawClient> clients;
  for (uint32_t i = 0; i < 2 * options.pending_max; ++i) {
    clients.push_back(connect());
    clients.back().send(wire::Hello{"train", "test"}, 1);
  }
  thread = AgentThread::start(*agent).value();
  for (RawClient& client : clients) {
    const auto answer = client.receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.type, static_cast<uint16_t>(wire::SessionMessageType::kWelcome));
  }
}

TEST_F(IpcAgentTest, WelcomesAClientAndTellsItWhoServesIt) {
  start();
  RawClient client = connect();
  client.send(wire::Hello{"train", "python3 train.py"}, 9);
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->header.request, 9u);
  const auto welcome = wire::decode_body<wire::Welcome>(answer->body).value();
  EXPECT_EQ(welcome.instance, (wire::InstanceId{11, 12}));
  EXPECT_EQ(welcome.mesh_address, "10.0.0.3:7701");
  ASSERT_EQ(answer->fds.size(), 3u);
  EXPECT_EQ(::fcntl(answer->fds[0].get(), F_GET_SEALS), kArenaSeals | F_SEAL_SEAL);
  const auto [request, open] = host.next<OpenSession>();
  EXPECT_EQ(open->options.job, "train");
  EXPECT_EQ(open->options.uid, ::getuid());
  EXPECT_EQ(open->options.pid, ::getpid());
}

TEST_F(IpcAgentTest, PassesDecodedMessagesOnWithTheirRequestNumbers) {
  start();
  RawClient client = open_session();
  client.send(wire::Commit{.comm = 3, .tensors = 44}, 17);
  const auto [request, commit] = host.next<wire::Commit>();
  EXPECT_EQ(request.request, 17u);
  EXPECT_EQ(commit->comm, 3u);
  EXPECT_EQ(commit->tensors, 44u);
  agent->answer({request.session, 17, wire::Reply{.value0 = 5}});
  EXPECT_EQ(client.receive_reply().value0, 5u);
}

TEST_F(IpcAgentTest, MapsASealedArena) {
  start();
  RawClient client = open_session();
  const UniqueFd memfd = make_arena(1 << 20);
  client.send(wire::AddArena{.arena = 2, .bytes = 1 << 20}, 5, {memfd.get()});
  EXPECT_EQ(client.receive_reply().code, StatusCode::kOK);
  const auto [request, arena] = host.next<AddMappedArena>();
  EXPECT_EQ(arena->arena, 2u);
  EXPECT_EQ(arena->region.bytes().size(), size_t{1} << 20);
}

TEST_F(IpcAgentTest, RefusesABadArenaAndKeepsTheSession) {
  options.arena_bytes_max = 3 << 20;
  start();
  RawClient client = open_session();
  const UniqueFd unsealed = make_arena(1 << 20, F_SEAL_GROW), good = make_arena(2 << 20),
                 another = make_arena(2 << 20);
  client.send(wire::AddArena{.arena = 0, .bytes = 1 << 20}, 1, {unsealed.get()});
  EXPECT_EQ(client.receive_reply().code, StatusCode::kINVALID_ARGUMENT);
  client.send(wire::AddArena{.arena = 0, .bytes = 1 << 20}, 2, {good.get()});
  EXPECT_EQ(client.receive_reply().code, StatusCode::kINVALID_ARGUMENT);
  client.send(wire::AddArena{.arena = 0, .bytes = 2 << 20}, 3, {good.get()});
  EXPECT_EQ(client.receive_reply().code, StatusCode::kOK);
  client.send(wire::AddArena{.arena = 1, .bytes = 2 << 20}, 4, {another.get()});
  EXPECT_EQ(client.receive_reply().code, StatusCode::kRESOURCE_EXHAUSTED);
}

TEST_F(IpcAgentTest, AnArenaThatTheEngineRefusedLeavesItsNumberAndItsBytes) {
  options.arena_bytes_max = 3 << 20;
  start();
  RawClient client = open_session();
  for (const bool refused : {true, true, false}) {
    const UniqueFd memfd = make_arena(2 << 20);
    host.refuses_arenas = refused;
    client.send(wire::AddArena{.arena = 0, .bytes = 2 << 20}, 3, {memfd.get()});
    EXPECT_EQ(client.receive_reply().code,
              refused ? StatusCode::kRESOURCE_EXHAUSTED : StatusCode::kOK);
  }
}

TEST_F(IpcAgentTest, HandsOnADroppedArenaAndAnswersWhenItIsClosed) {
  start();
  RawClient client = open_session();
  client.send(wire::DropArena{.arena = 5}, 8);
  const auto [request, dropped] = host.next<wire::DropArena>();
  EXPECT_EQ(dropped->arena, 5u);
  ArenaDropped closed{"uid 0", 5, nullptr, Status(StatusCode::kDEVICE_LOST, "its worker died")};
  agent->answer({request.session, 8, std::move(closed)});
  const wire::Reply reply = client.receive_reply();
  EXPECT_EQ(reply.code, StatusCode::kDEVICE_LOST);
  EXPECT_EQ(reply.message, "its worker died");
}

// A client whose time was up before the arena was closed.
TEST_F(IpcAgentTest, WhoeverDropsAnArenaOnceMoreHearsWhenItIsClosed) {
  start();
  RawClient client = open_session();
  client.send(wire::DropArena{.arena = 5}, 8);
  const SessionRequest request = host.next<wire::DropArena>().first;
  client.send(wire::DropArena{.arena = 5}, 9);
  client.send(wire::Meet{}, 10);
  host.next<wire::Meet>();  // so the second one has been read
  agent->answer({request.session, 8, ArenaDropped{"uid 0", 5, nullptr, {}}});
  for (const uint32_t asked : {9u, 11u}) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->header.request, asked);
    EXPECT_EQ(wire::decode_body<wire::Reply>(reply->body)->code, StatusCode::kOK);
    if (asked == 9) client.send(wire::DropArena{.arena = 5}, 11);
  }
  client.send(wire::DropArena{.arena = 6}, 12);
  EXPECT_EQ(host.next<wire::DropArena>().second->arena, 6u) << "asked of the data agent twice";
}

TEST_F(IpcAgentTest, RefusesArenasElsewhereByNameAndKeepsTheSession) {
  options.gpu_worker = "/nowhere/cgxd-gpu";
  start();
  RawClient client = open_session();
  const UniqueFd words = make_arena(1 << 20);
  wire::AddArena arena{.kind = wire::ArenaKind::kDevice,
                       .way = wire::ArenaWay::kIpc,
                       .device = {std::byte{7}},
                       .bytes = 4096};
  client.send(arena, 1, {words.get()});
  wire::Reply reply = client.receive_reply();
  EXPECT_EQ(reply.code, StatusCode::kUNIMPLEMENTED);
  EXPECT_NE(reply.message.find("tensors on a GPU need /nowhere/cgxd-gpu, which cannot be started"),
            std::string::npos);
  arena.kind = static_cast<wire::ArenaKind>(9);
  client.send(arena, 2);
  reply = client.receive_reply();
  EXPECT_EQ(reply.code, StatusCode::kUNIMPLEMENTED);
  EXPECT_NE(reply.message.find("arena kind 9"), std::string::npos);
  const UniqueFd memfd = make_arena(1 << 20);
  client.send(wire::AddArena{.arena = 0, .bytes = 1 << 20}, 3, {memfd.get()});
  EXPECT_EQ(client.receive_reply().code, StatusCode::kOK);
}

TEST_F(IpcAgentTest, HangsUpOnBytesThatAreNoMessageAndSaysWhy) {
  start();
  const std::string junk[] = {"x", "GET / HTTP/1.1\r\n\r\n", std::string(90'000, 'a')};
  for (const std::string& each : junk) {
    RawClient client = connect();
    client.send_bytes(std::as_bytes(std::span(each)));
    EXPECT_EQ(client.receive_reply().code, StatusCode::kPROTOCOL_ERROR);
    EXPECT_TRUE(client.hung_up());
  }
  EXPECT_EQ(counters.take(Counter::ksessions_refused), 3u);
  EXPECT_EQ(counters.take(Counter::kcontrol_junk), 3u);
  open_session();
}

TEST_F(IpcAgentTest, HangsUpOnAPacketLargerThanAnyMessage) {
  start();
  RawClient client = connect();
  std::vector<std::byte> large(wire::kSessionPacketBytesMax + 1);
  const auto hello = hello_bytes();
  std::copy(hello.begin(), hello.end(), large.begin());
  client.send_bytes(large);
  EXPECT_NE(client.receive_reply().message.find("98304"), std::string::npos);
  EXPECT_TRUE(client.hung_up());
}

TEST_F(IpcAgentTest, RefusesAnotherVersionNamingBoth) {
  start();
  RawClient client = connect();
  auto bytes = hello_bytes();
  wire::PacketHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.version = 77;
  std::memcpy(bytes.data(), &header, sizeof(header));
  client.send_bytes(bytes);
  const wire::Reply reply = client.receive_reply();
  EXPECT_EQ(reply.code, StatusCode::kVERSION_MISMATCH);
  EXPECT_NE(reply.message.find("77"), std::string::npos);
  EXPECT_NE(reply.message.find(std::to_string(wire::kSessionVersion)), std::string::npos);
}

TEST_F(IpcAgentTest, RefusesMessagesBeforeHelloAndASecondHello) {
  start();
  RawClient early = connect();
  early.send(wire::Commit{}, 1);
  EXPECT_EQ(early.receive_reply().code, StatusCode::kPROTOCOL_ERROR);
  RawClient twice = open_session();
  twice.send(wire::Hello{"train", "again"}, 2);
  EXPECT_EQ(twice.receive_reply().code, StatusCode::kPROTOCOL_ERROR);
  EXPECT_EQ(host.next<CloseSession>().second->why.code(), StatusCode::kPROTOCOL_ERROR);
}

TEST_F(IpcAgentTest, RefusesAHelloWithoutAJob) {
  start();
  RawClient client = connect();
  client.send(wire::Hello{"", "test"}, 1);
  EXPECT_EQ(client.receive_reply().code, StatusCode::kINVALID_ARGUMENT);
}

// Other machines are told the name in a message that takes nothing but UTF-8.
TEST_F(IpcAgentTest, RefusesAJobWhoseNameIsNoText) {
  start();
  for (const std::string job : {"caf\xe9", "a\nb"}) {
    RawClient client = connect();
    client.send(wire::Hello{job, "test"}, 1);
    const wire::Reply reply = client.receive_reply();
    EXPECT_EQ(reply.code, StatusCode::kINVALID_ARGUMENT);
    EXPECT_NE(reply.message.find("UTF-8"), std::string::npos) << reply.message;
  }
  RawClient client = connect();
  client.send(wire::Hello{"caf\u00e9", "test"}, 1);
  EXPECT_EQ(host.next<OpenSession>().second->options.job, "caf\u00e9");
}

TEST_F(IpcAgentTest, ClosesEveryDescriptorOfAFlood) {
  start();
  const int before = descriptors_open();
  for (int i = 0; i < 50; ++i) {
    RawClient client = connect();
    const int fd = client.fd();
    client.send_bytes(hello_bytes(), {fd, fd, fd, fd});
    EXPECT_EQ(client.receive_reply().code, StatusCode::kPROTOCOL_ERROR);
    EXPECT_TRUE(client.hung_up());
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (descriptors_open() > before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_LE(descriptors_open(), before);  // the agent's thread may just have been reading a file
}

TEST_F(IpcAgentTest, HangsUpOnAClientThatSaysNothing) {
  options.handshake_ns = 50'000'000;
  start();
  RawClient client = connect();
  EXPECT_EQ(client.receive_reply().code, StatusCode::kTIMED_OUT);
  EXPECT_TRUE(client.hung_up());
  EXPECT_EQ(counters.take(Counter::kcontrol_junk), 1u);
}

TEST_F(IpcAgentTest, BoundsConnectionsThatSayNothing) {
  options.pending_max = 3;
  start();
  std::vector<RawClient> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(connect());
  RawClient refused = connect();
  EXPECT_EQ(refused.receive_reply().code, StatusCode::kRESOURCE_EXHAUSTED);
}

TEST_F(IpcAgentTest, BoundsSessionsAndAcceptsAgainWhenOneHasGone) {
  options.sessions_max = 1;
  start();
  RawClient first = open_session();
  RawClient second = connect();
  second.send(wire::Hello{"train", "second"}, 1);
  EXPECT_EQ(second.receive_reply().code, StatusCode::kRESOURCE_EXHAUSTED);
  first.send(wire::Goodbye{}, 0);
  EXPECT_TRUE(host.next<CloseSession>().second->why.ok());
  open_session();
}

TEST_F(IpcAgentTest, GoodbyeIsNoDeath) {
  start();
  const pid_t child = fork_client([](RawClient& client) {
    client.send(wire::Goodbye{}, 0);
    ::_exit(0);
  });
  EXPECT_TRUE(host.next<CloseSession>().second->why.ok());
  ::waitpid(child, nullptr, 0);
}

TEST_F(IpcAgentTest, NamesAKilledClientThoughAChildHoldsItsSocket) {
  start();
  int ready[2], grandchild_exits[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(grandchild_exits), 0);
  const pid_t child = fork_client([&](RawClient&) {
    if (::fork() == 0) {  // holds socket, rings and pipe until the test closes the pipe
      ::close(grandchild_exits[1]);
      char byte;
      (void)!::read(grandchild_exits[0], &byte, 1);
      ::_exit(0);
    }
    (void)!::write(ready[1], "x", 1);
  });
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto killed_at = std::chrono::steady_clock::now();
  ::kill(child, SIGKILL);
  const Status why = host.next<CloseSession>().second->why;
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(5));
  EXPECT_EQ(why.code(), StatusCode::kRANK_LOST);
  EXPECT_NE(why.message().find("process " + std::to_string(child)), std::string::npos)
      << why.message();
  EXPECT_NE(why.message().find("'train'"), std::string::npos);
  ::close(grandchild_exits[1]);
  ::waitpid(child, nullptr, 0);
}

TEST_F(IpcAgentTest, AClosedSocketWithoutGoodbyeIsALoss) {
  start();
  open_session();
  const Status why = host.next<CloseSession>().second->why;
  EXPECT_EQ(why.code(), StatusCode::kRANK_LOST);
  EXPECT_NE(why.message().find("goodbye"), std::string::npos);
}

TEST_F(IpcAgentTest, HangsUpOnAClientThatDoesNotReadItsAnswers) {
  start();
  RawClient client = open_session();
  const auto [opened, open] = host.next<OpenSession>();
  const wire::Reply large{.message = std::string(30'000, 'm')};
  for (int i = 0; i < 100; ++i) agent->answer({opened.session, 1, large});
  EXPECT_EQ(host.next<CloseSession>().second->why.code(), StatusCode::kUNAVAILABLE);
}

// Others' requests do not queue up behind all that one program can ask for.
TEST_F(IpcAgentTest, AProgramThatAsksFasterThanItIsServedWaitsInItsSocket) {
  constexpr size_t kAsked = 200, kUnservedMax = 4;
  start();
  RawClient client = open_session();
  const size_t before = host.asked();
  host.serve(false);
  for (uint32_t i = 0; i < kAsked; ++i) client.send(wire::RedoStep{i}, i + 2);
  const auto asked = [&](size_t count, std::chrono::seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (host.asked() - before < count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return host.asked() - before;
  };
  EXPECT_EQ(asked(kUnservedMax, std::chrono::seconds(10)), kUnservedMax);
  EXPECT_EQ(asked(kUnservedMax + 1, std::chrono::seconds(1)), kUnservedMax);
  host.serve(true);
  EXPECT_EQ(asked(kAsked, std::chrono::seconds(10)), kAsked);
}

// Or else its descriptors would be all that the daemon may have.
TEST_F(IpcAgentTest, AProgramWhoseDescriptorsAreSlowToCloseWaitsInItsSocket) {
  options.user_tasks_max = 32;
  listen();
  RawClient client = connect();
  Lingering slow;
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  client.send(wire::Hello{"train", "test"}, 1, {self.get(), slow.socket.get()});
  slow.socket.reset();  // the agent will have the only copy
  thread = AgentThread::start(*agent).value();
  client.receive();
  const UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const wire::AddArena unknown{.kind = static_cast<wire::ArenaKind>(9)};
  uint32_t answered = 0;
  for (; answered < 100; ++answered) {
    client.send(unknown, answered + 3, {fd.get(), fd.get()});
    pollfd answer{.fd = client.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&answer, 1, 1'000) == 0) break;
    EXPECT_EQ(client.receive_reply().code, StatusCode::kUNIMPLEMENTED);
  }
  EXPECT_LE(answered, options.user_tasks_max / 2);
  slow.reader.reset();
  EXPECT_EQ(client.receive_reply().code, StatusCode::kUNIMPLEMENTED);
}

// However much of it still waits.
TEST_F(IpcAgentTest, NoticesTheDeathOfAClientWhoseRequestsWait) {
  start();
  host.serve(false);
  const pid_t child = fork_client([](RawClient& client) {
    for (uint32_t i = 0; i < 100; ++i) client.send(wire::RedoStep{i}, i + 2);
  });
  while (host.asked() < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ::kill(child, SIGKILL);
  const auto closed = host.next<CloseSession>();
  EXPECT_EQ(closed.second->why.code(), StatusCode::kRANK_LOST);
  ::waitpid(child, nullptr, 0);
}

TEST_F(IpcAgentTest, TellsAnEvictedClientWhyAndClosesItOnce) {
  start();
  RawClient client = open_session();
  const auto [opened, open] = host.next<OpenSession>();
  agent->answer({opened.session, 0, Evict{protocol_error("ring")}});
  EXPECT_EQ(client.receive_reply().message, "ring");
  EXPECT_TRUE(client.hung_up());
  EXPECT_EQ(host.next<CloseSession>().second->why, protocol_error("ring"));
}

TEST_F(IpcAgentTest, ReportsASessionTheEngineRefused) {
  host.open_sessions = false;
  start();
  RawClient client = connect();
  client.send(wire::Hello{"train", "test"}, 1);
  const auto [request, open] = host.next<OpenSession>();
  agent->answer({request.session, 1, Evict{resource_exhausted("full")}});
  EXPECT_EQ(client.receive_reply().message, "full");
  EXPECT_EQ(agent->sessions_open(), 0u);
}

TEST_F(IpcAgentTest, CountsSessionsAndStopsAccepting) {
  start();
  RawClient client = open_session();
  EXPECT_EQ(agent->sessions_open(), 1u);
  agent->stop_accepting();
  while (::access(options.socket.path.c_str(), F_OK) == 0) std::this_thread::yield();
  client.send(wire::Goodbye{}, 0);
  EXPECT_TRUE(client.hung_up());
  EXPECT_EQ(agent->sessions_ever(), 1u);
}

TEST_F(IpcAgentTest, LogsOnlySomeOfManyRefusals) {
  start();
  for (int i = 0; i < 200; ++i) {
    RawClient client = connect();
    client.send_bytes(std::as_bytes(std::span("junk")));
    EXPECT_TRUE(client.receive().has_value());
  }
  EXPECT_EQ(counters.take(Counter::ksessions_refused), 200u);
  EXPECT_LT(events.size(), 100u);
}

}  // namespace
}  // namespace cgx::daemon
