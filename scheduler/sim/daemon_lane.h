// One core of one simulated machine, on which its daemon does everything: reads frames, computes,
// sends. Work waits in line; its effect comes when it is done, in virtual time.
//
// First come, first served: a daemon that computes inline takes in what has come and begins one
// part in each round, so neither waits for the other to run out. Thread rule: the simulator's one
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

namespace cgx::scheduler::sim {

class DaemonLane {
 public:
  struct Work {
    double price_ns = 0;
    uint32_t group = 0;  // which it is for; kNoGroup: none
    std::function<void()> effect;
  };
  static constexpr uint32_t kNoGroup = UINT32_MAX;
  // Told when work begins, with when it ends.
  using Watch = std::function<void(const Work& work, double begin_ns, double end_ns)>;

  void watch(Watch watch) { watch_ = std::move(watch); }
  void add(Work work, uint64_t now_ns);
  // What is done by then takes effect; how much that was.
  int advance(uint64_t now_ns);
  uint64_t next_ns() const;  // when something is done; UINT64_MAX: nothing is under way
  double busy_ns() const { return busy_ns_; }  // in all, of what has begun

 private:
  void begin_next(double from_ns);

  std::deque<Work> waiting_;
  std::optional<Work> under_way_;
  double done_ns_ = 0, busy_ns_ = 0;
  Watch watch_;
};

}  // namespace cgx::scheduler::sim
