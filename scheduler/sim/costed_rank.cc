#include "scheduler/sim/costed_rank.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace cgx::scheduler::sim {

CostedRank::CostedRank(const Model& model, const Clock& clock) : model_(model), clock_(clock) {
  for (const TensorDesc& tensor : model_.table) {
    offsets_.push_back(arena_bytes_);
    arena_bytes_ += (tensor.bytes() + 63) / 64 * 64;
  }
}

wire::RegisterTensors CostedRank::tensors(uint32_t comm) const {
  wire::RegisterTensors message;
  message.comm = comm;
  for (size_t t = 0; t < model_.table.size(); ++t) {
    const TensorDesc& tensor = model_.table[t];
    wire::TensorDescription& described = message.tensors.emplace_back();
    described.name = tensor.name;
    described.dtype = tensor.dtype;
    described.op = tensor.op;
    described.elements = tensor.elements;
    described.shape = tensor.shape;
    described.home_offset = offsets_[t];
  }
  return message;
}

void CostedRank::train(uint32_t comm, uint64_t first_step, uint64_t end_step) {
  comm_ = comm;
  step_ = first_step;
  end_step_ = end_step;
  begin_step();
}

void CostedRank::begin_step() {
  began_ns_.push_back(clock_.now_ns());
  if (done()) return;
  next_ = 0;
  lost_ns_ = 0;
  arrived_ns_.clear();
}

double CostedRank::due_ns() const {
  return static_cast<double>(began_ns_.back()) + model_.forward_ns +
         model_.arrival_ns[model_.order[next_]] + lost_ns_;
}

cgx_submit_record CostedRank::record(uint8_t kind) const {
  cgx_submit_record record{};
  record.kind = kind;
  record.comm = comm_;
  record.step = step_;
  record.gradient_unit = 1;
  return record;
}

int CostedRank::advance(const Submit& submit) {
  int handed_over = 0;
  while (computing() && failed_.ok() && due_ns() <= static_cast<double>(clock_.now_ns())) {
    arrived_ns_.push_back(due_ns());
    cgx_submit_record tensor = record(CGX_SUBMIT_TENSOR);
    tensor.tensor = model_.order[next_++];
    tensor.in_offset = tensor.out_offset = offsets_[tensor.tensor];
    failed_ = submit(tensor);
    ++handed_over;
    if (failed_.ok() && !computing()) failed_ = submit(record(CGX_SUBMIT_STEP_END));
  }
  return handed_over;
}

uint64_t CostedRank::next_ns() const {
  return computing() ? static_cast<uint64_t>(std::ceil(due_ns())) : UINT64_MAX;
}

void CostedRank::lose(double ns) {
  if (computing()) lost_ns_ += ns;
}

bool CostedRank::answered(uint32_t request) const {
  return std::find(answered_.begin(), answered_.end(), request) != answered_.end();
}

void CostedRank::complete(cgx_completion_record record, std::string_view text) {
  const auto code = static_cast<StatusCode>(record.status);
  if (code != StatusCode::kOK && failed_.ok()) failed_ = {code, std::string(text)};
  if (record.kind != CGX_COMPLETE_STEP || record.step != step_ || !failed_.ok()) return;
  ++step_;
  begin_step();
}

void CostedRank::reply(uint32_t request, const wire::Reply& reply) {
  answered_.push_back(request);
  if (reply.code != StatusCode::kOK && failed_.ok()) failed_ = {reply.code, reply.message};
}

}  // namespace cgx::scheduler::sim
