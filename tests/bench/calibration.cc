// bench_calibration BYTES THREADS: what this machine's cores do right now while all of them are
// busy, as one JSON object. From it a round of `allreduce` works out the least time that moves its
// bytes (bounds.py), because a machine shared with others has fast and slow seconds.
//
// Each thread reads an array of BYTES on memfd pages, as arenas are, and changes it in place; then
// neighbours send each other bytes over TCP through buffers that stay in the second-level cache.
// Loopback: a pair of interfaces costs somewhat more, so the bound errs on the low side.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include "tests/bench/rooflines.h"
#endif

namespace cgx::bench {
namespace {

constexpr int kRounds = 3;
constexpr size_t kTcpBytes = 16u << 20, kChunk = 256u << 10;

// The loops of rooflines.h where they run, else whatever the compiler makes of these.
float read_plain(const float* x, size_t n) {
  uint32_t all[16] = {};
  for (size_t i = 0; i < n; i += 16) {
    uint32_t line[16];
    std::memcpy(line, x + i, sizeof(line));
    for (int k = 0; k < 16; ++k) all[k] |= line[k];
  }
  return static_cast<float>(all[0] ^ all[15]);
}

void in_place_plain(float* y, size_t n, float value) {
  for (size_t i = 0; i < n; ++i) y[i] += value;
}

struct Loops {
  float (*read)(const float*, size_t) = read_plain;
  void (*in_place)(float*, size_t, float) = in_place_plain;
};

Loops choose_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {read_loop, in_place_loop};
#endif
  return {};
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

float* map_array(size_t bytes) {
  const int fd = memfd_create("bench", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail("memfd");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) fail("mmap");
  close(fd);
  std::memset(data, 1, bytes);
  return static_cast<float*>(data);
}

// Two connected TCP sockets.
std::array<int, 2> connected_pair() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), first = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0 || connect(first, generic, length) != 0) {
    fail("loopback");
  }
  const int second = accept(listener, nullptr, nullptr);
  if (second < 0) fail("accept");
  close(listener);
  for (const int s : {first, second}) fcntl(s, F_SETFL, O_NONBLOCK);
  return {first, second};
}

// As many bytes out as in, whichever the socket is ready for.
void exchange(int socket) {
  std::vector<char> out(kChunk), in(kChunk);
  size_t sent = 0, received = 0;
  while (sent < kTcpBytes || received < kTcpBytes) {
    const ssize_t gone = sent < kTcpBytes ? send(socket, out.data(), kChunk, MSG_NOSIGNAL) : 0;
    const ssize_t come = received < kTcpBytes ? recv(socket, in.data(), kChunk, 0) : 0;
    sent += static_cast<size_t>(std::max<ssize_t>(gone, 0));
    received += static_cast<size_t>(std::max<ssize_t>(come, 0));
    if (gone > 0 || come > 0) continue;
    const short wanted =
        static_cast<short>((sent < kTcpBytes ? POLLOUT : 0) | (received < kTcpBytes ? POLLIN : 0));
    pollfd ready = {socket, wanted, 0};
    if (poll(&ready, 1, 1000) == 0) fail("a second without a byte");
  }
}

// The median time until every thread has done its share.
double seconds_of_all(int threads, const std::function<void(int)>& share) {
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    double began = 0;
    std::barrier start(threads, [&]() noexcept { began = now_seconds(); });
    std::vector<std::thread> others;
    for (int t = 0; t < threads; ++t) {
      others.emplace_back([&, t] {
        start.arrive_and_wait();
        share(t);
      });
    }
    for (std::thread& other : others) other.join();
    seconds.push_back(now_seconds() - began);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

int run(size_t bytes, int threads) {
  const Loops loops = choose_loops();
  const size_t floats = bytes / sizeof(float) / 64 * 64;
  std::vector<float*> arrays;
  for (int t = 0; t < threads; ++t) arrays.push_back(map_array(bytes));
  std::vector<float> sinks(static_cast<size_t>(threads) * 16);
  const double read = seconds_of_all(threads, [&](int t) {
    sinks[static_cast<size_t>(t) * 16] = loops.read(arrays[static_cast<size_t>(t)], floats);
  });
  const double in_place = seconds_of_all(
      threads, [&](int t) { loops.in_place(arrays[static_cast<size_t>(t)], floats, 0.0f); });
  const double gigabytes = 1e-9 * static_cast<double>(floats * sizeof(float));
  std::printf("{\"read_gbs\": %.3f, \"in_place_gbs\": %.3f", gigabytes / read,
              gigabytes / in_place);
  std::vector<int> sockets;
  for (int t = 0; t < threads; t += 2) {
    for (const int s : connected_pair()) sockets.push_back(s);
  }
  const int ends = static_cast<int>(sockets.size());  // one more than threads where these are odd
  const double tcp =
      seconds_of_all(ends, [&](int t) { exchange(sockets[static_cast<size_t>(t)]); });
  std::printf(", \"tcp_ms_per_mib\": %.4f}\n", 1e3 * tcp / (kTcpBytes >> 20));
  return 0;
}

}  // namespace
}  // namespace cgx::bench

int main(int argc, char** argv) {
  const long bytes = argc == 3 ? std::atol(argv[1]) : 0;
  const int threads = argc == 3 ? std::atoi(argv[2]) : 0;
  if (bytes < 4096 || threads < 1 || threads > 256) {
    std::fprintf(stderr, "usage: bench_calibration BYTES THREADS\n");
    return 2;
  }
  return cgx::bench::run(static_cast<size_t>(bytes), threads);
}
