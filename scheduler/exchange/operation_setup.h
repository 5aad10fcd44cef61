// What an operation is about: which step and group, and where on this machine its tensors lie. Made
// once by a runner; the operation owns it, the site reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"
#include "scheduler/exchange/decoded_memory.h"
#include "scheduler/exchange/layout.h"
#include "scheduler/exchange/place.h"
#include "scheduler/exchange/schedule.h"
#include "scheduler/plan/losses.h"

namespace cgx::scheduler {

class SiteResidual;

// Random draws tell a part's two encodings apart.
constexpr uint32_t kFirstEncoding = 1, kSecondEncoding = 2;

// What a machine's sum is multiplied by: for AVG the reciprocal in the precision of the sum.
inline double scale_of(ReduceOp op, DType dtype, uint32_t ranks) {
  if (op != ReduceOp::kAvg) return 1.0;
  return dtype == DType::kF64 ? 1.0 / ranks : 1.0f / static_cast<float>(ranks);
}

// Everything of a segment that lies on this machine.
struct LocalSegment {
  std::vector<Place> inputs;   // of the present ranks, in rank order; empty: absent here
  std::vector<Place> outputs;  // of every local rank (home region where absent)
  bool measured = false;       // OperationSetup::strengths are
  double scale = 1.0;
  uint64_t name_hash = 0;
  SiteResidual* residual = nullptr;  // null: it has none
  bool drains = false;               // the confirmed slot is added, and nothing is written
  uint32_t confirmed = 0;            // which of its slots is; the other one is written
  float residual_scale = 1.0f;       // from the confirmed one to this step's units, decay included

  // As new, in the memory it has.
  void clear() {
    inputs.clear();
    outputs.clear();
    *this = {.inputs = std::move(inputs), .outputs = std::move(outputs)};
  }
};

// A piece of the result that other machines will compare: of the lowest local rank's output.
struct HashWish {
  uint32_t segment = 0;
  uint64_t first_byte = 0, bytes = 0;
};

struct OperationSetup {
  wire::StepKind kind = wire::StepKind::kStep;
  uint64_t step = 0;
  uint32_t group_index = 0;
  std::shared_ptr<const void> keeps_alive;  // owner of what these name
  const GroupLayout* layout = nullptr;
  const Schedule* schedule = nullptr;
  const Group* group = nullptr;
  const TensorTable* table = nullptr;
  const DecodedMemory* decoded = nullptr;  // null: nothing is decoded before it is added
  uint32_t machine = 0, machines = 1;
  bool norms = false;   // measure what the lossy codecs lose
  Strengths strengths;  // and what each of these would lose; null: nothing
  uint64_t draw_seed = 0, draw_communicator = 0;
  std::vector<LocalSegment> segments;
  std::vector<std::byte> descriptor;  // calls: in front of each shard's first part, round 1
  std::optional<HashWish> hash;

  const Segment& planned(const Slice& slice) const { return group->segments[slice.segment]; }
  DType dtype(const Slice& slice) const { return (*table)[planned(slice).tensor].dtype; }
};

// What names the random draws of a slice's first or second encoding.
inline kernels::DrawKey draw_key(const OperationSetup& setup, const Slice& slice, uint32_t encoding,
                                 bool in_rack = false) {
  const CodecSpec& spec = setup.planned(slice).codec(in_rack);
  const bool shared = kernels::find_codec(spec.codec)->shared_draws;
  const kernels::DrawSource source{.job_seed = setup.draw_seed,
                                   .communicator = setup.draw_communicator,
                                   .tensor_name_hash = setup.segments[slice.segment].name_hash,
                                   .step = setup.step,
                                   .phase = shared ? 0 : encoding,
                                   .site = shared ? 0 : setup.machine};
  return {kernels::draw_stream(source), slice.first_element / spec.bucket};
}

}  // namespace cgx::scheduler
