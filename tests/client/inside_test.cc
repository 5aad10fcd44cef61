// A communicator that is closed while another thread is between the two halves of one call.
//
// The thread under test stops for a while when it has let go of its session's mutex for the first
// time: where the call does not stay inside, that is between its halves. The test replaces
// pthread_mutex_unlock for that, which ThreadSanitizer does itself: it is left out there.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>

#include "tests/client/ranks.h"

#if !defined(__SANITIZE_THREAD__)

namespace {

using namespace std::chrono_literals;

thread_local pthread_mutex_t* last_unlocked = nullptr;
thread_local pthread_mutex_t* stops_behind = nullptr;
std::atomic<bool> stopped{false}, closed{false}, closed_under_it{false};
std::atomic<pid_t> closer{0};  // the thread that closes, from when it begins

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  return std::getline(file, line) && line.substr(line.rfind(')')).starts_with(") S");
}

void stop_for_a_while() {
  stopped = true;
  while (!closed && (closer == 0 || !sleeps(closer))) std::this_thread::yield();
  const auto end = std::chrono::steady_clock::now() + 200ms;
  while (!closed && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  if (closed) closed_under_it = true;
}

}  // namespace

extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static const auto of_system =
      reinterpret_cast<decltype(&pthread_mutex_unlock)>(::dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
  const int result = of_system(mutex);
  last_unlocked = mutex;
  if (mutex == stops_behind) {
    stops_behind = nullptr;
    stop_for_a_while();
  }
  return result;
}

namespace cgx::testing {
namespace {

class InsideTest : public RanksTest {
 protected:
  InsideTest() {
    stopped = closed = closed_under_it = false;
    closer = 0;
    open_ranks(1);
    add_tensors(1, 8);
  }
  Rank& rank() { return ranks_[0]; }

  // `call` in a thread of its own, in which the communicator is closed as soon as it has stopped.
  void close_inside(const std::function<cgx_status()>& call) {
    cgx_status answer = CGX_OK;
    std::thread inside([&] {
      ASSERT_OK(cgx_wake(rank().session));
      stops_behind = last_unlocked;
      answer = call();
    });
    while (!stopped) std::this_thread::yield();
    closer = ::gettid();
    EXPECT_OK(cgx_comm_close(rank().comm));
    closed = true;
    inside.join();
    EXPECT_FALSE(closed_under_it) << "the call goes on in a communicator that is freed";
    EXPECT_TRUE(closed_under_it || answer == CGX_CANCELLED) << answer;
  }
};

TEST_F(InsideTest, ClosingWaitsForAThreadThatHasHandedOverAndDoesNotWaitYet) {
  float* const data = arena_floats(rank(), 8);
  close_inside([&] { return cgx_allreduce(rank().comm, data, data, 8, CGX_F32, CGX_SUM); });
}

TEST_F(InsideTest, ClosingWaitsForAThreadThatHasWaitedAndDoesNotCopyYet) {
  ASSERT_OK(cgx_step_end(rank().comm, 0));
  ASSERT_OK(cgx_wait(rank().comm, 0, -1));
  close_inside([&] { return cgx_stream_wait(rank().comm, 0, nullptr, -1); });
}

TEST_F(InsideTest, ClosingWaitsForAThreadThatHasWaitedForACallAndDoesNotCopyYet) {
  float* const data = arena_floats(rank(), 8);
  uint64_t call = 0;
  ASSERT_OK(cgx_allreduce_async(rank().comm, data, data, 8, CGX_F32, CGX_SUM, &call));
  ASSERT_OK(cgx_wait_call(rank().comm, call, -1));
  close_inside([&] { return cgx_stream_wait_call(rank().comm, call, nullptr, -1); });
}

}  // namespace
}  // namespace cgx::testing

#endif
