#include "scheduler/call_runner.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/frame.h"

namespace cgx::scheduler {

uint64_t CallDescriptor::hash() const {
  return wire::checksum(std::as_bytes(std::span(this, 1)));
}

std::string CallDescriptor::describe() const {
  return std::string(dtype_name(dtype)) + "[" + std::to_string(elements) + "] " +
         std::string(reduce_op_name(op));
}

CallRunner::Call& CallRunner::call_at(uint64_t number) {
  Call& call = calls_[number];
  if (call.entries.empty()) {
    call.entries.resize(ports_.members.local_count());
    call.submitted.resize(ports_.members.local_count());
  }
  return call;
}

Status CallRunner::submit(uint32_t rank, uint64_t number, const Submission& submission,
                          uint64_t now_ns) {
  next_of_rank_.resize(ports_.members.local_count());
  const uint32_t global = ports_.members.local[rank].rank;
  if (number != next_of_rank_[rank]) {
    return {StatusCode::kSTEP_ORDER, "rank " + std::to_string(global) + " submitted call " +
                                         std::to_string(number) + ", the next one is " +
                                         std::to_string(next_of_rank_[rank])};
  }
  if (number >= lowest_ + kCallWindow) {
    return {StatusCode::kBUSY, "call " + std::to_string(number) + " would be the " +
                                   std::to_string(number - lowest_ + 1) + "th in flight, at most " +
                                   std::to_string(kCallWindow) + " are allowed"};
  }
  ++next_of_rank_[rank];
  Call& call = call_at(number);
  if (call.count == 0) {
    call.descriptor = submission.descriptor;
    call.first_ns = now_ns;
  }
  call.entries[rank] = submission;
  call.submitted[rank] = true;
  ++call.count;
  if (!call.failure.ok()) {
    answer(call, number, rank, call.failure);
    retire_complete();
    return {};
  }
  if (!(call.descriptor == submission.descriptor)) {
    const auto first = std::find(call.submitted.begin(), call.submitted.end(), true);
    auto other = static_cast<size_t>(first - call.submitted.begin());
    if (other == rank)
      other = static_cast<size_t>(std::find(first + 1, call.submitted.end(), true) -
                                  call.submitted.begin());
    const Status why(StatusCode::kMISMATCH,
                     "call " + std::to_string(number) + ": rank " +
                         std::to_string(ports_.members.local[other].rank) + " submitted " +
                         call.entries[other].descriptor.describe() + ", rank " +
                         std::to_string(global) + " " + submission.descriptor.describe());
    failures_.emplace_back(number, why);
    fail_call(number, why);
  }
  return {};
}

std::shared_ptr<const CallRunner::Shape> CallRunner::shape_for(const CallDescriptor& descriptor) {
  if (shape_ && shape_->descriptor == descriptor) return shape_;
  auto shape = std::make_shared<Shape>();
  shape->descriptor = descriptor;
  shape->table.push_back({.name = "",
                          .dtype = descriptor.dtype,
                          .op = descriptor.op,
                          .elements = descriptor.elements,
                          .shape = {descriptor.elements}});
  shape->group.segments.push_back({0, CodecSpec{.codec = 0, .bucket = 512}});
  PartLimits limits;
  limits.encoded_bytes = std::min(limits.encoded_bytes, ports_.pool.slab_bytes() * 3 / 4);
  shape->layout = GroupLayout::choose(CollectiveWish::kAuto, shape->group, shape->table,
                                      ports_.members.machines(), limits);
  shape_ = shape;
  return shape_;
}

Status CallRunner::start(uint64_t number, Call& call, uint64_t now_ns) {
  call.started = true;
  const Members& members = ports_.members;
  const std::shared_ptr<const Shape> shape = shape_for(call.descriptor);
  OperationSetup setup{.kind = wire::StepKind::kCall,
                       .step = number,
                       .group_index = 0,
                       .keeps_alive = shape,
                       .layout = &shape->layout,
                       .group = &shape->group,
                       .table = &shape->table,
                       .machine = members.machine,
                       .machines = members.machines(),
                       .segments = {},
                       .descriptor = {}};
  LocalSegment& local = setup.segments.emplace_back();
  local.scale =
      call.descriptor.op == ReduceOp::kAvg ? 1.0f / static_cast<float>(members.ranks()) : 1.0f;
  for (const Submission& entry : call.entries) {
    local.inputs.push_back(entry.input);
    local.outputs.push_back(entry.output);
  }
  const auto bytes = std::as_bytes(std::span(&call.descriptor, 1));
  setup.descriptor.assign(bytes.begin(), bytes.end());
  operations_.push_back(
      std::make_unique<Operation>(std::move(setup), ports_.lane, ports_.pool, ports_.host, now_ns));
  ports_.host.count(Counter::koperations_started, 1);
  return receive_stashed(number, *operations_.back(), now_ns);
}

Status CallRunner::receive_stashed(uint64_t number, Operation& operation, uint64_t now_ns) {
  std::deque<Stashed> rest;
  std::deque<Stashed> mine;
  for (Stashed& stashed : stash_) {
    (stashed.header.step == number ? mine : rest).push_back(std::move(stashed));
  }
  stash_ = std::move(rest);
  for (const Stashed& stashed : mine) {
    const Call& call = calls_[number];
    if (!call.failure.ok()) return {};
    CGX_RETURN_IF_ERROR(deliver(operation, call, stashed.header, stashed.payload, now_ns));
  }
  return {};
}

Status CallRunner::deliver(Operation& operation, const Call& call, const wire::FrameHeader& header,
                           std::span<const std::byte> payload, uint64_t now_ns) {
  if (header.plan_hash == call.descriptor.hash()) {
    return operation.receive(header, payload, now_ns);
  }
  CallDescriptor theirs;
  if (header.phase == wire::Phase::kScatter && header.chunk == 0 &&
      payload.size() >= sizeof(theirs)) {
    std::memcpy(static_cast<void*>(&theirs), payload.data(), sizeof(theirs));
  }
  const Members& members = ports_.members;
  const Status why(StatusCode::kMISMATCH, "call " + std::to_string(header.step) + ": " +
                                              members.ranks_of(members.machine) + " submitted " +
                                              call.descriptor.describe() + ", " +
                                              members.ranks_of(header.source) + " " +
                                              theirs.describe());
  failures_.emplace_back(header.step, why);
  fail_call(header.step, why);
  return {};
}

Status CallRunner::receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                           uint64_t now_ns) {
  const uint64_t number = header.step;
  if (number >= lowest_ + 2 * kCallWindow) {
    return protocol_error(ports_.members.machine_name(header.source) + " sent a frame of call " +
                          std::to_string(number) + " while this machine is at call " +
                          std::to_string(lowest_));
  }
  const auto found = calls_.find(number);
  const bool known = found != calls_.end();
  if (number < lowest_ || (known && !found->second.failure.ok())) {
    ports_.host.count(Counter::kframes_stale, 1);
    return {};
  }
  if (!known || !found->second.started) {
    constexpr size_t kStashMax = 4096;
    if (stash_.size() >= kStashMax) return protocol_error("too many frames of calls ahead");
    stash_.push_back({header, {payload.begin(), payload.end()}});
    ports_.host.count(Counter::kheld_bytes, payload.size());
    return {};
  }
  for (const auto& operation : operations_) {
    if (operation->step() != number) continue;
    CGX_RETURN_IF_ERROR(deliver(*operation, found->second, header, payload, now_ns));
    finish_operations(now_ns);
    return {};
  }
  ports_.host.count(Counter::kframes_unexpected, 1);  // complete: a duplicate
  return {};
}

Result<bool> CallRunner::work(uint64_t now_ns) {
  bool worked = false;
  for (auto& [number, call] : calls_) {
    if (call.started || !call.failure.ok() || call.count < ports_.members.local_count()) continue;
    CGX_RETURN_IF_ERROR(start(number, call, now_ns));
    worked = true;
    break;  // starting may have failed the call and changed the map
  }
  for (size_t i = 0; i < operations_.size() && !worked; ++i) {
    CGX_ASSIGN_OR_RETURN(worked, operations_[i]->advance(now_ns));
  }
  finish_operations(now_ns);
  return worked;
}

void CallRunner::finish_operations(uint64_t now_ns) {
  for (size_t i = 0; i < operations_.size();) {
    if (operations_[i]->state() != Operation::State::kComplete) {
      ++i;
      continue;
    }
    const std::unique_ptr<Operation> operation = std::move(operations_[i]);
    operations_.erase(operations_.begin() + static_cast<int64_t>(i));
    const auto found = calls_.find(operation->step());
    CGX_ASSERT(found != calls_.end());
    ++totals_.operations;
    totals_.exchange_ns += now_ns - operation->started_ns();
    for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
      totals_.gradient_bytes +=
          found->second.descriptor.elements * dtype_bytes(found->second.descriptor.dtype);
      answer(found->second, found->first, rank, {});
    }
    calls_.erase(found);
    ports_.host.count(Counter::koperations_completed, 1);
  }
  retire_complete();
}

// The window moves past calls every local rank was answered for.
void CallRunner::retire_complete() {
  for (auto it = calls_.begin(); it != calls_.end();) {
    const bool over = !it->second.failure.ok() && it->second.count == ports_.members.local_count();
    it = over ? calls_.erase(it) : std::next(it);
  }
  if (!calls_.empty()) {
    lowest_ = calls_.begin()->first;
  } else if (!next_of_rank_.empty()) {
    lowest_ = *std::min_element(next_of_rank_.begin(), next_of_rank_.end());
  }
}

void CallRunner::answer(const Call& call, uint64_t number, uint32_t rank, const Status& status) {
  const LocalRank& local = ports_.members.local[rank];
  if (local.port == nullptr || !call.submitted[rank]) return;
  cgx_completion_record record{};
  record.kind = CGX_COMPLETE_CALL;
  record.comm = local.handle;
  record.step = number;
  record.cookie = call.entries[rank].cookie;
  record.outcome = status.ok() ? CGX_OUTCOME_RESULT : CGX_OUTCOME_ERROR;
  record.status = static_cast<uint16_t>(status.code());
  local.port->complete(record, status.message());
}

void CallRunner::fail_call(uint64_t number, const Status& why) {
  if (number < lowest_ || number >= lowest_ + 2 * kCallWindow) return;
  Call& call = call_at(number);
  if (!call.failure.ok()) return;
  call.failure = why;
  std::erase_if(operations_, [&](const auto& operation) { return operation->step() == number; });
  std::erase_if(stash_, [&](const Stashed& stashed) { return stashed.header.step == number; });
  for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
    answer(call, number, rank, why);
  }
  ports_.host.count(Counter::koperations_failed, 1);
}

void CallRunner::fail_all(const Status& why) {
  std::vector<uint64_t> open;
  for (const auto& [number, call] : calls_) open.push_back(number);
  for (uint64_t number : open) fail_call(number, why);
  stash_.clear();
  retire_complete();
}

void CallRunner::fail_until(uint64_t calls_end, const Status& why) {
  for (uint64_t number = lowest_; number < calls_end; ++number) fail_call(number, why);
  retire_complete();
}

uint64_t CallRunner::submitted_end() const {
  return next_of_rank_.empty() ? 0 : *std::max_element(next_of_rank_.begin(), next_of_rank_.end());
}

uint64_t CallRunner::oldest_wait_ns() const {
  for (const auto& [number, call] : calls_) {
    if (call.failure.ok() && call.count > 0) return call.first_ns;
  }
  return 0;
}

std::vector<uint32_t> CallRunner::missing_ranks() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
    const uint64_t next = rank < next_of_rank_.size() ? next_of_rank_[rank] : 0;
    if (next == lowest_) missing.push_back(ports_.members.local[rank].rank);
  }
  return missing;
}

}  // namespace cgx::scheduler
