// What is trained: tensors, and when each gradient is there if nobody disturbs the trainers. From
// an architecture, whose layers are written down here, or from a file:
//
//   model NAME
//   forward TIME               before the backward pass begins; 0 without it
//   tensor NAME SHAPE GAP      one line a tensor, in the order in which gradients appear;
//                              SHAPE as 64x3x7x7, GAP the time since the tensor before
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/plan/plan.h"

namespace cgx::scheduler::sim {

struct Model {
  std::string name;
  std::string origin;  // what its times follow from, for people
  TensorTable table;
  std::vector<uint32_t> order;     // of arrival
  std::vector<double> arrival_ns;  // by tensor, since the backward pass began
  double forward_ns = 0;

  uint64_t parameters() const;
  double backward_ns() const;  // until the last gradient is there
  double compute_ns() const { return forward_ns + backward_ns(); }
};

// How fast the trainers are.
struct Trainer {
  double batch = 0;           // samples a step and machine; 0: the architecture's
  double flops_per_ns = 1e4;  // 10 TFLOP/s, sustained
};

std::string architecture_names();  // "resnet50, resnet101, ..."
// Gaps are proportional to floating-point operations: the backward pass takes twice the forward's.
// NOT_FOUND lists names.
Result<Model> make_model(std::string_view architecture, const Trainer& trainer);

// A file as above; negative gaps, no tensors, a name twice are errors with file and line.
Result<Model> parse_model(std::string_view text, const std::string& file_name);
std::string print_model(const Model& model);  // as parse_model() reads it

}  // namespace cgx::scheduler::sim
