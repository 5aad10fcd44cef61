// A training process of which only the time is there: a forward pass, then gradients one after the
// other, and the next step when its daemon says that this one is complete.
//
// While it computes it may lose time to the daemon, which delays whatever is still to come of the
// step. Thread rule: the simulator's one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/ports.h"
#include "scheduler/sim/model.h"

namespace cgx::scheduler::sim {

class CostedRank final : public SessionPort {
 public:
  using Submit = std::function<Status(const cgx_submit_record&)>;
  // REQUIRES: model and clock outlive it.
  CostedRank(const Model& model, const Clock& clock);

  uint64_t arena_bytes() const { return arena_bytes_; }  // that its tensors lie in
  wire::RegisterTensors tensors(uint32_t comm) const;

  void train(uint32_t comm, uint64_t first_step, uint64_t end_step);
  int advance(const Submit& submit);  // what is due; how much that was
  uint64_t next_ns() const;           // when something is; UINT64_MAX: it waits, or is done
  void lose(double ns);               // of its processor's time

  bool done() const { return step_ == end_step_; }
  uint64_t step() const { return step_; }
  const Status& failed() const { return failed_; }
  bool answered(uint32_t request) const;
  // When each step began, and at the end when the last was complete.
  const std::vector<uint64_t>& began_ns() const { return began_ns_; }
  // When each tensor of the open step was handed over, in the order of arrival.
  const std::vector<double>& arrived_ns() const { return arrived_ns_; }

  void complete(cgx_completion_record record, std::string_view text) override;
  void reply(uint32_t request, const wire::Reply& reply) override;

 private:
  void begin_step();
  double due_ns() const;  // of the next gradient
  bool computing() const { return !began_ns_.empty() && !done() && next_ < model_.order.size(); }
  cgx_submit_record record(uint8_t kind) const;

  const Model& model_;
  const Clock& clock_;
  std::vector<uint64_t> offsets_;  // by tensor
  uint64_t arena_bytes_ = 0;
  uint32_t comm_ = 0;
  uint64_t step_ = 0, end_step_ = UINT64_MAX;
  size_t next_ = 0;  // of the order
  double lost_ns_ = 0;
  std::vector<uint64_t> began_ns_;
  std::vector<double> arrived_ns_;
  std::vector<uint32_t> answered_;
  Status failed_;
};

}  // namespace cgx::scheduler::sim
