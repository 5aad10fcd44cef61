// A whole cluster in one thread: engines, their local ranks and the network between them, in
// virtual time. Nothing here knows protocols; it plays the daemons' event loops and the trainers.
//
// Deterministic: equal options (seed included) give equal histories.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/engine/engine.h"
#include "scheduler/sim/introductions.h"
#include "tests/sim/arena.h"
#include "tests/sim/slow_site.h"
#include "transport/faults.h"
#include "transport/loopback.h"

namespace cgx::sim {

// One trainer: its arena, what it was told, and the next record to submit.
class Rank final : public scheduler::SessionPort {
 public:
  explicit Rank(uint64_t arena_bytes) : arena_(arena_bytes) {}

  std::span<std::byte> arena() { return arena_.memory(); }
  Arena& memory() { return arena_; }
  template <typename T>
  T* at(uint64_t offset) {
    return reinterpret_cast<T*>(arena().data() + offset);
  }

  void complete(cgx_completion_record record, std::string_view text) override {
    if (on_complete) return on_complete(record, text);
    completions.push_back({record, std::string(text)});
  }
  void reply(uint32_t request, const wire::Reply& reply) override {
    replies[request] = reply;
    if (on_reply) on_reply(request);
  }

  struct Completion {
    cgx_completion_record record;
    std::string text;
  };
  std::vector<Completion> completions;
  std::map<uint32_t, wire::Reply> replies;
  std::function<void(uint32_t request)> on_reply;

  // The completion of a kind for a step (or call), if it came.
  const Completion* find(cgx_completion_kind kind, uint64_t step) const {
    for (const Completion& completion : completions) {
      if (completion.record.kind == kind && completion.record.step == step) return &completion;
    }
    return nullptr;
  }

  // Told instead of `completions`, while what it says is still in the arena.
  std::function<void(const cgx_completion_record&, std::string_view)> on_complete;
  scheduler::SessionId session;
  uint32_t machine = 0;
  uint32_t attempt = 0;
  double gradient_unit = 1.0;  // of the steps it submits to from now on
  bool alive = true;           // false: killed, or it said goodbye
  bool released = false;       // and its daemon has let go of its arena

 private:
  Arena arena_;
};

struct ClusterOptions {
  std::vector<uint32_t> ranks_per_machine = {1, 1};
  scheduler::Policy policy;
  scheduler::Timeouts timeouts;
  transport::FaultPlan faults;
  int64_t latency_ns = 20'000;
  uint64_t port_bytes_per_second = 1'250'000'000;  // of links that do not differ
  bool sent_on_arrival = false;                    // LoopbackNetwork's
  // Of one frame between two machines, when links differ; frames of a link stay in order.
  std::function<int64_t(uint32_t from, uint32_t to)> link_latency_ns;
  std::function<scheduler::Limits(uint32_t machine)> limits;
  // What a plan takes to make, so that answers may overtake each other; null: nothing.
  std::function<int64_t(uint32_t machine)> planning_ns;
  // Machines whose arithmetic takes time; null, or options without takes_ns: none at all.
  std::function<SlowSiteOptions(uint32_t machine)> site;
  scheduler::PlanLog* plans = nullptr;
  std::shared_ptr<const std::vector<scheduler::PlanEntry>> plan_history;
  std::shared_ptr<const scheduler::MachineCosts> costs;  // for policies of mode auto
  // Likewise, of machines that differ; null: nobody knows them there.
  std::function<std::shared_ptr<const scheduler::MachineCosts>(uint32_t machine)> costs_of;
  std::shared_ptr<const scheduler::KeptProfiles> profiles;  // likewise, found by earlier runs
  std::function<uint32_t(uint32_t machine)> cores;  // for its ranks and daemon; null: enough
  scheduler::SearchPace search;
  uint32_t frame_bytes_max = 0;  // 0: the transport's own
  uint64_t recorded_events = 0;  // a power of two; 0: none
  uint64_t arena_bytes = 1 << 20;
  uint64_t first_step = 0;
  uint64_t timeout_ms = 0;
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();

  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  Rank& rank(uint32_t index) { return *ranks_[index]; }
  uint32_t machine_count() const;
  scheduler::Engine& engine(uint32_t machine);
  // What its recorder remembers; REQUIRES: recorded_events.
  std::vector<scheduler::Event> recorded(uint32_t machine) const;
  int64_t now_ns() const { return now_ns_; }
  // By which transport id `machine` knows `other`, once they are linked.
  transport::PeerId peer_of(uint32_t machine, uint32_t other) const {
    return peers_.at({machine, other});
  }
  const std::vector<std::string>& events() const { return events_; }
  const std::vector<std::string>& warnings() const { return warnings_; }  // among them
  // Slices of each question of an operator that is answered; REQUIRES: planning_ns.
  const std::vector<uint32_t>& considered() const { return considered_; }
  void note(const std::string& text) { events_.push_back(text); }  // among the daemons' events

  // Every rank asks to create communicator `name` and waits for the answer.
  void create(const std::string& name = "world");
  struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    ReduceOp op = ReduceOp::kSum;
    uint64_t elements = 0;
    std::vector<uint64_t> shape;
    uint64_t offset = 0;  // of the home region; chosen by commit()
  };
  void place(std::vector<Tensor>& tensors) const;  // chooses their offsets in the arenas
  void commit(std::vector<Tensor>& tensors);       // places them, registers, commits
  // Those from number `first` on; a later commit registers what is new.
  void register_on(uint32_t rank, const std::vector<Tensor>& tensors, uint32_t first = 0);
  void request_commit(uint32_t rank, uint32_t tensors);

  Status submit(uint32_t rank, uint64_t step, uint32_t tensor, const Tensor& where);
  Status end_step(uint32_t rank, uint64_t step);
  Status done_step(uint32_t rank, uint64_t step, bool dropped);
  Status absent(uint32_t rank, uint64_t step, uint32_t tensor);
  Status call(uint32_t rank, uint64_t number, DType dtype, ReduceOp op, uint64_t elements,
              uint64_t offset);
  // Any record: what it lacks of communicator, attempt and gradient unit is filled in.
  Status submit_record(uint32_t rank, cgx_submit_record record);
  void request_redo(uint32_t rank);
  void kill_rank(uint32_t rank);
  void say_goodbye(uint32_t rank);  // ends its session in order
  void kill_daemon(uint32_t machine);
  void cut_link(uint32_t machine, uint32_t other);  // both hear that it is down
  void stop_daemon(uint32_t machine);    // as SIGSTOP: its links stay up, nothing works any more
  bool stopped(uint32_t machine) const;  // or killed
  void close_communicator(uint32_t rank, uint32_t comm = 7);
  void create_as(uint32_t rank, scheduler::SessionId session);  // asks to be that rank
  // A communicator of one rank, for a session that is none of the ranks'.
  void create_alone(uint32_t machine, scheduler::SessionId session, const std::string& name);
  // One rank's request, changed; its answer does not end others' waiting.
  void create_on(uint32_t rank, const std::function<void(wire::CreateCommunicator&)>& change);

  // All ranks leave the communicator, and make the next one of its name; nothing is committed yet.
  // False: a rank has no answer.
  bool create_again(uint64_t first_step);

  // Its links from now on, where they do not differ.
  void shape(uint64_t port_bytes_per_second) { network_.shape(port_bytes_per_second); }

  // The next pause ends at this time at the latest.
  void wake_at(int64_t ns) { wake_at_ns_ = ns; }
  // Runs until the predicate holds; false if virtual time passed the limit first.
  bool run_until(const std::function<bool()>& done, int64_t limit_ns = 60'000'000'000);
  void run_for(int64_t ns);
  bool all_ended(uint64_t step);  // every living rank has the completion of its step_end
  // Runs a number of rounds, and whatever time passes between them.
  void run_rounds(uint32_t rounds);
  // Told of every frame that a daemon is about to read.
  using FrameTap = std::function<void(uint32_t machine, const transport::Frame& frame)>;
  void tap(FrameTap tap) { tap_ = std::move(tap); }
  // False: the frame is lost, as no link loses one.
  using FrameFilter = std::function<bool(uint32_t machine, const transport::Frame& frame)>;
  void let_through(FrameFilter filter) { filter_ = std::move(filter); }
  // A daemon has touched memory it had let go of.
  bool released_memory_touched() const;
  static constexpr uint32_t kCreate = 1, kRegister = 2, kCommit = 3, kRedo = 4, kClose = 5;

 private:
  struct Daemon;
  wire::CreateCommunicator create_message(uint32_t rank, const std::string& name) const;
  void open_link(uint32_t machine, scheduler::LinkId link, const scheduler::LinkRequest& request);
  bool round();  // everybody works once; true if anything happened
  int64_t next_time() const;
  void release_arenas();

  ClusterOptions options_;
  int64_t now_ns_ = 1, wake_at_ns_ = 0;
  transport::LoopbackNetwork network_;
  transport::Faults faults_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<SlowSite*> sites_;
  scheduler::sim::Introductions introductions_;
  std::map<std::pair<uint32_t, uint32_t>, transport::PeerId> peers_;
  std::map<std::pair<uint32_t, uint32_t>, scheduler::LinkId> links_;
  std::vector<std::string> events_, warnings_;
  std::vector<uint32_t> considered_;
  FrameTap tap_;
  FrameFilter filter_;
};

}  // namespace cgx::sim
