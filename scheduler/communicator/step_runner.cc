#include "scheduler/communicator/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace cgx::scheduler {
namespace {

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", number);
  return text;
}

}  // namespace

StepRunner::StepRunner(const RunnerPorts& ports, PlanForStep plan_for_step, KnowsPlan knows_plan)
    : ports_(ports),
      view_(ports.view),
      plan_for_step_(std::move(plan_for_step)),
      knows_plan_(std::move(knows_plan)),
      stash_(ports.site, ports.pool, ports.host),
      attempts_(ports.members.local_count()) {}

std::unique_ptr<StepLedger> StepRunner::ledger_of(uint64_t step) {
  const uint32_t ranks = ports_.members.local_count();
  const auto tensors = static_cast<uint32_t>(plan_->table->size());
  for (std::unique_ptr<StepLedger>& spare : spare_) {
    if (spare == nullptr || !spare->fits(ranks, tensors)) continue;
    spare->restart(step);
    return std::move(spare);
  }
  return std::make_unique<StepLedger>(step, ranks, tensors);
}

void StepRunner::install(PlanPtr plan, uint64_t first_step, Homes homes) {
  homes_ = std::move(homes);
  steps_of_table_ = 0;
  adopt(std::move(plan), first_step);
  if (started_end_ == 0) started_end_ = completed_end_ = first_step;
  current_ = ledger_of(first_step);
  closings_.resize(ports_.members.local_count(), Closing::kOpen);
  bind();
}

// Takes the plan over from `step` on; a tensor with another codec is measured anew.
void StepRunner::adopt(PlanPtr plan, uint64_t step) {
  const PlanPtr before = std::exchange(plan_, std::move(plan));
  residuals_.prepare(*plan_->facts, ports_.site);
  MadeMemory* const made = plan_->facts->made.get();
  if (made != nullptr && made->ledgers[0] != nullptr) spare_.swap(made->ledgers);
  norms_.resize(plan_->table->size());
  for (uint32_t tensor = 0; before && tensor < before->table->size(); ++tensor) {
    if (!(before->spec_of(tensor) == plan_->spec_of(tensor))) norms_[tensor] = {};
  }
  ports_.host.record({.step = static_cast<uint32_t>(step),
                      .kind = EventKind::kswitched,
                      .a = static_cast<uint32_t>(plan_->plan.groups.size()),
                      .b = plan_->plan.epoch});
}

Result<StepLedger*> StepRunner::ledger_for(uint32_t rank, uint64_t step) {
  StepLedger& open = *current_;
  if (step == open.step() && !open.ended(rank)) return &open;
  const bool may_open_next = open.ended(rank) && step == open.step() + 1;
  if (!may_open_next || (next_ && next_->ended(rank))) {
    const uint64_t expected = open.ended(rank) ? open.step() + 1 : open.step();
    return Status(StatusCode::kSTEP_ORDER,
                  "rank " + std::to_string(ports_.members.local[rank].rank) + " speaks of step " +
                      std::to_string(step) + ", the step it may speak of is " +
                      std::to_string(expected));
  }
  if (!next_) next_ = ledger_of(step);
  return next_.get();
}

Status StepRunner::say(uint32_t rank, uint64_t step, uint32_t tensor,
                       const StepLedger::Entry& entry) {
  if (tensor >= plan_->table->size()) {
    return {StatusCode::kNOT_COMMITTED, "tensor " + std::to_string(tensor) +
                                            " is not in the committed table of " +
                                            std::to_string(plan_->table->size()) + " tensors"};
  }
  CGX_ASSIGN_OR_RETURN(StepLedger* const ledger, ledger_for(rank, step));
  if (ledger->entry(rank, tensor).say != StepLedger::Say::kNothing) {
    return {StatusCode::kSTEP_ABANDONED, "rank " + std::to_string(ports_.members.local[rank].rank) +
                                             " submitted tensor '" + (*plan_->table)[tensor].name +
                                             "' again in open step " + std::to_string(step) +
                                             ": its backward pass was abandoned"};
  }
  ledger->submit(rank, tensor, entry);
  if (entry.say == StepLedger::Say::kSubmitted) {
    ports_.host.record({.step = static_cast<uint32_t>(step),
                        .kind = EventKind::karrival,
                        .group = Event::group_number(plan_->facts->first_group_of(tensor)),
                        .peer = static_cast<uint16_t>(ports_.members.local[rank].rank),
                        .a = tensor,
                        .b = (*plan_->table)[tensor].bytes()});
  }
  decided(*ledger, tensor);
  return {};
}

Status StepRunner::declare_unit(uint32_t rank, uint64_t step, double unit) {
  const auto text = [&] {
    return "gradient unit " + number_text(unit) + " of rank " +
           std::to_string(ports_.members.local[rank].rank);
  };
  if (!std::isfinite(unit) || unit <= 0) {
    return invalid_argument(text() + " is not a finite number above 0");
  }
  CGX_ASSIGN_OR_RETURN(StepLedger* const ledger, ledger_for(rank, step));
  const double declared = ledger->unit(rank);
  if (declared != 0 && declared != unit) {
    return invalid_argument(text() + " was " + number_text(declared) + " before in step " +
                            std::to_string(step) + "; it holds for a whole step");
  }
  ledger->declare_unit(rank, unit);
  return {};
}

Status StepRunner::submit(uint32_t rank, uint64_t step, const Submission& submission) {
  return say(rank, step, submission.tensor,
             {StepLedger::Say::kSubmitted, submission.input, submission.output, submission.cookie});
}

Status StepRunner::absent(uint32_t rank, uint64_t step, uint32_t tensor, uint64_t cookie) {
  return say(rank, step, tensor, {StepLedger::Say::kAbsent, {}, {}, cookie});
}

Status StepRunner::end(uint32_t rank, uint64_t step, uint64_t cookie, uint64_t now_ns) {
  CGX_ASSIGN_OR_RETURN(StepLedger* const ledger, ledger_for(rank, step));
  undecided_.clear();
  for (uint32_t t = 0; t < plan_->table->size(); ++t) {
    if (!ledger->decided(t)) undecided_.push_back(t);
  }
  ledger->end(rank, cookie, now_ns);
  ports_.host.record({.step = static_cast<uint32_t>(step),
                      .kind = EventKind::kended,
                      .peer = static_cast<uint16_t>(ports_.members.local[rank].rank)});
  for (const uint32_t tensor : undecided_) decided(*ledger, tensor);
  complete_step_if_done();
  return {};
}

Status StepRunner::done(uint32_t rank, uint64_t step, bool dropped) {
  if (step + 1 != current_->step()) {
    return {StatusCode::kSTEP_ORDER, "step_done(" + std::to_string(step) + ") of rank " +
                                         std::to_string(ports_.members.local[rank].rank) +
                                         ": the last complete step is " +
                                         std::to_string(current_->step() - 1)};
  }
  if (previous_closed_ && dropped != previous_dropped_) {
    return {StatusCode::kSTEP_ORDER, "rank " + std::to_string(ports_.members.local[rank].rank) +
                                         " speaks of step " + std::to_string(step) +
                                         " again, after all ranks of its machine began the next"};
  }
  closings_[rank] = dropped ? Closing::kDropped : Closing::kKept;
  return {};
}

// A tensor of the open step may just have been decided by the last local rank.
void StepRunner::decided(const StepLedger& ledger, uint32_t tensor) {
  if (&ledger != current_.get() || !ledger.decided(tensor)) return;
  for (const PlanFacts::PlaceInPlan& place : plan_->facts->places[tensor]) {
    --groups_[place.group].undecided;
  }
  order_.push_back(tensor);
}

// The open step learns its plan; what was said so far counts.
void StepRunner::bind() {
  groups_.assign(plan_->plan.groups.size(), {});
  order_.clear();
  absent_.clear();
  lowest_ = 0;
  segments_left_ = plan_->facts->segment_counts;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    groups_[g].undecided = static_cast<uint32_t>(plan_->plan.groups[g].segments.size());
  }
  if (!current_->any_touched()) return;
  for (uint32_t t = 0; t < plan_->table->size(); ++t) decided(*current_, t);
}

// The communicator goes; the last complete step was kept unless a rank has said otherwise.
KeptResiduals StepRunner::take_residuals(uint64_t lineage) {
  const auto dropped = std::count(closings_.begin(), closings_.end(), Closing::kDropped);
  if (previous_closed_ || dropped > 0) {
    residuals_.drop();
  } else {
    residuals_.commit();
  }
  const ResidualMark mark =
      steps_completed_ > 0 ? ResidualMark{completed_end_, lineage} : borrowed_;
  return {mark, std::move(residuals_)};
}

// Every local rank has touched the open step, so the one before it is closed: kept unless it said
// otherwise (PROTOCOL 9).
Status StepRunner::close_previous() {
  if (previous_closed_) return {};
  const auto dropped = std::count(closings_.begin(), closings_.end(), Closing::kDropped);
  if (dropped != 0 && dropped != static_cast<int64_t>(closings_.size())) {
    const auto kept = std::find_if(closings_.begin(), closings_.end(),
                                   [](Closing c) { return c != Closing::kDropped; });
    return {StatusCode::kMISMATCH,
            "rank " +
                std::to_string(
                    ports_.members.local[static_cast<size_t>(kept - closings_.begin())].rank) +
                " kept step " + std::to_string(current_->step() - 1) +
                ", another rank of its machine dropped it"};
  }
  previous_dropped_ = dropped != 0;
  if (previous_dropped_) {
    residuals_.drop();
  } else {
    residuals_.commit();
  }
  previous_closed_ = true;
  return {};
}

Result<bool> StepRunner::start_ready(uint64_t now_ns) {
  const auto end = static_cast<uint32_t>(
      std::min<uint64_t>(groups_.size(), uint64_t{lowest_} + plan_->plan.window));
  constexpr size_t kSegments = 1024;  // to begin so many takes long enough for one round
  size_t started = 0;
  for (uint32_t g = lowest_; g < end && started < kSegments; ++g) {
    if (groups_[g].started || groups_[g].undecided > 0) continue;
    CGX_RETURN_IF_ERROR(start(g, now_ns));
    started += std::max<size_t>(1, plan_->plan.groups[g].segments.size());
  }
  return started > 0;
}

Status StepRunner::start(uint32_t group, uint64_t now_ns) {
  CGX_RETURN_IF_ERROR(close_previous());
  CGX_RETURN_IF_ERROR(agree_on_unit());
  groups_[group].started = true;
  started_end_ = current_->step() + 1;
  Operation& operation =
      operations_.begin(make_setup(group), ports_.site, ports_.pool, ports_.host, now_ns);
  ports_.host.count(Counter::koperations_started, 1);
  return replay(operation, now_ns);
}

// The ranks of one machine share its residuals. Every local rank has spoken of the open step.
Status StepRunner::agree_on_unit() {
  const auto unit_of = [&](uint32_t rank) {
    const double declared = current_->unit(rank);
    return declared != 0 ? declared : 1.0;
  };
  unit_ = unit_of(0);
  const auto& local = ports_.members.local;
  for (uint32_t rank = 1; rank < ports_.members.local_count(); ++rank) {
    if (unit_of(rank) == unit_) continue;
    return {StatusCode::kMISMATCH,
            "gradient unit (loss scale / learning rate) of step " +
                std::to_string(current_->step()) + ": rank " + std::to_string(local[0].rank) +
                " declared " + number_text(unit_) + ", rank " + std::to_string(local[rank].rank) +
                " of the same machine " + number_text(unit_of(rank))};
  }
  return {};
}

OperationSetup StepRunner::make_setup(uint32_t group) {
  OperationSetup setup{.kind = wire::StepKind::kStep,
                       .step = current_->step(),
                       .group_index = group,
                       .keeps_alive = plan_,
                       .layout = &plan_->layouts[group],
                       .schedule = &plan_->facts->schedules[group],
                       .group = &plan_->plan.groups[group],
                       .table = plan_->table.get(),
                       .decoded = &plan_->decoded,
                       .machine = view_->machine,
                       .machines = view_->machines(),
                       .strengths = nullptr,
                       .draw_seed = wire::checksum(std::as_bytes(std::span(view_->job))),
                       .draw_communicator = wire::checksum(std::as_bytes(std::span(view_->name))),
                       .segments = operations_.spare_segments(group),
                       .descriptor = {},
                       .hash = {}};
  const uint64_t period = plan_->plan.stats_steps;
  setup.norms = period != 0 && current_->step() % period == 0;
  if (losses_ != nullptr && losses_->due(current_->step())) setup.strengths = losses_->strengths();
  setup.hash = hash_due(*setup.group);
  const auto segments = static_cast<uint32_t>(setup.group->segments.size());
  setup.segments.resize(segments);
  for (uint32_t s = 0; s < segments; ++s) {
    const Segment& segment = setup.group->segments[s];
    const TensorDesc& tensor = (*plan_->table)[segment.tensor];
    LocalSegment& local = setup.segments[s];
    local.clear();
    local.measured = setup.strengths != nullptr && losses_->measures(segment.tensor);
    local.scale = scale_of(tensor.op, tensor.dtype, view_->ranks());
    local.name_hash = plan_->name_hashes[segment.tensor];
    for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
      const StepLedger::Entry& entry = current_->entry(rank, segment.tensor);
      const bool submitted = entry.say == StepLedger::Say::kSubmitted;
      if (submitted) local.inputs.push_back(entry.input);
      local.outputs.push_back(submitted ? entry.output : homes_[rank][segment.tensor]);
    }
    local.drains = !segment.spec.feedback();
    const bool adds = residuals_.drains(segment.tensor) && !local.inputs.empty();
    if (!local.drains || adds) {
      local.residual = residuals_.memory(segment.tensor);
      local.confirmed = residuals_.confirmed(segment.tensor);
      local.residual_scale = residuals_.scale(segment.tensor, unit_, plan_->plan.feedback_decay);
    }
  }
  return setup;
}

Status StepRunner::replay(Operation& operation, uint64_t now_ns) {
  const auto is_its = [&operation](const wire::FrameHeader& header) {
    return header.step == operation.step() && header.group == operation.group_index();
  };
  while (std::optional<Stash::Frame> frame = stash_.take(is_its)) {
    CGX_RETURN_IF_ERROR(check_governing(frame->header));
    CGX_RETURN_IF_ERROR(operation.receive(frame->header, frame->payload(), now_ns, &frame->slab));
  }
  return {};
}

Status StepRunner::check_governing(const wire::FrameHeader& header) {
  const View& view = *view_;
  if (header.plan_hash != plan_->hash || header.epoch != plan_->plan.epoch) {
    return {StatusCode::kMISMATCH, view.machine_name(header.source) + " runs step " +
                                       std::to_string(header.step) + " under epoch " +
                                       std::to_string(header.epoch) + ", this machine under " +
                                       std::to_string(plan_->plan.epoch)};
  }
  const bool dropped = header.flags & wire::FrameHeader::kStepDropped;
  if (dropped != previous_dropped_) {
    closed_differently_ = true;
    return {StatusCode::kMISMATCH, view.ranks_of(header.source) + (dropped ? " dropped" : " kept") +
                                       " step " + std::to_string(header.step - 1) + ", " +
                                       view.ranks_of(view.machine) +
                                       (previous_dropped_ ? " dropped it" : " kept it")};
  }
  return {};
}

Operation* StepRunner::find(uint32_t group) {
  return operations_.find(
      [group](const Operation& operation) { return operation.group_index() == group; });
}

Status StepRunner::receive(const wire::FrameHeader& header, std::span<const std::byte> payload,
                           uint64_t now_ns) {
  if (mode_ != Mode::kRunning) return receive_result(header, payload, now_ns);
  if (!current_) return stash(header, payload);  // the plan was decided, the news is on its way
  if (header.step < current_->step()) {
    ports_.host.count(Counter::kframes_stale, 1);
    return {};
  }
  if (header.step > current_->step() + 1) {
    return protocol_error(view_->machine_name(header.source) + " sent a frame of step " +
                          std::to_string(header.step) + " while this machine is in step " +
                          std::to_string(current_->step()));
  }
  if (header.step == current_->step() && header.group < groups_.size() &&
      groups_[header.group].started) {
    Operation* const operation = find(header.group);
    if (operation == nullptr) {  // complete: a duplicate
      ports_.host.count(Counter::kframes_unexpected, 1);
      return {};
    }
    CGX_RETURN_IF_ERROR(check_governing(header));
    CGX_RETURN_IF_ERROR(operation->receive(header, payload, now_ns));
    if (operation->state() == Operation::State::kComplete) finish_operations(now_ns);
    return {};
  }
  return stash(header, payload);
}

Status StepRunner::stash(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  if (stash_.keep(header, payload)) return {};
  return protocol_error(view_->machine_name(header.source) +
                        " sent more frames ahead than the window allows");
}

Result<bool> StepRunner::work(uint64_t now_ns) {
  bool started = false, worked = false;
  if (!current_ || mode_ == Mode::kStopped) return false;
  if (mode_ == Mode::kRunning) {
    CGX_ASSIGN_OR_RETURN(started, start_ready(now_ns));
  }
  for (size_t i = 0; i < operations_.open().size() && !worked; ++i) {
    Operation& operation = *operations_.open()[i];  // oldest first: it holds the window
    CGX_ASSIGN_OR_RETURN(worked, operation.advance(now_ns));
  }
  finish_operations(now_ns);
  return started || worked;
}

void StepRunner::finish_operations(uint64_t now_ns) {
  while (std::unique_ptr<Operation> operation = operations_.take_complete()) {
    complete_group(*operation, now_ns);
    operations_.retire(std::move(operation));
  }
  complete_step_if_done();
}

cgx_completion_record StepRunner::record_for(uint32_t rank, uint64_t step) const {
  cgx_completion_record record{};
  record.comm = ports_.members.local[rank].handle;
  record.step = step;
  record.attempt = attempts_[rank];
  if (plan_ != nullptr) {
    record.epoch = plan_->plan.epoch;
    record.policy_version = plan_->plan.policy_version;
  }
  return record;
}

void StepRunner::complete_group(const Operation& operation, uint64_t now_ns) {
  const Group& group = *operation.setup().group;
  groups_[operation.group_index()].complete = true;
  while (lowest_ < groups_.size() && groups_[lowest_].complete) ++lowest_;
  ++totals_.operations;
  const uint64_t exchange_ns = now_ns - operation.started_ns();
  totals_.exchange_ns += exchange_ns;
  for (uint32_t s = 0; s < group.segments.size(); ++s) {
    const uint32_t tensor = group.segments[s].tensor;
    if (--segments_left_[tensor] == 0) complete_tensor(operation, s, exchange_ns);
  }
  if (operation.result_hash()) {
    const uint32_t tensor = group.segments[operation.setup().hash->segment].tensor;
    result_hashes_.push_back({current_->step(), tensor, *operation.result_hash()});
  }
  add_norms(operation);
  ports_.host.count(Counter::koperations_completed, 1);
}

// The last of its segments is here.
void StepRunner::complete_tensor(const Operation& operation, uint32_t segment,
                                 uint64_t exchange_ns) {
  const Segment& planned = operation.setup().group->segments[segment];
  const uint32_t tensor = planned.tensor;
  const bool present = operation.present_anywhere(segment);
  const LocalSegment& local = operation.setup().segments[segment];
  if (present && local.residual != nullptr) {
    if (local.drains) {
      residuals_.mark_drained(tensor);
    } else {
      residuals_.mark_written(tensor, unit_);
    }
  }
  if (!present) absent_.push_back(tensor);
  for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
    const StepLedger::Entry& entry = current_->entry(rank, tensor);
    const bool submitted = entry.say == StepLedger::Say::kSubmitted;
    cgx_completion_record record = record_for(rank, current_->step());
    record.kind = CGX_COMPLETE_TENSOR;
    record.outcome = submitted ? CGX_OUTCOME_RESULT
                     : present ? CGX_OUTCOME_FILLED
                               : CGX_OUTCOME_ABSENT;
    record.tensor = tensor;
    record.cookie = entry.cookie;
    complete(rank, record, {});
    Event told = operation.event(EventKind::kcompleted);
    told.peer = static_cast<uint16_t>(ports_.members.local[rank].rank);
    told.a = tensor;
    told.b = exchange_ns;
    ports_.host.record(told);
    const uint64_t bytes = submitted ? (*plan_->table)[tensor].bytes() : 0;
    totals_.gradient_bytes += bytes;
    ports_.host.count(Counter::kgradient_bytes, bytes);
  }
}

void StepRunner::add_norms(const Operation& operation) {
  const std::vector<Norms>& measured = operation.norms();
  for (uint32_t s = 0; s < measured.size(); ++s) {
    Norms& total = norms_[operation.setup().group->segments[s].tensor];
    total.intended_sq += measured[s].intended_sq;
    total.sent_sq += measured[s].sent_sq;
  }
  const std::vector<LossSample>& losses = operation.losses();
  for (uint32_t s = 0; s < losses.size(); ++s) {
    losses_->add(operation.setup().group->segments[s].tensor, losses[s]);
  }
}

// Of the tensor whose turn it is, if it travels in this group.
std::optional<HashWish> StepRunner::hash_due(const Group& group) const {
  const uint64_t period = plan_->plan.replica_check_steps;
  const uint64_t step = current_->step();
  if (period == 0 || view_->machines() == 1 || step % period != 0) return {};
  const uint64_t turn = step / period, tensors = plan_->table->size();
  const auto tensor = static_cast<uint32_t>(turn % tensors);
  const bool here = std::any_of(group.segments.begin(), group.segments.end(),
                                [&](const Segment& segment) { return segment.tensor == tensor; });
  if (!here) return {};
  const HashWindow window = hash_window(tensor, turn / tensors);
  const uint64_t width = dtype_bytes((*plan_->table)[tensor].dtype);
  for (uint32_t s = 0; s < group.segments.size(); ++s) {
    const Segment& segment = group.segments[s];
    if (segment.tensor != tensor || segment.first_bucket != window.first_bucket) continue;
    const uint64_t first = segment.first_element() * width + window.offset;
    const uint64_t left = segment_bytes(segment, *plan_->table) - window.offset;
    return HashWish{.segment = s, .first_byte = first, .bytes = std::min(kHashedBytes, left)};
  }
  return {};
}

// As much of a tensor as one round may take; the next time it has its turn, what follows. No window
// goes beyond a segment's end.
StepRunner::HashWindow StepRunner::hash_window(uint32_t tensor, uint64_t turn) const {
  std::vector<HashWindow> windows;
  for (const Group& group : plan_->plan.groups) {
    for (const Segment& segment : group.segments) {
      if (segment.tensor != tensor) continue;
      const uint64_t bytes = segment_bytes(segment, *plan_->table);
      uint64_t offset = 0;
      do {
        windows.push_back({segment.first_bucket, offset});
        offset += kHashedBytes;
      } while (offset < bytes);
    }
  }
  return windows[turn % windows.size()];
}

void StepRunner::complete_step_if_done() {
  if (lowest_ != groups_.size() || !current_->all_ended() || !knows_plan_()) return;
  const uint64_t step = current_->step();
  for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
    cgx_completion_record record = record_for(rank, step);
    record.kind = CGX_COMPLETE_STEP;
    record.cookie = current_->end_cookie(rank);
    complete(rank, record, {});
  }
  ports_.host.count(Counter::ksteps_completed, 1);
  ports_.host.record({.step = static_cast<uint32_t>(step),
                      .kind = EventKind::kstep_completed,
                      .b = plan_->plan.epoch});
  completed_end_ = step + 1;
  ++steps_completed_;
  constexpr uint64_t kMoreTensorsWithin = 8;  // steps: a job commits its tensors before or early on
  if (++steps_of_table_ == kMoreTensorsWithin) residuals_.release_others(*plan_->table);
  if (groups_.empty()) started_end_ = std::max(started_end_, completed_end_);
  last_order_ = order_;
  last_absent_ = absent_;
  stash_.drop([step](const wire::FrameHeader& header) { return header.step <= step; });
  std::fill(closings_.begin(), closings_.end(), Closing::kOpen);
  previous_closed_ = false;
  if (next_) {
    spare_[0] = std::exchange(current_, std::move(next_));
  } else if (current_->tensors() == plan_->table->size()) {
    current_->restart(step + 1);
  } else {
    current_ = ledger_of(step + 1);
  }
  const PlanPtr plan = plan_for_step_(step + 1);
  if (plan != plan_) adopt(plan, step + 1);
  bind();
}

std::vector<uint32_t> StepRunner::missing_ranks() const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; current_ && rank < ports_.members.local_count(); ++rank) {
    if (!current_->ended(rank)) missing.push_back(ports_.members.local[rank].rank);
  }
  return missing;
}

bool StepRunner::unfinished(uint32_t rank) const {
  return (current_ && current_->touched(rank)) || (next_ && next_->touched(rank));
}

bool StepRunner::spoken_since(uint64_t step) const {
  return (current_ && current_->step() >= step && current_->any_touched()) ||
         (next_ && next_->step() >= step && next_->any_touched());
}

}  // namespace cgx::scheduler
