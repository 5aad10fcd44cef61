// Streams and events: a queue and a thread each, in order, with seeded delays so that a missing
// wait shows.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace cgx::standin {

class Stream;

// The end of a piece of work on a stream; a Point of no stream lies in the past.
struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
  bool passed() const;
  void wait() const;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  struct Options {
    bool waits_for_default;  // as streams do that were not made NON_BLOCKING
    uint64_t seed, delay_us;
    std::function<void()> enter_thread;
  };
  explicit Stream(Options options);
  ~Stream();

  Point push(std::function<void()> work, std::vector<Point> after);
  Point last();
  bool passed(uint64_t number);
  void wait(uint64_t number);
  bool waits_for_default() const { return options_.waits_for_default; }
  // The thread ends when its queue is empty; when `now`, without doing what is left.
  void close(bool now);
  bool stopping() const { return stopping_.load(); }
  // What is enqueued meanwhile would become a graph; nothing here runs one.
  void capture(bool begin) { captured_.store(begin), broken_ = false; }
  void break_capture() { broken_ = captured(); }
  bool broken() const { return broken_; }
  bool captured() const { return captured_.load(); }

 private:
  struct Work {
    std::function<void()> run;
    std::vector<Point> after;
  };
  void run();
  void dawdle();

  const Options options_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t pushed_ = 0, done_ = 0;
  bool closed_ = false;
  std::atomic<bool> stopping_ = false, captured_ = false, broken_ = false;
  std::thread thread_;
};

struct Event {
  bool timed = true;
  std::mutex mutex;
  Point recorded;
  std::shared_ptr<std::atomic<int64_t>> at_ns;
};

}  // namespace cgx::standin
