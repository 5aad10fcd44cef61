// bench_machine: what this machine can do at best, printed as one JSON object for the header of
// every benchmark: spin round trip between two threads and read, non-temporal write and two-thread
// read bandwidth per page kind. Ratios are only comparable within one run: virtual CPUs move
// between core complexes and these numbers show it.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr size_t kBytes = size_t{256} << 20;
constexpr int kRounds = 7;
enum class Pages { kAnonymous, kHuge, kMemfd };

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t read_plain(const std::byte* data, size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) sum ^= words[i];
  return sum;
}

void write_plain(std::byte* data, size_t bytes) {
  std::memset(data, 1, bytes);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_avx2(const std::byte* data, size_t bytes) {
  __m256i sum[4] = {};
  for (size_t i = 0; i < bytes; i += 128) {
    for (size_t k = 0; k < 4; k++) {
      sum[k] ^= _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * k));
    }
  }
  const __m256i all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

__attribute__((target("avx2"))) void write_avx2(std::byte* data, size_t bytes) {
  const __m256i value = _mm256_set1_epi8(1);
  for (size_t i = 0; i < bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(data + i), value);
  }
  _mm_sfence();
}
#endif

struct Kernels {
  uint64_t (*read)(const std::byte*, size_t) = read_plain;
  void (*write)(std::byte*, size_t) = write_plain;
};

Kernels choose_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return {read_avx2, write_avx2};
#endif
  return {};
}

std::byte* map_pages(Pages pages) {
  int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (pages == Pages::kMemfd) {
    fd = memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, kBytes) != 0) return nullptr;
    flags = MAP_SHARED;
  }
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (fd >= 0) close(fd);
  if (data == MAP_FAILED) return nullptr;
  if (pages != Pages::kMemfd) {
    madvise(data, kBytes, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  std::memset(data, 1, kBytes);
  return static_cast<std::byte*>(data);
}

template <typename Body>
double median_gigabytes_per_second(Body body) {
  std::vector<double> rates;
  for (int i = 0; i < kRounds; i++) {
    const double start = now_seconds();
    body();
    rates.push_back(kBytes / (now_seconds() - start) * 1e-9);
  }
  std::nth_element(rates.begin(), rates.begin() + kRounds / 2, rates.end());
  return rates[kRounds / 2];
}

void read_with_two_threads(const Kernels& kernels, const std::byte* data,
                           std::atomic<uint64_t>& sink) {
  std::thread other([&] { sink += kernels.read(data, kBytes / 2); });
  sink += kernels.read(data + kBytes / 2, kBytes / 2);
  other.join();
}

void print_pages(const char* name, Pages pages, const Kernels& kernels, const char* separator) {
  std::byte* data = map_pages(pages);
  if (!data) return;
  std::atomic<uint64_t> sink{0};
  const double read = median_gigabytes_per_second([&] { sink += kernels.read(data, kBytes); });
  const double write = median_gigabytes_per_second([&] { kernels.write(data, kBytes); });
  const double both =
      median_gigabytes_per_second([&] { read_with_two_threads(kernels, data, sink); });
  std::printf(
      "%s\"%s\": {\"read_gbs\": %.1f, \"nt_write_gbs\": %.1f, \"two_thread_read_gbs\": %.1f}",
      separator, name, read, write, both);
  munmap(data, kBytes);
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Two threads hand a counter back and forth through one cache line each.
double spin_round_trip_us() {
  if (std::thread::hardware_concurrency() < 2) return 0.0;
  constexpr uint32_t kTurns = 200000;
  alignas(64) static std::atomic<uint32_t> ping{0};
  alignas(64) static std::atomic<uint32_t> pong{0};
  double seconds = 0;
  std::thread answering([&] {
    pin_to(1);
    for (uint32_t i = 1; i <= kTurns; i++) {
      while (ping.load(std::memory_order_acquire) != i) {
      }
      pong.store(i, std::memory_order_release);
    }
  });
  std::thread asking([&] {
    pin_to(0);
    const double start = now_seconds();
    for (uint32_t i = 1; i <= kTurns; i++) {
      ping.store(i, std::memory_order_release);
      while (pong.load(std::memory_order_acquire) != i) {
      }
    }
    seconds = now_seconds() - start;
  });
  asking.join();
  answering.join();
  return 1e6 * seconds / kTurns;
}

}  // namespace

int main() {
  const Kernels kernels = choose_kernels();
  std::printf("{\"spin_round_trip_us\": %.3f, \"pages\": {", spin_round_trip_us());
  print_pages("anonymous 4K", Pages::kAnonymous, kernels, "");
  print_pages("THP", Pages::kHuge, kernels, ", ");
  print_pages("memfd", Pages::kMemfd, kernels, ", ");
  std::printf("}}\n");
  return 0;
}
