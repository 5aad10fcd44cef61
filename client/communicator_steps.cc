// Communicator, its steps: submitting, ending, waiting, redoing.
#include <algorithm>
#include <cmath>

#include "client/checks.h"
#include "client/communicator.h"

namespace cgx::client {
namespace {

constexpr size_t kSubmitBatch = 1024;

}  // namespace

Status Communicator::check_ids(std::span<const uint32_t> ids) const {
  for (const uint32_t id : ids) {
    if (id < steps_.tensors()) continue;
    if (id < tensors_.size()) {
      return {StatusCode::kNOT_COMMITTED,
              "tensor " + tensors_[id]->description.name + " joins at the next cgx_commit"};
    }
    return {StatusCode::kNOT_FOUND,
            "tensor " + text(id) + "; communicator " + name_ + " has " + text(tensors_.size())};
  }
  return {};
}

// The daemon takes nothing of a step until the table is there.
Result<Step*> Communicator::open_step(uint64_t number) {
  if (committing_) return being_committed();
  return steps_.open(number);
}

cgx_submit_record Communicator::record_of(const Step& step, uint32_t id, Mark mark,
                                          const Place* place) const {
  const wire::TensorDescription& about = tensors_[id]->description;
  cgx_submit_record record{};
  record.kind = mark == Mark::kSubmitted ? CGX_SUBMIT_TENSOR : CGX_SUBMIT_ABSENT;
  record.comm = handle_;
  record.step = step.number;
  record.tensor = id;
  record.attempt = step.attempt;
  record.gradient_unit = step.gradient_unit;
  record.in_arena = place ? place->in.arena : about.home_arena;
  record.in_offset = place ? place->in.offset : about.home_offset;
  record.out_arena = place ? place->out.arena : about.home_arena;
  record.out_offset = place ? place->out.offset : about.home_offset;
  record.word = place ? place->ready.word : 0;
  record.word_value = place ? place->ready.value : 0;
  record.cookie = step.cookie;
  return record;
}

// A second submit of a tensor means that this rank's backward pass was given up: the daemon is
// told, so that the step fails on all ranks.
Status Communicator::abandon(Step& step, cgx_submit_record record) {
  const std::string& name = tensors_[record.tensor]->description.name;
  put(record, 1);
  steps_.abandon(step,
                 {StatusCode::kSTEP_ABANDONED, "tensor " + name + " was submitted again in step " +
                                                   text(step.number) + " before its step_end"});
  return step.failure;
}

Status Communicator::speak_of(Step& step, uint32_t id, Mark mark, Place* place, Copy* copy) {
  const Mark before = step.marks[id];
  if (before == Mark::kAbsent && mark == Mark::kAbsent) return {};
  const cgx_submit_record record = record_of(step, id, mark, place);
  if (before == Mark::kSubmitted && mark == Mark::kSubmitted) return abandon(step, record);
  if (before != Mark::kNone) {
    const bool absent = before == Mark::kAbsent;
    return invalid_argument("tensor " + tensors_[id]->description.name + " was " +
                            (absent ? "declared absent" : "submitted") + " in step " +
                            text(step.number) + " already");
  }
  put(record, 1, copy);
  if (!place) {
    steps_.mark(step, id, mark);
  } else {
    steps_.mark(step, id, mark, {std::move(place->in.hold), std::move(place->out.hold)});
  }
  return {};
}

Status Communicator::speak(Use& use, uint64_t number, std::span<const uint32_t> ids, Mark mark,
                           std::span<Place> places) {
  do {
    const auto batch = ids.first(std::min(ids.size(), kSubmitBatch));
    const auto count = static_cast<uint32_t>(batch.size());
    CGX_RETURN_IF_ERROR(check_ids(batch));
    CGX_RETURN_IF_ERROR(make_room(use.lock(), count, count, deadline()));
    CGX_ASSIGN_OR_RETURN(Step* const step, open_step(number));
    Status status;
    for (size_t i = 0; i < batch.size() && status.ok(); ++i) {
      status = speak_of(*step, batch[i], mark, places.empty() ? nullptr : &places[i]);
    }
    session_.publish();
    CGX_RETURN_IF_ERROR(status);
    ids = ids.subspan(batch.size());
    if (!places.empty()) places = places.subspan(batch.size());
  } while (!ids.empty());
  return {};
}

Status Communicator::submit(uint64_t step, std::span<const uint32_t> ids) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  return speak(use, step, ids, Mark::kSubmitted);
}

Status Communicator::absent(uint64_t step, std::span<const uint32_t> ids) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  return speak(use, step, ids, Mark::kAbsent);
}

Status Communicator::submit_inout(uint64_t step, std::span<const uint32_t> ids,
                                  const void* const* in, void* const* out) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(check_ids(ids));
  std::vector<Place> places;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Tensor& tensor = *tensors_[ids[i]];
    const wire::TensorDescription& description = tensor.description;
    auto place = place_of(in[i], out[i], tensor.bytes, dtype_bytes(description.dtype));
    if (!place.ok()) {
      return naming(place.status(), "tensor " + description.name, description.elements,
                    description.dtype);
    }
    places.push_back(std::move(place).value());
  }
  return speak(use, step, ids, Mark::kSubmitted, places);
}

Status Communicator::step_end(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  if (!session_.daemon_lives()) return session_.lost();
  CGX_ASSIGN_OR_RETURN(Step * step, open_step(number));
  const uint32_t slots = steps_.slots_at_end(*step);
  CGX_RETURN_IF_ERROR(make_room(use.lock(), 1, slots, deadline()));
  CGX_ASSIGN_OR_RETURN(step, open_step(number));
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_END;
  record.comm = handle_;
  record.step = number;
  record.attempt = step->attempt;
  record.gradient_unit = step->gradient_unit;
  record.cookie = step->cookie;
  put(record, steps_.slots_at_end(*step));
  steps_.end(*step);
  session_.publish();
  return {};
}

Status Communicator::set_gradient_unit(double unit) {
  if (!std::isfinite(unit) || unit <= 0) {
    return invalid_argument("gradient unit " + std::to_string(unit) +
                            " must be a finite number above 0");
  }
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this));
  steps_.set_gradient_unit(unit);
  return {};
}

Status Communicator::step_done(uint64_t number, int fate) {
  if (fate != CGX_KEPT && fate != CGX_DROPPED) {
    return invalid_argument("fate " + std::to_string(fate) + " must be CGX_KEPT or CGX_DROPPED");
  }
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(make_room(use.lock(), 1, 0, deadline()));
  CGX_ASSIGN_OR_RETURN(Step* const step, steps_.awaited(number));
  CGX_RETURN_IF_ERROR(steps_.may_close(*step, fate == CGX_DROPPED));
  steps_.close(*step, fate == CGX_DROPPED);
  say_done(number, fate == CGX_DROPPED);
  return {};
}

// Requires room. The attempt is the current one: another step may have failed since.
void Communicator::say_done(uint64_t step, bool dropped) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_DONE;
  record.flags = dropped ? CGX_STEP_DROPPED : 0;
  record.comm = handle_;
  record.step = step;
  record.attempt = steps_.attempt();
  put(record, 0);
  session_.publish();
}

Result<uint64_t> Communicator::step_redo() {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  session_.drain();
  if (!steps_.failed()) {
    return Status(StatusCode::kSTEP_ORDER, "no step of communicator " + name_ + " has failed");
  }
  const Deadline limit = deadline();
  const Status heard = session_.wait(
      use.lock(), limit, [&] { return closed_ || (steps_.confirmed() && deferred_.empty()); });
  CGX_RETURN_IF_ERROR(timed_out(heard, "cgx_step_redo"));
  if (closed_) return cancelled();
  const auto reply = ask(use, wire::RedoStep{.comm = handle_}, limit);
  if (!reply.ok()) return timed_out(reply.status(), "cgx_step_redo");
  session_.drain();  // the failed attempt's completions precede the reply
  session_.forget_slots(steps_.restart(reply->value1, static_cast<uint32_t>(reply->value0)));
  staged_steps_.erase(staged_steps_.lower_bound(reply->value1), staged_steps_.end());
  // The daemon may have refused a fate that was said while it knew of the failure and we did not.
  if (const auto said = steps_.closing_before(reply->value1)) {
    CGX_RETURN_IF_ERROR(make_room(use.lock(), 1, 0, limit));
    say_done(said->number, said->dropped);
  }
  return reply->value1;
}

Status Communicator::wait_step(uint64_t number, int64_t timeout_ms) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this, true));
  CGX_RETURN_IF_ERROR(steps_.awaited(number).status());
  const Status waited = session_.wait(use.lock(), deadline(timeout_ms), [&] {
    const auto step = steps_.awaited(number);
    return closed_ || !step.ok() || (*step)->finished || (*step)->stopped();
  });
  if (!waited.ok()) return timed_out(waited, "step " + text(number));
  if (closed_) return cancelled();
  CGX_ASSIGN_OR_RETURN(const Step* const step, steps_.awaited(number));
  return step->failure;
}

Status Communicator::test(uint64_t number, std::span<const uint32_t> ids, uint8_t* states,
                          size_t& pending) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  session_.drain();
  CGX_RETURN_IF_ERROR(check_ids(ids));
  const Status status = tell(number, ids, states, pending);
  if (!status.ok() || pending == 0 || session_.daemon_lives()) return status;
  return tell(number, ids, states, pending);
}

Status Communicator::tell(uint64_t number, std::span<const uint32_t> ids, uint8_t* states,
                          size_t& pending) {
  CGX_ASSIGN_OR_RETURN(const Step* const step, steps_.find(number));
  size_t unfinished = 0;
  bool failed = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint8_t state = ids[i] < step->states.size() ? step->states[ids[i]] : 0;
    unfinished += state == CGX_TENSOR_PENDING;
    failed |= state == CGX_TENSOR_FAILED;
    if (states) states[i] = state;
  }
  pending = unfinished;
  if (failed || (!step->failure.ok() && unfinished > 0)) return step->failure;
  return unfinished > 0 ? session_.lost() : Status();
}

Result<cgx_step_report> Communicator::step_report(uint64_t number) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  session_.drain();
  CGX_ASSIGN_OR_RETURN(const Step* step, steps_.find(number));
  if (!step->finished && !session_.daemon_lives()) {
    CGX_ASSIGN_OR_RETURN(step, steps_.find(number));
    if (!step->finished) return session_.lost();
  }
  cgx_step_report report{.size = sizeof(report),
                         .step = number,
                         .attempt = step->attempt,
                         .finished = step->finished,
                         .epoch = step->epoch,
                         .policy_version = step->policy_version};
  for (const uint8_t state : step->states) {
    report.results += state == CGX_TENSOR_RESULT;
    report.filled += state == CGX_TENSOR_FILLED;
    report.absent += state == CGX_TENSOR_ABSENT;
    report.failed += state == CGX_TENSOR_FAILED;
  }
  return report;
}

}  // namespace cgx::client
