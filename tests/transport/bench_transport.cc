// Two processes, one UCX link: round trip and throughput by frame size, beside plain TCP sockets.
// For tuning the transport; the benchmark users see is tests/bench.
//
//   bench_transport [--same-host] [--frame-bytes N] [--congestion cubic] [--seconds S]
//                   [--only NAME]
//
// As root the two processes live in two network namespaces joined by a veth pair.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/transport/two_processes.h"
#include "transport/ucx.h"

namespace cgx::transport {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  size_t payload_bytes;
  int window;    // frames in flight; 1 with replies = ping-pong
  bool replies;  // the other side sends every frame back
};

constexpr Case kCases[] = {
    {"pingpong/header", 0, 1, true},        {"pingpong/1KiB", 1 << 10, 1, true},
    {"pingpong/64KiB", 64 << 10, 1, true},  {"stream/4KiB", 4 << 10, 32, false},
    {"stream/16KiB", 16 << 10, 16, false},  {"stream/64KiB", 64 << 10, 8, false},
    {"stream/66KiB", 67584, 8, false},      {"stream/128KiB", 128 << 10, 8, false},
    {"stream/256KiB", 256 << 10, 4, false}, {"stream/1MiB", 1 << 20, 4, false},
    {"both/64KiB", 64 << 10, 8, true},      {"both/256KiB", 256 << 10, 4, true},
};

struct Settings {
  UcxOptions ucx;
  double seconds = 0.5;
  std::string only;
  Where where = Where::kTwoNamespaces;
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Header: one byte, 'f' for a frame, 'e' for the end of a case (answered with 'e').
class Side : public Events {
 public:
  void on_frame(PeerId from, const Frame& frame) override {
    ++received;
    if (frame.header[0] == std::byte{'e'}) {
      ++ends;
      return;
    }
    if (reply) {
      // Held until on_sent: a ring of buffers larger than any window.
      auto& buffer = ring[received % ring.size()];
      buffer.assign(frame.payload.begin(), frame.payload.end());
      send(from, 'f', buffer);
    }
  }
  void on_sent(PeerId, SendToken, const Status&) override { ++sent; }
  void on_peer_down(PeerId, const Status& why) override {
    std::fprintf(stderr, "%s\n", why.to_string().c_str());
    std::exit(1);
  }
  void send(PeerId to, char kind, std::span<const std::byte> payload) {
    const std::byte header{static_cast<unsigned char>(kind)};
    const Status status = transport->send(to, {{&header, 1}, payload}, 1);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
    ++asked;
  }

  // As the daemon waits: poll for 20 us after the last work, then sleep.
  void progress() {
    if (transport->progress() > 0) {
      idle_since = Clock::now();
    } else if (Clock::now() - idle_since > std::chrono::microseconds(20) && transport->arm()) {
      pollfd ready{.fd = transport->event_fd(), .events = POLLIN, .revents = 0};
      ::poll(&ready, 1, 100);
    }
  }

  Transport* transport = nullptr;
  Clock::time_point idle_since = Clock::now();
  bool reply = false;
  uint64_t asked = 0, sent = 0, received = 0;
  int ends = 0;
  std::array<std::vector<std::byte>, 64> ring;
};

void report(const Case& c, std::vector<double>& trips_us, uint64_t frames, double seconds,
            double cpu) {
  std::printf("%-18s %9llu frames  %7.2f us/frame", c.name, static_cast<unsigned long long>(frames),
              seconds / frames * 1e6);
  if (c.payload_bytes) {
    std::printf("  %6.2f GB/s  %5.2f cpu-s/GiB", frames * c.payload_bytes / seconds * 1e-9,
                cpu / (static_cast<double>(frames) * c.payload_bytes) * (1 << 30));
  }
  if (c.window == 1 && !trips_us.empty()) {
    std::sort(trips_us.begin(), trips_us.end());
    std::printf("  round trip p50 %.1f p99 %.1f us", trips_us[trips_us.size() / 2],
                trips_us[trips_us.size() * 99 / 100]);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void lead(const Case& c, const Settings& settings, Side& side, PeerId peer) {
  const std::vector<std::byte> payload(c.payload_bytes, std::byte{7});
  std::vector<double> trips_us;
  side.asked = side.sent = side.received = 0;
  uint64_t frames = 0;
  const double cpu = cpu_seconds();
  const auto start = Clock::now();
  auto last = start, now = start;
  while (std::chrono::duration<double>(now - start).count() < settings.seconds) {
    const uint64_t back = c.replies ? side.received : side.sent;
    if (frames - back < static_cast<uint64_t>(c.window)) {
      if (frames > 0 && c.window == 1) {
        trips_us.push_back(std::chrono::duration<double, std::micro>(now - last).count());
      }
      last = now;
      side.send(peer, 'f', payload);
      ++frames;
    }
    side.progress();
    now = Clock::now();
  }
  side.send(peer, 'e', {});
  const int ends = side.ends;
  while (side.ends == ends || side.sent < side.asked) side.progress();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report(c, trips_us, frames, seconds, cpu_seconds() - cpu);
}

void follow(const Case& c, Side& side, PeerId peer) {
  side.reply = c.replies;
  const int ends = side.ends;
  while (side.ends == ends) side.progress();
  side.send(peer, 'e', {});
  while (side.sent < side.asked) side.progress();
}

void pin(int side) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(side, &cpus);
  (void)::sched_setaffinity(0, sizeof cpus, &cpus);
}

// The roofline: blocking send and recv of the same sizes, nothing else.
int tcp_connection(const TwoProcesses::Child& self, const Settings& settings) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const bool apart = settings.where == Where::kTwoNamespaces;
  ::inet_pton(AF_INET, apart ? "10.99.0.2" : "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(42001);
  auto* where = reinterpret_cast<sockaddr*>(&address);
  const int one = 1;
  int connection = ::socket(AF_INET, SOCK_STREAM, 0);
  const std::string& congestion = settings.ucx.congestion;
  if (!congestion.empty()) {
    (void)::setsockopt(connection, IPPROTO_TCP, TCP_CONGESTION, congestion.data(),
                       static_cast<socklen_t>(congestion.size()));
  }
  if (self.side == 0) {
    meet(self);
    return ::connect(connection, where, sizeof address) == 0 ? connection : -1;
  }
  (void)::setsockopt(connection, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool listens =
      ::bind(connection, where, sizeof address) == 0 && ::listen(connection, 1) == 0;
  meet(self);
  const int accepted = listens ? ::accept(connection, nullptr, nullptr) : -1;
  ::close(connection);
  return accepted;
}

void compare_tcp(const TwoProcesses::Child& self, const Settings& settings, size_t bytes) {
  const int connection = tcp_connection(self, settings);
  std::vector<std::byte> buffer(self.side == 0 ? bytes : 256 << 10);
  if (connection < 0) return;
  if (self.side == 1) {
    while (::recv(connection, buffer.data(), buffer.size(), 0) > 0) {
    }
    ::close(connection);
    return;
  }
  uint64_t frames = 0;
  const double cpu = cpu_seconds();
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (seconds() < settings.seconds) {
    write_all(connection, buffer.data(), bytes);
    ++frames;
  }
  ::shutdown(connection, SHUT_WR);
  (void)::recv(connection, buffer.data(), 1, 0);  // all has arrived
  std::vector<double> none;
  const std::string name = "tcp/" + std::to_string(bytes >> 10) + "KiB";
  report({name.c_str(), bytes, 8, false}, none, frames, seconds(), cpu_seconds() - cpu);
  ::close(connection);
}

int run(const TwoProcesses::Child& self, const Settings& settings) {
  pin(self.side);
  Side side;
  auto transport = make_ucx_transport(settings.ucx, side);
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().to_string().c_str());
    return 1;
  }
  side.transport = transport->get();
  Result<PeerId> peer = connect_over(**transport, self);
  if (!peer.ok()) {
    std::fprintf(stderr, "%s\n", peer.status().to_string().c_str());
    return 1;
  }
  for (const Case& c : kCases) {
    if (!settings.only.empty() && !std::strstr(c.name, settings.only.c_str())) continue;
    meet(self);
    self.side == 0 ? lead(c, settings, side, *peer) : follow(c, side, *peer);
  }
  if (settings.only.empty()) {
    for (const size_t bytes : {64u << 10, 256u << 10}) compare_tcp(self, settings, bytes);
  }
  meet(self);
  return 0;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--same-host") {
      settings.where = Where::kSameHost;
      continue;
    }
    if (flag == "--frame-bytes") settings.ucx.frame_bytes = std::strtoul(value, nullptr, 0);
    if (flag == "--congestion") settings.ucx.congestion = value;
    if (flag == "--seconds") settings.seconds = std::atof(value);
    if (flag == "--only") settings.only = value;
    ++i;
  }
  if (!can_make_namespaces()) settings.where = Where::kSameHost;
  return settings;
}

}  // namespace
}  // namespace cgx::transport

int main(int argc, char** argv) {
  using namespace cgx::transport;
  prepare_process();
  const Settings settings = parse(argc, argv);
  TwoProcesses processes(settings.where,
                         [&](const TwoProcesses::Child& self) { return run(self, settings); });
  const int first = processes.wait(0);
  return first + processes.wait(1);
}
