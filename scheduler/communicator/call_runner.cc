#include "scheduler/communicator/call_runner.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/frame.h"
#include "scheduler/exchange/plan_facts.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {
namespace {

auto of_call(uint64_t number) {
  return [number](const wire::FrameHeader& header) { return header.step == number; };
}

}  // namespace

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
  // By number, as other machines judge its frames: small calls may end before a large one.
  const std::optional<uint64_t> oldest = oldest_of(rank);
  if (oldest && number >= *oldest + kCallWindow) {
    return {StatusCode::kBUSY, "rank " + std::to_string(global) + " submitted call " +
                                   std::to_string(number) + " before call " +
                                   std::to_string(*oldest) + " has ended; it may be " +
                                   std::to_string(kCallWindow - 1) + " ahead"};
  }
  ++next_of_rank_[rank];
  const CallDescriptor& said = submission.descriptor;
  ports_.host.record({.step = static_cast<uint32_t>(number),
                      .kind = EventKind::karrival,
                      .group = Event::kCall,
                      .peer = static_cast<uint16_t>(global),
                      .b = said.elements * dtype_bytes(said.dtype)});
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
    retire_failed();
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
  if (shape_ && shape_->descriptor.says_as(descriptor)) return shape_;
  shape_ = std::make_shared<Shape>(make_shape(descriptor, *view_, ports_.pool.slab_bytes()));
  return shape_;
}

CallRunner::Shape CallRunner::make_shape(const CallDescriptor& descriptor, const View& view,
                                         uint64_t slab_bytes) {
  Shape shape{.descriptor = descriptor};
  shape.table.push_back({.name = "",
                         .dtype = descriptor.dtype,
                         .op = descriptor.op,
                         .elements = descriptor.elements,
                         .shape = {descriptor.elements}});
  shape.group.segments.push_back({0, CodecSpec{.codec = 0, .bucket = 512}});
  shape.group.way = choose_way({.machines = view.machines()}, shape.group, shape.table);
  const PartLimits limits = part_limits(slab_bytes);
  const Setting setting{view.machine, view.machines(), shape.group.way};
  shape.layout = GroupLayout::create(shape.group, shape.table, Schedule::shards(setting), limits);
  shape.schedule = Schedule::create(setting, shape.layout);
  shape.descriptor.way = shape.group.way;
  shape.descriptor.part_raw_bytes = limits.raw_bytes;
  shape.descriptor.part_encoded_bytes = limits.encoded_bytes;
  return shape;
}

SlabCounts CallRunner::slabs_needed(const View& view, const Site& site, uint64_t slab_bytes) {
  // Of more parts than can be under way, and of one that takes one trip.
  const uint64_t shard = 2 * raw_scatter_parts(view.machines()) + 1;
  const uint64_t many = view.machines() * shard * part_limits(slab_bytes).encoded_bytes;
  FrameNeeds most;
  for (const uint64_t elements : {many / sizeof(float), uint64_t{1}}) {
    const Shape shape = make_shape({.elements = elements}, view, slab_bytes);
    most.cover(frame_needs(shape.schedule, site.consumes_inside()));
  }
  return slabs_for(most, kCallWindow, view.machines());
}

Status CallRunner::start(uint64_t number, Call& call, uint64_t now_ns) {
  call.started = true;
  const std::shared_ptr<const Shape> shape = shape_for(call.descriptor);
  OperationSetup setup{.kind = wire::StepKind::kCall,
                       .step = number,
                       .group_index = 0,
                       .keeps_alive = shape,
                       .layout = &shape->layout,
                       .schedule = &shape->schedule,
                       .group = &shape->group,
                       .table = &shape->table,
                       .machine = view_->machine,
                       .machines = view_->machines(),
                       .segments = operations_.spare_segments(0),
                       .descriptor = {},
                       .hash = {}};
  setup.segments.resize(1);
  LocalSegment& local = setup.segments[0];
  local.clear();
  local.scale = scale_of(call.descriptor.op, call.descriptor.dtype, view_->ranks());
  for (const Submission& entry : call.entries) {
    local.inputs.push_back(entry.input);
    local.outputs.push_back(entry.output);
  }
  call.descriptor = shape->descriptor;
  const auto bytes = std::as_bytes(std::span(&call.descriptor, 1));
  setup.descriptor.assign(bytes.begin(), bytes.end());
  Operation& operation =
      operations_.begin(std::move(setup), ports_.site, ports_.pool, ports_.host, now_ns);
  ports_.host.count(Counter::koperations_started, 1);
  return receive_stashed(number, operation, now_ns);
}

Status CallRunner::receive_stashed(uint64_t number, Operation& operation, uint64_t now_ns) {
  while (std::optional<Stash::Frame> frame = stash_.take(of_call(number))) {
    CGX_RETURN_IF_ERROR(
        deliver(operation, calls_[number], frame->header, frame->payload(), now_ns, &frame->slab));
  }
  return {};
}

Status CallRunner::deliver(Operation& operation, const Call& call, const wire::FrameHeader& header,
                           std::span<const std::byte> payload, uint64_t now_ns, Slab* owned) {
  if (header.plan_hash == call.descriptor.hash()) {
    return operation.receive(header, payload, now_ns, owned);
  }
  CallDescriptor theirs;
  if (header.flags & wire::FrameHeader::kDescriptor && payload.size() >= sizeof(theirs)) {
    std::memcpy(static_cast<void*>(&theirs), payload.data(), sizeof(theirs));
  }
  const std::string cut = theirs.says_as(call.descriptor)
                              ? ", and cut it into other parts: install the same version of cgxd "
                                "on all machines"
                              : "";
  const Status why(StatusCode::kMISMATCH,
                   "call " + std::to_string(header.step) + ": " + view_->ranks_of(view_->machine) +
                       " submitted " + call.descriptor.describe() + ", " +
                       view_->ranks_of(header.source) + " " + theirs.describe() + cut);
  failures_.emplace_back(header.step, why);
  fail_call(header.step, why);
  return {};
}

Status CallRunner::receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                           uint64_t now_ns) {
  const uint64_t number = header.step;
  const auto found = calls_.find(number);
  const bool known = found != calls_.end();
  if (mode_ != Mode::kRunning) {
    Operation* const operation = mode_ == Mode::kResultsOnly && known ? find(number) : nullptr;
    if (operation == nullptr || header.plan_hash != found->second.descriptor.hash()) {
      ports_.host.count(Counter::kframes_stale, 1);
      return {};
    }
    CGX_RETURN_IF_ERROR(operation->receive_result(header, payload, now_ns));
    finish_operations(now_ns);
    return {};
  }
  if (number >= lowest_live() + 2 * kCallWindow) {
    return protocol_error(view_->machine_name(header.source) + " sent a frame of call " +
                          std::to_string(number) + " while this machine is at call " +
                          std::to_string(lowest_live()));
  }
  if (number < lowest() || (known && !found->second.failure.ok())) {
    ports_.host.count(Counter::kframes_stale, 1);
    return {};
  }
  if (!known || !found->second.started) {
    if (stash_.keep(header, payload)) return {};
    return protocol_error(view_->machine_name(header.source) +
                          " sent more of calls ahead than windows allow");
  }
  Operation* const operation = find(number);
  if (operation == nullptr) {
    ports_.host.count(Counter::kframes_stale, 1);
    return {};
  }
  CGX_RETURN_IF_ERROR(deliver(*operation, found->second, header, payload, now_ns));
  finish_operations(now_ns);
  return {};
}

Operation* CallRunner::find(uint64_t number) {
  return operations_.find(
      [number](const Operation& operation) { return operation.step() == number; });
}

Result<bool> CallRunner::work(uint64_t now_ns) {
  bool started = false, worked = false;
  if (mode_ == Mode::kStopped) return false;
  for (auto& [number, call] : calls_) {
    if (mode_ != Mode::kRunning) break;
    if (call.started || !call.failure.ok() || call.count < ports_.members.local_count()) continue;
    CGX_RETURN_IF_ERROR(start(number, call, now_ns));
    started = true;
    break;  // starting may have failed the call and changed the map
  }
  for (size_t i = 0; i < operations_.open().size() && !worked; ++i) {
    CGX_ASSIGN_OR_RETURN(worked, operations_.open()[i]->advance(now_ns));
  }
  finish_operations(now_ns);
  retire_failed();
  return started || worked;
}

void CallRunner::finish_operations(uint64_t now_ns) {
  while (std::unique_ptr<Operation> operation = operations_.take_complete()) {
    const auto found = calls_.find(operation->step());
    CGX_ASSERT(found != calls_.end());
    ++totals_.operations;
    const uint64_t exchange_ns = now_ns - operation->started_ns();
    totals_.exchange_ns += exchange_ns;
    const CallDescriptor& descriptor = found->second.descriptor;
    const uint64_t gradient_bytes =
        descriptor.elements * dtype_bytes(descriptor.dtype) * ports_.members.local_count();
    totals_.gradient_bytes += gradient_bytes;
    ports_.host.count(Counter::kgradient_bytes, gradient_bytes);
    for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
      answer(found->second, found->first, rank, {});
      Event told = operation->event(EventKind::kcompleted);
      told.peer = static_cast<uint16_t>(ports_.members.local[rank].rank);
      told.b = exchange_ns;
      ports_.host.record(told);
    }
    if (done_.size() == kDoneKept) done_.pop_front();
    done_.push_back(found->first);
    calls_.erase(found);
    operations_.retire(std::move(operation));
    ports_.host.count(Counter::koperations_completed, 1);
  }
}

// A failed call is kept until every local rank has submitted it, and was told.
void CallRunner::retire_failed() {
  std::erase_if(calls_,
                [&](const auto& entry) { return entry.second.over(ports_.members.local_count()); });
}

// Of the calls that every local rank has submitted, those that are not over are kept.
uint64_t CallRunner::lowest() const {
  for (const auto& [number, call] : calls_) {
    if (!call.over(ports_.members.local_count())) return std::min(submitted_by_all(), number);
  }
  return submitted_by_all();
}

uint64_t CallRunner::submitted_by_all() const {
  return next_of_rank_.empty() ? 0 : *std::min_element(next_of_rank_.begin(), next_of_rank_.end());
}

uint64_t CallRunner::lowest_live() const {
  uint64_t live = lowest();
  for (auto it = calls_.find(live); it != calls_.end() && !it->second.failure.ok();
       it = calls_.find(live)) {
    ++live;
  }
  return live;
}

std::optional<uint64_t> CallRunner::oldest_of(uint32_t rank) const {
  const auto first = std::find_if(calls_.begin(), calls_.end(), [&](const auto& entry) {
    return entry.second.failure.ok() && entry.second.submitted[rank];
  });
  if (first == calls_.end()) return {};
  return first->first;
}

bool CallRunner::unfinished(uint32_t rank) const {
  return oldest_of(rank).has_value();
}

bool CallRunner::spoken_since(uint64_t call) const {
  return std::any_of(calls_.lower_bound(call), calls_.end(), [](const auto& entry) {
    return entry.second.failure.ok() && entry.second.count > 0;
  });
}

std::vector<uint64_t> CallRunner::open() const {
  std::vector<uint64_t> numbers;
  for (const auto& [number, call] : calls_) {
    if (call.failure.ok()) numbers.push_back(number);
  }
  return numbers;
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

bool CallRunner::fail_call(uint64_t number, const Status& why) {
  constexpr uint64_t kAheadMax = 1024;  // of failed calls that a local rank has yet to submit
  const bool over = calls_.count(number) == 0 && number < submitted_by_all();
  if (over || number >= lowest() + kAheadMax) return false;
  Call& call = call_at(number);
  if (!call.failure.ok()) return false;
  call.failure = why;
  call.untold = true;
  operations_.end_if([number](const Operation& operation) { return operation.step() == number; });
  stash_.drop(of_call(number));
  ports_.host.count(Counter::koperations_failed, 1);
  tell_failure(number);
  return true;
}

// A rank that is told may use its buffers again.
void CallRunner::tell_failure(uint64_t number) {
  const auto found = calls_.find(number);
  const bool untold = found != calls_.end() && found->second.untold;
  const auto is_it = [number](const Operation& operation) { return operation.step() == number; };
  if (!untold || operations_.tickets_open_if(is_it)) return;
  found->second.untold = false;
  for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
    answer(found->second, number, rank, found->second.failure);
  }
}

Status CallRunner::settle(Operation& operation, Ticket ticket, const SiteAnswer& answer,
                          uint64_t now_ns) {
  const uint64_t number = operation.step();
  CGX_RETURN_IF_ERROR(operation.answered(ticket, answer, now_ns));
  if (mode_ != Mode::kStopped) finish_operations(now_ns);
  tell_failure(number);
  retire_failed();
  return {};
}

void CallRunner::fail(const Status& why) {
  mode_ = Mode::kStopped;
  for (const uint64_t number : open()) fail_call(number, why);
  stash_.clear();
  retire_failed();
}

void CallRunner::freeze(bool take_results) {
  mode_ = take_results ? Mode::kResultsOnly : Mode::kStopped;
  operations_.stop_sending();
}

void CallRunner::restart(ViewPtr view, uint64_t calls_end, const Status& why) {
  view_ = std::move(view);
  mode_ = Mode::kRunning;
  for (uint64_t number = lowest(); number < calls_end; ++number) {
    fail_call(number, why);
  }
  stash_.clear();
  retire_failed();
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
    if (next_of(rank) == lowest()) missing.push_back(ports_.members.local[rank].rank);
  }
  return missing;
}

}  // namespace cgx::scheduler
