// What an exchange must give, computed straight on: no frames, no order, no failures. Every site
// keeps its residuals here exactly as PROTOCOL 6, 9 and 15 say, so that a step's result tells of
// every step before it.
//
// The plans are the engine's own (they say who owns which bucket); everything else is made anew
// from the kernels' scalar lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/exchange/layout.h"
#include "scheduler/plan/plan.h"

namespace cgx::sim {

using Bytes = std::vector<std::byte>;

class Reference {
 public:
  Reference(std::vector<uint32_t> ranks_per_machine, const std::string& job,
            const std::string& communicator);

  // The plan of an epoch, as the coordinator sent it; one machine alone needs none.
  void learn(const scheduler::Plan& plan) { plans_[plan.epoch] = plan; }
  bool knows(uint64_t epoch) const { return machines() == 1 || plans_.contains(epoch); }

  struct Step {
    uint64_t number = 0, epoch = 0;
    std::vector<double> units;               // by machine
    std::vector<std::vector<Bytes>> inputs;  // [tensor][rank]; see `present`
    std::vector<std::vector<bool>> present;  // [tensor][rank]
  };
  // The result of every tensor; empty where no rank has it. The step before must be closed.
  std::vector<Bytes> run(const scheduler::TensorTable& table, const Step& step);
  void close(bool dropped);

  Bytes call(const scheduler::TensorDesc& tensor, const std::vector<Bytes>& inputs) const;

 private:
  struct Slots {  // of one tensor on one machine
    std::vector<float> confirmed, tentative;
    double unit = 1, tentative_unit = 1;
    bool filled = false;  // an error was confirmed that no step has taken up since
    bool written = false, drained = false;
  };
  struct Sources;  // of one tensor
  struct Parts;
  struct OfSlice {
    const scheduler::Slice& slice;
    uint32_t owner = 0;
    uint64_t step = 0;
  };

  static float scale_of(const Slots& slots, float decay, double unit);
  void drain(uint32_t tensor, Sources& source, float decay, const std::vector<double>& units);
  uint32_t machines() const { return static_cast<uint32_t>(shape_.size()); }
  uint32_t ranks() const;
  void scatter(const scheduler::GroupLayout& layout, const scheduler::Group& group,
               std::vector<Sources>& sources, uint64_t step) const;
  bool add_rack(const scheduler::Group& group, Sources& source, const OfSlice& of, uint32_t adder,
                Parts& parts) const;
  void reduce_slice(const scheduler::Group& group, Sources& source, const OfSlice& of) const;
  Bytes reduced(const scheduler::Group& group, Sources& source, const OfSlice& of, uint32_t machine,
                const Parts& parts, bool result) const;
  kernels::DrawKey key(const CodecSpec& spec, const Sources& source, const OfSlice& of,
                       uint32_t encoding, uint32_t machine) const;
  static void as_values(const CodecSpec& spec, const scheduler::Slice& slice,
                        kernels::Contribution& part, Parts& parts);
  uint32_t rack_size(const scheduler::Group& group) const;
  void allgather(const scheduler::GroupLayout& layout, const scheduler::Group& group,
                 std::vector<Sources>& sources, uint64_t step) const;
  Bytes alone(const scheduler::TensorDesc& tensor, Sources& source) const;
  void exchange(const scheduler::Group& group, const scheduler::TensorTable& table,
                const scheduler::PartLimits& limits, std::vector<Sources>& sources,
                uint64_t step) const;
  void two_level(const scheduler::GroupLayout& layout, const scheduler::Group& group,
                 std::vector<Sources>& sources) const;
  Bytes rack_sum(const scheduler::Group& group, Sources& source, const scheduler::Slice& slice,
                 uint32_t first) const;
  Bytes sum_of(const scheduler::Segment& segment, DType dtype, const scheduler::Slice& slice,
               const std::vector<Bytes>& parts, void* target) const;
  Sources sources_of(const scheduler::TensorDesc& tensor, const std::vector<Bytes>& inputs,
                     const std::vector<bool>& present) const;

  std::vector<uint32_t> shape_;
  uint64_t job_hash_, communicator_hash_;
  std::map<uint64_t, scheduler::Plan> plans_;         // by epoch
  std::map<uint32_t, std::vector<Slots>> residuals_;  // by tensor, machine
};

}  // namespace cgx::sim
