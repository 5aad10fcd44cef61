// Ranks without a store of their own: they meet at CGX_LEADER, which rank 0 serves.
#include "client/leader.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/client/ranks.h"

namespace {

std::atomic<int> resolver_answers{0};  // 0: as the system's
std::atomic<int> resolver_asked{0};

}  // namespace

// The program's own, which libcgx asks instead of the system's.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto of_system =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  ++resolver_asked;
  const int answer = resolver_answers;
  return answer != 0 ? answer : of_system(host, service, hints, found);
}

namespace cgx::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 127.0.0.1 and a port that was free a moment ago, none of those that the system gives to others.
std::string free_address() {
  std::mt19937 random(static_cast<uint32_t>(::getpid()));
  for (;;) {
    const auto port = static_cast<uint16_t>(20'000 + random() % 12'000);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool free = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (free) return "127.0.0.1:" + std::to_string(port);
  }
}

class LeaderTest : public RanksTest {
 protected:
  LeaderTest() { ::setenv("CGX_LEADER", address_.c_str(), 1); }
  ~LeaderTest() override { ::unsetenv("CGX_LEADER"); }
  cgx_status meet(cgx_session* session, uint32_t rank, uint32_t size, cgx_comm** comm,
                  uint64_t timeout_ms = 10'000) {
    cgx_comm_options options{.size = sizeof(options)};
    options.name = "led";
    options.rank = rank;
    options.ranks = size;
    options.timeout_ms = timeout_ms;
    return cgx_comm_create(session, &options, comm);
  }
  const std::string address_ = free_address();
};

TEST_F(LeaderTest, RanksWithoutAStoreMeetThere) {
  constexpr uint32_t kRanks = 4;
  cgx_session* sessions[kRanks];
  cgx_comm* comms[kRanks] = {};
  for (cgx_session*& session : sessions) session = open_session();
  for (int again = 0; again < 2; ++again) {
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        EXPECT_OK(meet(sessions[rank], rank, kRanks, &comms[rank])) << cgx_last_error();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (cgx_comm* comm : comms) EXPECT_OK(cgx_comm_close(comm));
    if (daemon_) {
      while (daemon_->communicators() != 0) std::this_thread::yield();
    }
  }
  for (cgx_session* session : sessions) EXPECT_OK(cgx_close(session));
}

TEST_F(LeaderTest, AChildThatLivesOnDoesNotKeepTheDoor) {
  int ends[2], begins[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::pipe(begins), 0);
  pid_t child = 0;
  char byte = 0;
  for (int again = 0; again < 2; ++again) {
    cgx_session* sessions[] = {open_session(), open_session()};
    cgx_comm* comms[2] = {};
    std::thread first([&] { EXPECT_OK(meet(sessions[0], 0, 2, &comms[0])) << cgx_last_error(); });
    EXPECT_OK(meet(sessions[1], 1, 2, &comms[1])) << cgx_last_error();
    first.join();
    if (again == 0) {
      child = ::fork();
      if (child == 0) {
        ::close(ends[1]);
        if (::write(begins[1], &byte, 1) != 1) ::_exit(1);
        ::_exit(static_cast<int>(::read(ends[0], &byte, 1)));
      }
      ASSERT_EQ(::read(begins[0], &byte, 1), 1);  // until then it has the door, too
    }
    for (cgx_comm* comm : comms) EXPECT_OK(cgx_comm_close(comm));
    for (cgx_session* session : sessions) EXPECT_OK(cgx_close(session));
  }
  for (const int end : {ends[1], ends[0], begins[0], begins[1]}) ::close(end);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(LeaderTest, OneThatNeverComesIsNamed) {
  cgx_session* session = open_session();
  cgx_comm* comm = nullptr;
  EXPECT_EQ(meet(session, 1, 2, &comm, 200), CGX_TIMED_OUT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("nobody serves at CGX_LEADER=" + address_));
  EXPECT_OK(cgx_close(session));
}

TEST_F(LeaderTest, NameThatBecomesKnownLaterIsWaitedFor) {
  resolver_answers = EAI_NONAME;
  resolver_asked = 0;
  cgx_session* sessions[] = {open_session(), open_session()};
  cgx_comm* comms[2] = {};
  std::atomic<bool> over{false};
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      EXPECT_OK(meet(sessions[rank], rank, 2, &comms[rank])) << cgx_last_error();
      over = true;
    });
  }
  while (resolver_asked < 5 && !over) std::this_thread::yield();
  resolver_answers = 0;
  for (std::thread& rank : ranks) rank.join();
  for (cgx_session* session : sessions) EXPECT_OK(cgx_close(session));
}

TEST_F(LeaderTest, NameThatStaysUnknownIsToldInTime) {
  cgx_session* session = open_session();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (const int answer : {EAI_NONAME, EAI_AGAIN}) {
      resolver_answers = answer;
      cgx_comm* comm = nullptr;
      EXPECT_EQ(meet(session, rank, 2, &comm, 200), CGX_TIMED_OUT);
      EXPECT_THAT(cgx_last_error(), AllOf(HasSubstr("nobody serves at CGX_LEADER=" + address_),
                                          HasSubstr(::gai_strerror(answer))));
    }
  }
  resolver_answers = 0;
  EXPECT_OK(cgx_close(session));
}

TEST_F(LeaderTest, GarbageEndsItsConnectionOnly) {
  cgx_session* session = open_session();
  cgx_comm* comm = nullptr;
  std::thread first([&] { EXPECT_OK(meet(session, 0, 2, &comm)) << cgx_last_error(); });
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  place.sin_port = htons(static_cast<uint16_t>(std::stoi(address_.substr(10))));
  int fd = -1;
  do {
    ::close(fd);
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  } while (::connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof place) != 0);
  EXPECT_EQ(::send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
  char byte = 0;
  EXPECT_LE(::recv(fd, &byte, 1, 0), 0);
  ::close(fd);
  cgx_session* other = open_session();
  cgx_comm* second = nullptr;
  EXPECT_OK(meet(other, 1, 2, &second)) << cgx_last_error();
  first.join();
  EXPECT_OK(cgx_close(session));
  EXPECT_OK(cgx_close(other));
}

// What a launcher says, for the sessions that are opened meanwhile.
class Said {
 public:
  explicit Said(std::map<std::string, std::string> words) : words_(std::move(words)) {
    for (const auto& [name, value] : words_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Said() {
    for (const auto& [name, value] : words_) ::unsetenv(name.c_str());
  }

 private:
  const std::map<std::string, std::string> words_;
};

TEST_F(LeaderTest, LoopbackIsRefusedAtOnceWhereRanksAreSurelyElsewhere) {
  const std::map<std::string, std::string> launchers[] = {
      {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
      {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "2"}}};
  for (const auto& words : launchers) {
    const Said said(words);
    cgx_session* session = open_session();
    cgx_comm* comm = nullptr;
    EXPECT_EQ(meet(session, 0, 4, &comm, 2'000), CGX_INVALID_ARGUMENT);
    EXPECT_THAT(cgx_last_error(),
                HasSubstr("CGX_LEADER=" + address_ + " is 127.0.0.1 on this machine, where other " +
                          "machines cannot reach it"));
    EXPECT_OK(cgx_close(session));
  }
}

TEST_F(LeaderTest, LoopbackServesWhereAllRanksMayBeHere) {
  const Said said({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  cgx_session* sessions[] = {open_session(), open_session()};
  cgx_comm* comms[2] = {};
  std::thread first([&] { EXPECT_OK(meet(sessions[0], 0, 2, &comms[0])) << cgx_last_error(); });
  EXPECT_OK(meet(sessions[1], 1, 2, &comms[1])) << cgx_last_error();
  first.join();
  for (cgx_session* session : sessions) EXPECT_OK(cgx_close(session));
}

TEST_F(LeaderTest, WhoWaitedInVainAtLoopbackIsToldWhoCannotReachIt) {
  cgx_session* session = open_session();
  cgx_comm* comm = nullptr;
  EXPECT_EQ(meet(session, 0, 2, &comm, 200), CGX_TIMED_OUT);
  EXPECT_THAT(cgx_last_error(), AllOf(HasSubstr("missing: rank 1"),
                                      HasSubstr("is 127.0.0.1 on this machine, where other")));
  EXPECT_OK(cgx_close(session));
}

// Rank 2, whose daemon is slow, says that there are more ranks when rank 1 has answered long ago.
TEST_F(LeaderTest, OthersHearWhyRank0GaveUpThoughItClosesAtOnce) {
  NEEDS_FAKE_DAEMON();
  FakeDaemon slow({.socket_path = fresh_socket_path()});
  slow.start();
  cgx_open_options at{.size = sizeof(at)};
  const std::string slow_path = slow.path();
  at.socket = slow_path.c_str();
  at.job = "test";
  cgx_session* sessions[] = {open_session(), open_session(), nullptr};
  ASSERT_OK(cgx_open(&at, &sessions[2]));
  slow.read_every(std::chrono::milliseconds(150));
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      cgx_comm* comm = nullptr;
      EXPECT_EQ(meet(sessions[rank], rank, rank == 2 ? 4 : 3, &comm), CGX_MISMATCH)
          << "rank " << rank << ": " << cgx_last_error();
      EXPECT_THAT(cgx_last_error(), HasSubstr("ranks, this rank says")) << "rank " << rank;
      EXPECT_OK(cgx_close(sessions[rank]));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Where something listens that may not take part.
class Door {
 public:
  explicit Door(int backlog) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const plain = reinterpret_cast<sockaddr*>(&place_);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&place), sizeof place), 0);
    EXPECT_EQ(::listen(fd_.get(), backlog), 0);
    EXPECT_EQ(::getsockname(fd_.get(), plain, &bytes_), 0);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(ntohs(place_.sin_port)); }
  UniqueFd let_in() const { return UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void close() const { ::shutdown(fd_.get(), SHUT_RDWR); }
  // Until nobody else gets an answer.
  void fill() {
    for (bool answered = true; answered;) {
      const int fd = waiting_.emplace_back(open(SOCK_NONBLOCK)).get();
      static_cast<void>(::connect(fd, reinterpret_cast<sockaddr*>(&place_), sizeof place_) == 0);
      pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
      answered = ::poll(&entry, 1, 100) > 0;
    }
  }

 private:
  static UniqueFd open(int more) {
    return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | more, 0));
  }
  const UniqueFd fd_ = open(0);
  sockaddr_in place_{};
  socklen_t bytes_ = sizeof place_;
  std::vector<UniqueFd> waiting_;
};

using client::LeaderStore;
using namespace std::chrono_literals;

TEST(LeaderStoreTest, WhatSwallowsConnectionsIsTriedForTheTimeOutOnly) {
  Door door(0);
  door.fill();
  const auto began = std::chrono::steady_clock::now();
  const auto store =
      LeaderStore::connect(door.address(), client::deadline_in_ms(300), [] { return Status(); });
  EXPECT_EQ(store.status().code(), StatusCode::kTIMED_OUT);
  const auto ended = LeaderStore::connect(door.address(), client::deadline_in_ms(20'000), [] {
    return Status(StatusCode::kRANK_LOST, "rank 1 is gone");
  });
  EXPECT_EQ(ended.status().code(), StatusCode::kRANK_LOST);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
}

TEST(LeaderStoreTest, ALeaderThatIsSilentForAWhileIsAskedAgain) {
  const Door door(16);
  std::thread leader([&] {
    std::vector<UniqueFd> silent;
    for (int i = 0; i < 4; ++i) silent.push_back(door.let_in());
    // Who was let in late has gone by now, and comes again.
    for (UniqueFd heard = door.let_in(); heard.valid(); heard = door.let_in()) {
      char request[64];
      EXPECT_GT(::recv(heard.get(), request, sizeof request, 0), 0);
      static_cast<void>(::send(heard.get(), "CGXL\0\0\0\0\0", 9, MSG_NOSIGNAL));
      EXPECT_LE(::recv(heard.get(), request, sizeof request, 0), 0) << "it asks for nothing more";
    }
  });
  const auto ok = [] { return Status(); };
  auto store =
      LeaderStore::connect(door.address(), client::deadline_in_ms(20'000), ok, ok, 50ms).value();
  EXPECT_EQ(store->get("anything").status().code(), StatusCode::kNOT_FOUND);
  store.reset();
  door.close();
  leader.join();
}

TEST_F(LeaderTest, WrongAddressIsNamed) {
  ::setenv("CGX_LEADER", "nowhere", 1);
  cgx_session* session = open_session();
  cgx_comm* comm = nullptr;
  EXPECT_EQ(meet(session, 1, 2, &comm), CGX_INVALID_ARGUMENT);
  EXPECT_THAT(cgx_last_error(), HasSubstr("CGX_LEADER=nowhere is not host:port"));
  EXPECT_OK(cgx_close(session));
}

}  // namespace
}  // namespace cgx::testing
