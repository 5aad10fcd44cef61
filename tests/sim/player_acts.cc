// Player: what ranks do.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/floats.h"
#include "proto/wire/frame.h"
#include "scheduler/communicator/control.h"
#include "tests/sim/player.h"
#include "tests/sim/player_values.h"

namespace cgx::sim {

void Player::do_action(uint32_t rank, const Action& action) {
  Actor& actor = actors_[rank];
  StepState& step = actor.steps[action.number];
  switch (action.kind) {
    case Action::Kind::kBegin:
      step.begun = true;
      step.attempt = actor.attempt;
      ++step.times_begun;
      if (unit_of(*action.item, rank, step.times_begun) != unit_of(*action.item, rank, 2)) {
        causes_.push_back({{StatusCode::kMISMATCH, StatusCode::kSTEP_LOST}, {"gradient unit"}, {}});
      }
      return;
    case Action::Kind::kSubmit:
      return submit(rank, action.number, action.tensor);
    case Action::Kind::kAbsent:
    case Action::Kind::kEnd: {
      cgx_submit_record record{};
      const bool ends = action.kind == Action::Kind::kEnd;
      record.kind = ends ? CGX_SUBMIT_STEP_END : CGX_SUBMIT_ABSENT;
      record.step = action.number;
      record.tensor = action.tensor;
      record.gradient_unit = unit_of(*action.item, rank, step.times_begun);
      if (ends) step.ended = true;
      return send(rank, record);
    }
    case Action::Kind::kDone:
      return do_done(rank, action);
    case Action::Kind::kCall:
      return do_call(rank, action);
    case Action::Kind::kCommit:
      return do_commit(rank, action);
    case Action::Kind::kEvent:
      if (actor.done_once.insert(action.item).second) do_event(rank, *action.item, action.number);
      return;
    case Action::Kind::kWaitStep:
    case Action::Kind::kWaitCall:
      return;
  }
}

void Player::send(uint32_t rank, cgx_submit_record record) {
  Actor& actor = actors_[rank];
  if (!cluster_->rank(rank).alive) return;
  const bool of_step = record.kind != CGX_SUBMIT_CALL;
  if (of_step) record.attempt = actor.steps[record.step].attempt;
  if (of_step) record.cookie = cookie_of(actor.steps[record.step].attempt, record.step);
  record.comm = 7;
  const Status status =
      cluster_->engine(program_.machine_of(rank)).submit(cluster_->rank(rank).session, record);
  if (!status.ok()) violate(rank_name(rank) + " is thrown out: " + status.to_string());
}

void Player::submit(uint32_t rank, uint64_t step, uint32_t tensor) {
  Actor& actor = actors_[rank];
  const Item& item = *steps_[step];
  const Bytes data = input_of(step, actor.attempt, rank, tensor);
  const Buffers& buffers = buffers_[tensor];
  const bool inout = mix(item.seed, 15, rank, tensor) % 100 < item.inout_percent;
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_TENSOR;
  record.step = step;
  record.tensor = tensor;
  record.gradient_unit = unit_of(item, rank, actor.steps[step].times_begun);
  record.in_offset = buffers.in[step % 2];
  record.out_offset = inout ? buffers.out[step % 2] : record.in_offset;
  if (!data.empty()) {
    std::memcpy(cluster_->rank(rank).arena().data() + record.in_offset, data.data(), data.size());
  }
  actor.steps[step].submitted.push_back(tensor);
  send(rank, record);
}

void Player::do_call(uint32_t rank, const Action& action) {
  Actor& actor = actors_[rank];
  if (action.number < actor.next_call) return;  // before a redo
  const Item& item = *action.item;
  const uint64_t number = actor.next_call++;
  const Bytes data = call_input(number, rank);
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_CALL;
  record.step = number;
  record.dtype = static_cast<uint8_t>(item.dtype);
  record.op = static_cast<uint8_t>(item.op);
  record.count = data.size() / dtype_bytes(item.dtype);
  record.in_offset = call_in_[number % kCallSlots];
  const bool inout = mix(item.seed, 16, rank) % 2 == 0;
  record.out_offset = inout ? call_out_[number % kCallSlots] : record.in_offset;
  record.cookie = number + 1;
  if (!data.empty()) {
    std::memcpy(cluster_->rank(rank).arena().data() + record.in_offset, data.data(), data.size());
  }
  actor.calls[number].submitted = true;
  if (item.odd_rank == rank) causes_.push_back({{StatusCode::kMISMATCH}, {}, number});
  ++verdict_.calls;
  send(rank, record);
}

void Player::do_commit(uint32_t rank, const Action& action) {
  Actor& actor = actors_[rank];
  const uint32_t total = actor.committed + action.item->tensors;
  std::vector<Cluster::Tensor> tensors(program_.tensors.begin(), program_.tensors.begin() + total);
  for (uint32_t t = 0; t < total; ++t) tensors[t].offset = buffers_[t].home;
  cluster_->rank(rank).replies.erase(Cluster::kCommit);
  if (actor.tensors < total) cluster_->register_on(rank, tensors, actor.tensors);
  actor.tensors = total;
  actor.committing = true;
  disturb_promises();
  cluster_->request_commit(rank, total);
}

void Player::heard_commit(uint32_t rank) {
  Actor& actor = actors_[rank];
  actor.committing = false;
  const wire::Reply reply = cluster_->rank(rank).replies.at(Cluster::kCommit);
  if (reply.code == StatusCode::kOK) {
    actor.committed = actor.tensors;
    ++verdict_.commits;
    return;
  }
  explain(rank_name(rank) + "'s commit", reply.code, reply.message);
  actor.over = true;
}

void Player::do_done(uint32_t rank, const Action& action) {
  Actor& actor = actors_[rank];
  const Item& item = *action.item;
  if (!actor.closed_steps.insert(action.number).second) return;
  const bool odd = item.odd_rank == rank && !item.odd_unit;
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_DONE;
  record.step = action.number;
  record.flags = item.fate == Fate::kDropped && !odd ? CGX_STEP_DROPPED : 0;
  if (odd) {
    may_end_ = true;
    causes_.push_back({{StatusCode::kMISMATCH, StatusCode::kSTEP_LOST}, {"dropped"}, {}});
  }
  send(rank, record);
}

void Player::do_event(uint32_t rank, const Item& item, uint64_t step) {
  Actor& actor = actors_[rank];
  using Kind = Item::Kind;
  may_end_ = may_end_ || item.ends_everything();
  const auto machine_name = [](uint32_t machine) { return "machine " + std::to_string(machine); };
  const auto lost = [&](uint32_t machine) {
    return Cause{{StatusCode::kPEER_LOST}, {machine_name(machine)}, {}};
  };
  const auto down = [&](uint32_t machine) {
    machines_down_ = true;
    for (uint32_t r = 0; r < actors_.size(); ++r) {
      if (program_.machine_of(r) == machine) actors_[r].gone = true;
    }
  };
  switch (item.kind) {
    case Kind::kAbandon:
      return abandon(rank, step);
    case Kind::kLeave:
      return leave(rank, item.closes_only);
    case Kind::kDie:
      causes_.push_back({{StatusCode::kRANK_LOST}, {rank_name(rank)}, {}});
      actor.gone = true;
      return cluster_->kill_rank(rank);
    case Kind::kLate:
      actor.ready_ns = cluster_->now_ns() + item.sleep_ns;
      return;
    case Kind::kNever:
      actor.never = true;
      causes_.push_back({{StatusCode::kTIMED_OUT, StatusCode::kSTEP_LOST},
                         {rank_name(rank), machine_name(program_.machine_of(rank))},
                         {}});
      return;
    case Kind::kPolicy:
      return apply_policy(item);
    case Kind::kKillDaemon:
      causes_.push_back(lost(item.machine));
      down(item.machine);
      return cluster_->kill_daemon(item.machine);
    case Kind::kStopDaemon:
      causes_.push_back(lost(item.machine));
      // A plan waits for it less long than its heartbeat.
      causes_.push_back(
          {{StatusCode::kTIMED_OUT}, {"no answer from " + machine_name(item.machine)}, {}});
      down(item.machine);
      return cluster_->stop_daemon(item.machine);
    case Kind::kDisconnect: {
      Cause cause = lost(item.machine);
      cause.names.push_back(machine_name(item.other));
      causes_.push_back(cause);
      return cluster_->cut_link(item.machine, item.other);
    }
    case Kind::kStep:
    case Kind::kCall:
    case Kind::kCommit:
      return;
  }
}

void Player::abandon(uint32_t rank, uint64_t step) {
  Actor& actor = actors_[rank];
  StepState& state = actor.steps[step];
  if (step >= steps_.size() || !state.begun || state.ended || tensors_in(step) == 0) return;
  causes_.push_back({{StatusCode::kSTEP_ABANDONED, StatusCode::kSTEP_LOST}, {rank_name(rank)}, {}});
  for (uint32_t r = 0; r < actors_.size(); ++r) {  // who is through with the step cannot redo it
    if (actors_[r].gone) causes_.push_back({{StatusCode::kRANK_LOST}, {rank_name(r)}, {}});
  }
  disturb_promises();
  if (state.submitted.empty()) submit(rank, step, 0);
  actor.abandoned = true;
  submit(rank, step, state.submitted[random_() % state.submitted.size()]);
}

void Player::ask_for_redo(uint32_t rank) {
  actors_[rank].redoing = true;
  note(rank, "asks for a redo");
  cluster_->request_redo(rank);
}

void Player::heard_redo(uint32_t rank) {
  Actor& actor = actors_[rank];
  const wire::Reply reply = cluster_->rank(rank).replies.at(Cluster::kRedo);
  cluster_->rank(rank).replies.erase(Cluster::kRedo);
  actor.redoing = actor.failed = actor.abandoned = false;
  note(rank, "is to redo step " + std::to_string(reply.value1) + " as attempt " +
                 std::to_string(reply.value0) + " " + reply.message);
  ++verdict_.redos;
  if (reply.code != StatusCode::kOK) {
    explain(rank_name(rank) + "'s redo", reply.code, reply.message);
    actor.over = true;
    return;
  }
  const uint64_t number = reply.value1;
  actor.attempt = static_cast<uint32_t>(reply.value0);
  uint64_t begun = 0;
  for (auto& [step, state] : actor.steps) {
    if (state.begun) begun = std::max(begun, step + 1);
    if (step >= number && state.finished) {
      return violate(rank_name(rank) + " is to redo step " + std::to_string(number) +
                     ", but has completed step " + std::to_string(step));
    }
  }
  if (number > begun) {
    return violate(rank_name(rank) + " is to redo step " + std::to_string(number) +
                   ", but is at step " + std::to_string(begun));
  }
  if (actor.attempt > 100) return violate("redos without end");
  for (auto& [step, state] : actor.steps) {
    if (step < number) continue;
    state.begun = state.ended = false;
    state.submitted.clear();
    state.said.clear();
    state.results.clear();
  }
  const auto again = actor.begin_of.find(number);
  if (again != actor.begin_of.end()) actor.next = std::min(actor.next, again->second);
}

// At the end of its program, before it, or because there is no way on.
void Player::leave(uint32_t rank, bool closes_only) {
  Actor& actor = actors_[rank];
  const bool unfinished =
      std::any_of(actor.steps.begin(), actor.steps.end(),
                  [](const auto& s) { return s.second.begun && !s.second.finished; }) ||
      std::any_of(actor.calls.begin(), actor.calls.end(),
                  [](const auto& c) { return c.second.submitted && !c.second.answered; });
  const bool early = actor.next < actor.actions.size() || actor.failed || unfinished;
  const bool told = actor.over;
  const bool others_cannot_know = std::any_of(causes_.begin(), causes_.end(), [](const Cause& c) {
    return c.codes.count(StatusCode::kTIMED_OUT) > 0 ||
           (!c.names.empty() && c.names[0] == "dropped");
  });
  // Who has abandoned a pass late may need one that is through with the step and goes.
  const bool needed = std::any_of(causes_.begin(), causes_.end(), [](const Cause& c) {
    return c.codes.count(StatusCode::kSTEP_ABANDONED) > 0;
  });
  if ((early && !told) || others_cannot_know || needed) {
    causes_.push_back({{StatusCode::kRANK_LOST, StatusCode::kCANCELLED}, {rank_name(rank)}, {}});
  }
  actor.leaving = true;
  note(rank, closes_only ? "closes" : "leaves");
  const bool closes = closes_only || random_() % 2 == 0;
  if (closes) {
    cluster_->rank(rank).on_reply = [this, rank](uint32_t request) {
      const std::span<std::byte> arena = cluster_->rank(rank).arena();
      if (request == Cluster::kClose) std::fill(arena.begin(), arena.end(), kOwnAgain);
    };
    cluster_->close_communicator(rank);
  }
  if (!closes) cluster_->say_goodbye(rank);
  actor.gone = true;
}

}  // namespace cgx::sim
