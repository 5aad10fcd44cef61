#include "tests/gpu/driver/stream.h"

#include <chrono>

namespace cgx::standin {

bool Point::passed() const {
  return stream == nullptr || stream->passed(number);
}
void Point::wait() const {
  if (stream != nullptr) stream->wait(number);
}

Stream::Stream(Options options)
    : options_(std::move(options)), random_(options_.seed), thread_([this] { run(); }) {}

Stream::~Stream() {
  close(true);
  thread_.join();
}

Point Stream::push(std::function<void()> work, std::vector<Point> after) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(work), std::move(after)});
  changed_.notify_all();
  return {shared_from_this(), ++pushed_};
}

Point Stream::last() {
  const std::lock_guard lock(mutex_);
  return {shared_from_this(), pushed_};
}

bool Stream::passed(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void Stream::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || stopping_.load(); });
}

void Stream::close(bool now) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (now) stopping_.store(true);
  changed_.notify_all();
}

void Stream::run() {
  options_.enter_thread();
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
      if (stopping_.load() || queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    for (const Point& point : work.after) point.wait();
    dawdle();
    work.run();
    work = {};
    const std::lock_guard lock(mutex_);
    ++done_;
    changed_.notify_all();
  }
}

// The only waiting by the clock: it makes orders that nobody asked for likely to be broken.
void Stream::dawdle() {
  if (options_.seed == 0 || random_() % 4 != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % (options_.delay_us + 1)));
}

}  // namespace cgx::standin
