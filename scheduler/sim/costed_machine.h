// One simulated machine: a rank of which only the time is there, the real engine, a core on which
// the daemon works at known prices, and an end of the network.
//
// Thread rule: the simulator's one thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scheduler/engine/engine.h"
#include "scheduler/sim/bars.h"
#include "scheduler/sim/costed_rank.h"
#include "scheduler/sim/costed_site.h"
#include "scheduler/sim/costed_transport.h"
#include "scheduler/sim/daemon_lane.h"
#include "scheduler/sim/introductions.h"
#include "transport/loopback.h"

namespace cgx::scheduler::sim {

class CostedMachine final : public LinkPort, public EventSink, private transport::Events {
 public:
  struct Job {
    const Model& model;
    const Conditions& conditions;
    uint32_t machines = 2;
    std::shared_ptr<const std::vector<PlanEntry>> plans;  // that the engines follow
  };
  struct World {  // it outlives the machine
    const Clock& clock;
    transport::LoopbackNetwork& network;
    std::span<std::byte> arena;  // of every rank: nobody touches it
    std::function<void(const Introductions::Side&)> introduce;
  };
  static constexpr const char kJob[] = "cgxsim", kCommunicator[] = "world";
  static constexpr uint32_t kCreate = 1, kRegister = 2, kCommit = 3;  // requests of the rank

  static Result<std::unique_ptr<CostedMachine>> create(uint32_t index, Job job, const World& world);

  void meet(uint64_t first_step);  // its rank asks to make the communicator
  void commit();
  void train(uint64_t first_step, uint64_t end_step);
  // Does whatever is due.
  void work();
  bool due() const;
  uint64_t next_ns() const { return next_ns_; }  // when something is, if nothing comes before
  void link_up(LinkId link, transport::PeerId peer);

  const CostedRank& rank() const { return rank_; }
  double busy_ns() const { return lane_.busy_ns(); }   // of its daemon, in all
  uint64_t sent_bytes() const { return sent_bytes_; }  // of steps' frames, in all
  // What happened in the last step that is complete, since it began. REQUIRES: keep_bars().
  void keep_bars() { keeps_bars_ = true; }
  std::vector<Bar> bars(const Plan& plan) const;

  void open_link(LinkId link, const LinkRequest& request) override;
  void close_link(LinkId link) override { (void)link; }
  void event(EventLevel level, std::string_view text) override { (void)level, (void)text; }

 private:
  CostedMachine(uint32_t index, Job job, const World& world);
  Status open();
  void on_frame(transport::PeerId from, const transport::Frame& frame) override;
  void on_sent(transport::PeerId to, transport::SendToken token, const Status& status) override;
  void on_peer_down(transport::PeerId peer, const Status& why) override;
  void began_work(const DaemonLane::Work& work, double begin_ns, double end_ns);
  void sent(std::span<const std::byte> header, size_t bytes);
  void add_bar(uint32_t lane, uint32_t group, double begin_ns, double end_ns);

  const uint32_t index_;
  const Job job_;
  const World world_;
  DaemonLane lane_;
  CostedTransport endpoint_;
  CostedRank rank_;
  std::unique_ptr<Engine> engine_;
  SessionId session_;
  CostedSite* site_ = nullptr;  // the engine's
  uint64_t next_ns_ = 0, engine_ns_ = 0;
  uint64_t spoken_ = 0;  // what the network told the engine
  uint64_t sent_bytes_ = 0;
  double link_free_ns_ = 0;
  bool keeps_bars_ = false;
  std::vector<Bar> open_bars_;  // of the open step
};

}  // namespace cgx::scheduler::sim
