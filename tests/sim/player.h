// Plays a program on a simulated cluster and judges it.
//
// Every rank does its part as a trainer with libcgx would: it waits where it must, notices failures
// when it looks, redoes, leaves when it is told that there is no way on. The judge holds that
//   - results are those of the reference, on all ranks, every step and call;
//   - an error is explained by something that has happened, and names who did it;
//   - steps and calls have one outcome; promised policies come, at one step for all;
//   - nothing hangs, and when all have gone nothing is left behind.
// Equal programs give equal histories.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "scheduler/communicator/control.h"
#include "tests/sim/coverage.h"
#include "tests/sim/program.h"
#include "tests/sim/reference.h"

namespace cgx::sim {

struct Verdict {
  std::string violation;  // empty: none
  std::vector<std::string> events;
  uint64_t steps = 0, redos = 0, calls = 0, commits = 0, policies = 0, epochs = 0;
  uint64_t trials = 0;  // of plans, that were proposed
  bool lost = false;    // STEP_LOST
  bool ended = false;   // before its time, as the program said
  int64_t virtual_ns = 0;
  Coverage covered;
};

class Player {
 public:
  explicit Player(const Program& program);
  Verdict play();

 private:
  struct Action {
    enum class Kind : uint8_t {
      kBegin,
      kSubmit,
      kAbsent,
      kEnd,
      kWaitStep,
      kDone,
      kCall,
      kWaitCall,
      kCommit,
      kEvent
    };
    Kind kind;
    const Item* item = nullptr;
    uint64_t number = 0;  // of the step or call
    uint32_t tensor = 0;
  };
  struct StepState {
    bool begun = false, ended = false, finished = false;
    uint32_t times_begun = 0;
    uint32_t attempt = 0;  // of its latest beginning; ranks need not have made as many
    uint64_t epoch = 0, version = 0;
    std::vector<uint32_t> submitted;   // of this attempt
    std::map<uint32_t, uint8_t> said;  // by tensor: outcome, of this attempt
    std::map<uint32_t, Bytes> results;
  };
  struct CallState {
    bool submitted = false, answered = false;
    StatusCode code = StatusCode::kOK;
    Bytes result;
  };
  struct Actor {
    std::vector<Action> actions;
    std::map<uint64_t, size_t> begin_of;  // where a step's actions begin
    size_t next = 0;
    int64_t ready_ns = 0;
    uint32_t attempt = 0;
    bool failed = false;     // and has been told so
    bool abandoned = false;  // its own pass: submits no more
    bool redoing = false, committing = false;
    bool over = false;  // no way on
    bool leaving = false, gone = false, never = false;
    uint32_t tensors = 0;  // registered
    uint32_t committed = 0;
    std::map<uint64_t, StepState> steps;
    std::map<uint64_t, CallState> calls;
    uint64_t next_call = 0;
    std::set<const Item*> done_once;
    std::set<uint64_t> closed_steps;
  };
  // Another job's session in memory that a daemon has let go of.
  struct Heir final : scheduler::SessionPort {
    scheduler::SessionId session;
    uint32_t completed = 0;
    StatusCode code = StatusCode::kOK;
    void complete(cgx_completion_record record, std::string_view) override {
      ++completed;
      if (record.status != 0) code = static_cast<StatusCode>(record.status);
    }
    void reply(uint32_t, const wire::Reply& reply) override {
      if (reply.code != StatusCode::kOK) code = reply.code;
    }
  };
  // Something that happened, and the errors that it explains.
  struct Cause {
    std::set<StatusCode> codes;
    std::vector<std::string> names;  // one of them is said
    std::optional<uint64_t> call;    // only of this call
  };
  struct Promise {
    uint64_t version = 0, switch_step = 0;
    uint64_t disturbed_step = 0;  // a failure or a commit came behind it, when ranks were there
  };

  // Set-up and pace.
  ClusterOptions options() const;
  void place_buffers();
  void expand(uint32_t rank);
  bool set_up();
  bool can_act(uint32_t rank) const;
  bool blocked(const Actor& actor, const Action& action) const;
  void act(uint32_t rank);
  void drain();
  void give_memory_away();
  bool memory_is_whole(uint32_t rank);

  // What ranks do.
  void do_action(uint32_t rank, const Action& action);
  void submit(uint32_t rank, uint64_t step, uint32_t tensor);
  void do_call(uint32_t rank, const Action& action);
  void do_commit(uint32_t rank, const Action& action);
  void do_done(uint32_t rank, const Action& action);
  void do_event(uint32_t rank, const Item& item, uint64_t step);
  void abandon(uint32_t rank, uint64_t step);
  void ask_for_redo(uint32_t rank);
  void heard_redo(uint32_t rank);
  void heard_commit(uint32_t rank);
  void leave(uint32_t rank, bool closes_only);
  void send(uint32_t rank, cgx_submit_record record);

  // What they are told.
  void complete(uint32_t rank, const cgx_completion_record& record, std::string_view text);
  void complete_call(uint32_t rank, const cgx_completion_record& record, std::string_view text);
  void apply_policy(const Item& item);
  void answered(const Item& item, const Result<scheduler::PolicyChange>& change);

  // Judging.
  void note(uint32_t rank, const std::string& what);
  void violate(const std::string& what);
  void explain(const std::string& who, StatusCode code, const std::string& text,
               std::optional<uint64_t> call = std::nullopt);
  void disturb_promises();
  void judge_steps();
  void judge_calls();
  void judge_promises();
  void cover_step(uint64_t number, const StepState& step, bool redone);
  void cover_end();
  void judge_end();
  void compare(const std::string& what, const Cluster::Tensor& tensor, const Bytes& expected,
               const Bytes& got);

  // The program's data.
  bool has(uint64_t step, uint32_t rank, uint32_t tensor) const;
  double unit_of(const Item& item, uint32_t rank, uint32_t times_begun) const;
  Bytes input_of(uint64_t step, uint32_t attempt, uint32_t rank, uint32_t tensor) const;
  Bytes call_input(uint64_t call, uint32_t rank) const;
  uint32_t tensors_in(uint64_t step) const { return tensors_of_step_[step]; }
  scheduler::TensorTable table(uint32_t tensors) const;
  bool another_way() const { return may_end_ || lost_; }

  const Program& program_;
  uint64_t arena_bytes_ = 0;
  struct Buffers {
    uint64_t home = 0, in[2] = {}, out[2] = {};
  };
  std::vector<Buffers> buffers_;              // by tensor
  std::vector<uint64_t> call_in_, call_out_;  // by call number modulo
  std::mt19937_64 random_;
  std::unique_ptr<Cluster> cluster_;
  std::map<uint32_t, std::unique_ptr<Heir>> heirs_;  // by the rank whose memory they have
  Reference reference_;
  std::vector<Actor> actors_;
  std::vector<const Item*> steps_, calls_;  // by number
  std::vector<uint32_t> tensors_of_step_;
  std::vector<Cause> causes_;
  std::vector<Promise> promises_;
  uint32_t unanswered_policies_ = 0;
  bool may_end_ = false;  // an item that ends everything has been played
  bool lost_ = false;
  bool machines_down_ = false;
  std::set<uint64_t> tried_;  // epochs
  struct Known {              // of a plan
    scheduler::PlanPurpose purpose;
    std::set<scheduler::Collective> rows;
    bool residuals = false, racks = false;
  };
  std::map<uint64_t, Known> plans_;  // by epoch
  uint64_t covered_epoch_ = 0;       // of the step that was looked at last
  bool device_lost_ = false;
  Verdict verdict_;
};

}  // namespace cgx::sim
