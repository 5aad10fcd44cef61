#include "client/step_ledger.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/checks.h"

namespace cgx::client {
namespace {

Status step_order(std::string message) {
  return {StatusCode::kSTEP_ORDER, std::move(message)};
}

uint8_t state_of(const cgx_completion_record& record, const Status& failure) {
  if (!failure.ok()) return CGX_TENSOR_FAILED;
  switch (record.outcome) {
    case CGX_OUTCOME_RESULT:
      return CGX_TENSOR_RESULT;
    case CGX_OUTCOME_FILLED:
      return CGX_TENSOR_FILLED;
    case CGX_OUTCOME_ABSENT:
      return CGX_TENSOR_ABSENT;
  }
  return CGX_TENSOR_FAILED;
}

}  // namespace

Status StepLedger::between_steps() const {
  if (open_) {
    return {StatusCode::kSTEP_OPEN,
            "step " + text(next_) + " is open; end it before committing new tensors"};
  }
  if (!unfinished()) return {};
  return {StatusCode::kSTEP_OPEN,
          "step " + text(next_ - 1) + " is unfinished; wait for it before committing new tensors"};
}

bool StepLedger::unfinished() const {
  for (const Step& step : steps_) {
    if (step.cookie != 0 && !step.finished) return true;
  }
  return false;
}

bool StepLedger::owed() const {
  for (const Step& step : steps_) {
    if (step.cookie != 0 && !step.finished && step.reserved > 0) return true;
  }
  return false;
}

bool StepLedger::failed() const {
  for (const Step& step : steps_) {
    if (step.cookie != 0 && !step.failure.ok()) return true;
  }
  return false;
}

bool StepLedger::confirmed() const {
  for (const Step& step : steps_) {
    if (step.cookie != 0 && step.confirmed) return true;
  }
  return false;
}

uint32_t StepLedger::reserved() const {
  uint32_t sum = 0;
  for (const Step& step : steps_) sum += step.reserved;
  return sum;
}

const Step* StepLedger::kept(uint64_t number) const {
  const Step& step = steps_[number % kStepsKept];
  return step.cookie != 0 && step.number == number ? &step : nullptr;
}

// Whether the step before allows `next_` to open.
Status StepLedger::may_open() const {
  if (tensors_ == 0) {
    return {StatusCode::kNOT_COMMITTED, "no tensor is committed; call cgx_register and cgx_commit"};
  }
  const Step* before = next_ >= 1 ? kept(next_ - 1) : nullptr;
  if (before && !before->failure.ok()) {
    return step_order("step " + text(before->number) + " failed (" + before->failure.to_string() +
                      "); redo it with cgx_step_redo first");
  }
  const Step* earlier = next_ >= 2 ? kept(next_ - 2) : nullptr;
  if (earlier && !earlier->finished) {
    return {StatusCode::kBUSY, "step " + text(next_) + " cannot open while step " +
                                   text(earlier->number) +
                                   " is unfinished; at most two may be, wait for it first"};
  }
  return {};
}

Step& StepLedger::begin() {
  Step& step = slot(next_);
  step.number = next_;
  step.cookie = ++last_cookie_;
  step.attempt = attempt_;
  step.gradient_unit = gradient_unit_;
  step.ended = step.finished = step.confirmed = false;
  step.marked = step.reserved = 0;
  step.epoch = step.policy_version = 0;
  step.failure = Status();
  step.marks.assign(tensors_, Mark::kNone);
  step.states.assign(tensors_, CGX_TENSOR_PENDING);
  step.buffers.clear();
  open_ = true;
  begun_end_ = std::max(begun_end_, next_ + 1);
  return step;
}

Result<Step*> StepLedger::open(uint64_t number) {
  if (number != next_) {
    const Step* step = kept(number);
    if (step && !step->failure.ok()) {
      return step_order("step " + text(number) + " failed (" + step->failure.to_string() +
                        "); call cgx_step_redo before submitting it again");
    }
    return step_order("step " + text(number) + " is out of order; the " +
                      (open_ ? "open step is " : "next step is ") + text(next_));
  }
  if (!open_) {
    CGX_RETURN_IF_ERROR(may_open());
    return &begin();
  }
  Step& step = slot(number);
  if (!step.failure.ok()) return step.failure;
  return &step;
}

Result<Step*> StepLedger::find(uint64_t number) {
  if (const Step* step = kept(number)) return const_cast<Step*>(step);
  if (number >= next_) {
    return step_order("step " + text(number) + " has not begun; the next step is " + text(next_));
  }
  return Status(StatusCode::kNOT_FOUND, "step " + text(number) + " is forgotten; the last " +
                                            text(kStepsKept) + " are kept");
}

Result<Step*> StepLedger::awaited(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(Step* const step, find(number));
  if (step->ended || !step->failure.ok()) return step;
  return Status(StatusCode::kSTEP_OPEN,
                "step " + text(number) + " is open on this rank; call cgx_step_end before waiting");
}

void StepLedger::mark(Step& step, uint32_t tensor, Mark mark, ArenaHolds buffers) {
  if (step.buffers.empty()) step.buffers.resize(step.marks.size());
  step.buffers[tensor] = std::move(buffers);
  StepLedger::mark(step, tensor, mark);
}

void StepLedger::mark(Step& step, uint32_t tensor, Mark mark) {
  if (step.marks[tensor] == Mark::kNone) ++step.marked;
  step.marks[tensor] = mark;
  ++step.reserved;
}

void StepLedger::abandon(Step& step, Status why) {
  ++step.reserved;
  step.failure = std::move(why);
}

void StepLedger::end(Step& step) {
  step.reserved += slots_at_end(step);
  step.ended = true;
  open_ = false;
  ++next_;
}

Status StepLedger::may_close(const Step& step, bool dropped) const {
  if (!step.failure.ok()) {
    return {step.failure.code(), "step " + text(step.number) +
                                     " failed and can only be redone: " + step.failure.message()};
  }
  if (!step.finished) {
    return {StatusCode::kBUSY,
            "step " + text(step.number) + " is unfinished; wait for it before cgx_step_done"};
  }
  const auto said = closing_before(step.number + 1);
  const bool was_dropped = said && said->dropped;
  const bool begun = step.number + 1 < begun_end_;
  if (step.number + 1 == next_ && !open_ && (!begun || was_dropped == dropped)) return {};
  return step_order("step " + text(step.number + 1) + " has begun, which " +
                    (was_dropped ? "dropped" : "kept") + " step " + text(step.number));
}

std::optional<StepLedger::Closing> StepLedger::closing_before(uint64_t number) const {
  return closing_ && closing_->number + 1 == number ? closing_ : std::nullopt;
}

uint32_t StepLedger::apply(const cgx_completion_record& record, const Status& failure) {
  Step& step = slot(record.step);
  const bool stale = record.cookie != 0 && record.cookie != step.cookie;
  if (step.cookie == 0 || step.number != record.step || stale || step.finished) return 0;
  step.confirmed = step.confirmed || !failure.ok();
  step.epoch = record.epoch;
  step.policy_version = record.policy_version;
  return record.kind == CGX_COMPLETE_STEP ? apply_step(step, failure)
                                          : apply_tensor(step, record, failure);
}

uint32_t StepLedger::apply_tensor(Step& step, const cgx_completion_record& record,
                                  const Status& failure) {
  if (!failure.ok() && step.failure.ok()) step.failure = failure;
  if (record.tensor < step.buffers.size()) step.buffers[record.tensor] = {};
  if (record.tensor < step.states.size() && step.states[record.tensor] == CGX_TENSOR_PENDING) {
    step.states[record.tensor] = state_of(record, failure);
  }
  if (step.reserved == 0) return 0;
  --step.reserved;
  return 1;
}

uint32_t StepLedger::apply_step(Step& step, const Status& failure) {
  if (!failure.ok() && step.failure.ok()) step.failure = failure;
  step.finished = true;
  step.buffers.clear();
  for (size_t i = 0; i < step.states.size() && step.failure.ok(); ++i) {
    if (step.states[i] == CGX_TENSOR_PENDING) {
      step.failure = internal_error("the daemon completed step " + text(step.number) +
                                    " without an outcome for tensor " + text(i));
    }
  }
  for (uint8_t& state : step.states) {
    if (state == CGX_TENSOR_PENDING) state = CGX_TENSOR_FAILED;
  }
  return std::exchange(step.reserved, 0);
}

uint32_t StepLedger::restart(uint64_t number, uint32_t attempt) {
  uint32_t freed = 0;
  for (Step& step : steps_) {
    if (step.cookie == 0 || step.number < number) continue;
    freed += std::exchange(step.reserved, 0);
    step.cookie = 0;
    step.buffers.clear();
  }
  next_ = number;
  attempt_ = attempt;
  open_ = false;
  return freed;
}

}  // namespace cgx::client
