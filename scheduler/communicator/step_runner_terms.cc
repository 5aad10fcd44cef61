// StepRunner, the bad days: a step that fails, and the term after it.
#include <algorithm>

#include "scheduler/communicator/step_runner.h"

namespace cgx::scheduler {

void StepRunner::freeze(bool take_results) {
  mode_ = take_results ? Mode::kResultsOnly : Mode::kStopped;
  operations_.stop_sending();
}

Status StepRunner::settle(Operation& operation, Ticket ticket, const SiteAnswer& answer,
                          uint64_t now_ns) {
  CGX_RETURN_IF_ERROR(operation.answered(ticket, answer, now_ns));
  if (mode_ != Mode::kStopped) finish_operations(now_ns);
  if (!untold_.ok()) tell_failure();
  return {};
}

// A frame that was on its way when the step failed. What would have to be encoded or reduced for is
// not taken: no machine can have completed the step without it.
Status StepRunner::receive_result(const wire::FrameHeader& header,
                                  std::span<const std::byte> payload, uint64_t now_ns) {
  const bool takes = mode_ == Mode::kResultsOnly && current_ && header.step == current_->step() &&
                     header.group < groups_.size() && groups_[header.group].started &&
                     check_governing(header).ok();
  Operation* const operation = takes ? find(header.group) : nullptr;
  if (operation == nullptr) {
    ports_.host.count(Counter::kframes_stale, 1);
    return {};
  }
  CGX_RETURN_IF_ERROR(operation->receive_result(header, payload, now_ns));
  if (operation->state() == Operation::State::kComplete) finish_operations(now_ns);
  return {};
}

void StepRunner::complete(uint32_t rank, const cgx_completion_record& record,
                          std::string_view text) const {
  SessionPort* const port = ports_.members.local[rank].port;
  if (port != nullptr) port->complete(record, text);
}

void StepRunner::answer(const StepLedger& ledger, uint32_t rank, const Status& why) const {
  cgx_completion_record record = record_for(rank, ledger.step());
  record.outcome = CGX_OUTCOME_ERROR;
  record.status = static_cast<uint16_t>(why.code());
  record.kind = CGX_COMPLETE_TENSOR;
  for (uint32_t t = 0; t < plan_->table->size(); ++t) {
    const StepLedger::Entry& entry = ledger.entry(rank, t);
    const bool answered = &ledger == current_.get() && segments_left_[t] == 0;
    if (entry.say == StepLedger::Say::kNothing || answered) continue;
    record.tensor = t;
    record.cookie = entry.cookie;
    complete(rank, record, why.message());
  }
  if (!ledger.ended(rank)) return;
  record.kind = CGX_COMPLETE_STEP;
  record.tensor = 0;
  record.cookie = ledger.end_cookie(rank);
  complete(rank, record, why.message());
}

void StepRunner::answer(const StepLedger& ledger, const Status& why,
                        std::vector<bool>& told) const {
  for (uint32_t rank = 0; rank < ports_.members.local_count(); ++rank) {
    if (!ledger.touched(rank)) continue;
    answer(ledger, rank, why);
    told[rank] = true;
  }
}

std::vector<bool> StepRunner::answer_open_steps(const Status& why) {
  std::vector<bool> told(ports_.members.local_count());
  if (current_) answer(*current_, why, told);
  if (next_) answer(*next_, why, told);
  next_.reset();
  ports_.host.count(Counter::ksteps_failed, 1);
  return told;
}

std::vector<bool> StepRunner::restart(ViewPtr view, uint64_t first_step, const Status& why) {
  view_ = std::move(view);
  mode_ = Mode::kRunning;
  stash_.clear();
  std::vector<bool> told(ports_.members.local_count());
  if (!current_ || groups_.empty()) return told;  // no machine waits for another
  // Complete but for the word of a local rank.
  if (first_step > current_->step() && first_step == results_end()) {
    if (next_) answer(*next_, why, told);
    next_.reset();
    return told;
  }
  CGX_ASSERT(!operations_.tickets_open());  // a report waits for that
  operations_.end_all();
  if (previous_closed_) residuals_.drop();  // else the slots still belong to the complete step
  if (losses_ != nullptr) losses_->drop_step();
  result_hashes_.clear();  // the redo's gradients may be others
  told = answer_open_steps(why);
  completed_end_ = started_end_ = first_step;
  current_ = ledger_of(first_step);
  bind();
  return told;
}

void StepRunner::fail(const Status& why) {
  mode_ = Mode::kStopped;
  operations_.end_all();
  stash_.clear();
  untold_ = why;
  tell_failure();
}

// A rank that is told may use its buffers again.
void StepRunner::tell_failure() {
  if (operations_.tickets_open()) return;
  answer_open_steps(std::exchange(untold_, Status()));
  if (current_) current_ = ledger_of(current_->step());  // names no memory of a session any more
}

void StepRunner::rebind(PlanPtr plan) {
  adopt(std::move(plan), current_->step());
  bind();
}

uint64_t StepRunner::results_end() const {
  if (!current_) return completed_end_;
  const bool all_here = !groups_.empty() && lowest_ == groups_.size();
  return current_->step() + (all_here ? 1 : 0);
}

uint64_t StepRunner::next_step_of(uint32_t rank) const {
  if (!current_) return 0;
  return current_->step() + (current_->ended(rank) ? 1 : 0);
}

}  // namespace cgx::scheduler
