// Player: what ranks are told, and whether it is right.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/floats.h"
#include "proto/wire/frame.h"
#include "scheduler/communicator/control.h"
#include "tests/sim/player.h"
#include "tests/sim/player_values.h"

namespace cgx::sim {

// What they are told

void Player::complete(uint32_t rank, const cgx_completion_record& record, std::string_view text) {
  Actor& actor = actors_[rank];
  if (actor.leaving && !actor.gone) return;  // it is not listening any more
  if (actor.gone) {
    if (!machines_down_) violate(rank_name(rank) + " is told of something after it has left");
    return;
  }
  if (record.kind != CGX_COMPLETE_TENSOR || record.outcome == CGX_OUTCOME_ERROR) {
    static const char* const kNames[] = {"", "tensor of step", "step", "call"};
    note(rank, std::string(kNames[record.kind]) + " " + std::to_string(record.step) + ": " +
                   Status(static_cast<StatusCode>(record.status), std::string(text)).to_string());
  }
  if (record.kind == CGX_COMPLETE_CALL) return complete_call(rank, record, text);
  const std::string what = rank_name(rank) + " in step " + std::to_string(record.step);
  if (record.outcome == CGX_OUTCOME_ERROR) {
    explain(what, static_cast<StatusCode>(record.status), std::string(text));
  }
  StepState& step = actor.steps[record.step];
  // As libcgx sees it: of an earlier attempt, or not asked for. What a step_end made absent has no
  // cookie.
  if (record.cookie != 0 && record.cookie != cookie_of(step.attempt, record.step)) return;
  if (!step.begun) return;
  if (record.outcome == CGX_OUTCOME_ERROR) {
    if (step.finished) return violate(what + " is told an error after it completed");
    actor.failed = true;
    const auto code = static_cast<StatusCode>(record.status);
    const bool no_way_on = code == StatusCode::kTIMED_OUT ||
                           (code == StatusCode::kMISMATCH && names(std::string(text), "dropped"));
    actor.over = actor.over || no_way_on;
    return;
  }
  if (step.finished) return violate(what + " is told of it again");
  if (record.kind == CGX_COMPLETE_STEP) {
    if (!step.ended) return violate(what + " completed before its end");
    if (step.said.size() != tensors_in(record.step)) {
      return violate(what + " completed with " + std::to_string(step.said.size()) + " of " +
                     std::to_string(tensors_in(record.step)) + " tensors");
    }
    step.finished = true;
    step.epoch = record.epoch;
    step.version = record.policy_version;
    ++verdict_.steps;
    return;
  }
  if (record.tensor >= tensors_in(record.step)) return violate(what + ": unknown tensor");
  if (!step.said.emplace(record.tensor, record.outcome).second) {
    return violate(what + " is told twice of tensor " + std::to_string(record.tensor));
  }
  if (record.outcome == CGX_OUTCOME_ABSENT) return;
  const Item& item = *steps_[record.step];
  const bool inout = mix(item.seed, 15, rank, record.tensor) % 100 < item.inout_percent;
  const Buffers& buffers = buffers_[record.tensor];
  const uint64_t at = record.outcome == CGX_OUTCOME_FILLED ? buffers.home
                      : inout                              ? buffers.out[record.step % 2]
                                                           : buffers.in[record.step % 2];
  const Cluster::Tensor& tensor = program_.tensors[record.tensor];
  const std::byte* const data = cluster_->rank(rank).arena().data() + at;
  step.results[record.tensor].assign(data, data + tensor.elements * dtype_bytes(tensor.dtype));
}

void Player::complete_call(uint32_t rank, const cgx_completion_record& record,
                           std::string_view text) {
  Actor& actor = actors_[rank];
  CallState& call = actor.calls[record.step];
  const std::string what = rank_name(rank) + " in call " + std::to_string(record.step);
  if (!call.submitted || call.answered) return violate(what + " is told of it again");
  call.answered = true;
  call.code = static_cast<StatusCode>(record.status);
  if (record.outcome == CGX_OUTCOME_ERROR) {
    actor.over = actor.over || call.code == StatusCode::kTIMED_OUT;
    return explain(what, call.code, std::string(text), record.step);
  }
  const Item& item = *calls_[record.step];
  const bool inout = mix(item.seed, 16, rank) % 2 == 0;
  const auto& slots = inout ? call_out_ : call_in_;
  const std::byte* const data =
      cluster_->rank(rank).arena().data() + slots[record.step % kCallSlots];
  call.result.assign(data, data + item.elements * dtype_bytes(item.dtype));
}

void Player::apply_policy(const Item& item) {
  for (uint32_t r = 0; r < actors_.size(); ++r) {
    if (program_.machine_of(r) == item.machine && !cluster_->rank(r).alive && machines_down_)
      return;
  }
  ++unanswered_policies_;
  cluster_->engine(item.machine)
      .apply_policy({.job = "job", .policy = item.policy},
                    [this, &item](const auto& change) { answered(item, change); });
}

void Player::answered(const Item&, const Result<scheduler::PolicyChange>& change) {
  --unanswered_policies_;
  if (change.ok()) {
    ++verdict_.policies;
    promises_.push_back({change->policy_version, change->switch_step});
    return;
  }
  static StatusCode superseded;
  static const bool has_superseded = code_exists("SUPERSEDED", &superseded);
  const StatusCode code = change.status().code();
  const std::string& text = change.status().message();
  // One before another, or before a commit, is told what came instead.
  if (has_superseded && code == superseded) return;
  if (names(text, "epoch")) {
    if (code == StatusCode::kCANCELLED) return;
    if (!has_superseded && code == StatusCode::kBUSY) return;
  }
  // Nobody is there any more, or a failure is being settled.
  const bool settling = code == StatusCode::kNOT_COMMITTED || code == StatusCode::kBUSY;
  if (settling && !causes_.empty()) return;
  const bool some_gone = std::any_of(actors_.begin(), actors_.end(),
                                     [](const Actor& a) { return a.gone || a.leaving; });
  if (some_gone && (code == StatusCode::kNOT_FOUND || code == StatusCode::kTIMED_OUT ||
                    code == StatusCode::kCANCELLED || code == StatusCode::kRANK_LOST ||
                    code == StatusCode::kNOT_COMMITTED)) {
    return;
  }
  explain("an operator", code, text);
}

// Judging

void Player::note(uint32_t rank, const std::string& what) {
  cluster_->note(std::to_string(cluster_->now_ns() / 1000) + " us, " + rank_name(rank) + ": " +
                 what);
}

void Player::violate(const std::string& what) {
  if (verdict_.violation.empty()) verdict_.violation = what;
}

void Player::explain(const std::string& who, StatusCode code, const std::string& text,
                     std::optional<uint64_t> call) {
  for (const Cause& cause : causes_) {
    if (cause.codes.count(code) == 0 || (cause.call && cause.call != call)) continue;
    const bool named = cause.names.empty() ||
                       std::any_of(cause.names.begin(), cause.names.end(),
                                   [&](const std::string& name) { return names(text, name); });
    if (!named) continue;
    lost_ = lost_ || code == StatusCode::kSTEP_LOST;
    device_lost_ = device_lost_ || code == StatusCode::kDEVICE_LOST;
    may_end_ = may_end_ || code == StatusCode::kRANK_LOST || device_lost_;
    return;
  }
  violate(who + " is told " + Status(code, text).to_string() +
          ", which nothing that happened explains");
}

void Player::compare(const std::string& what, const Cluster::Tensor& tensor, const Bytes& expected,
                     const Bytes& got) {
  size_t where = 0;
  if (same_values(tensor.dtype, expected, got, &where)) return;
  violate(what + " has a wrong result at element " + std::to_string(where) + " of " +
          std::to_string(tensor.elements) + " (" + std::string(dtype_name(tensor.dtype)) + ")");
}

void Player::disturb_promises() {
  uint64_t begun = 0;
  for (const Actor& actor : actors_) {
    if (!actor.steps.empty()) begun = std::max(begun, actor.steps.rbegin()->first + 1);
  }
  for (Promise& promise : promises_) promise.disturbed_step = begun;
}

void Player::judge_steps() {
  std::set<uint64_t> epochs;
  for (uint64_t number = 0; number < steps_.size(); ++number) {
    const StepState* first = nullptr;
    uint32_t first_rank = 0, finished = 0;
    bool redone = false;
    for (uint32_t r = 0; r < actors_.size(); ++r) {
      const auto found = actors_[r].steps.find(number);
      if (found == actors_[r].steps.end() || !found->second.finished) continue;
      const StepState& step = found->second;
      ++finished;
      redone = redone || step.times_begun > 1;
      if (first == nullptr) {
        first = &step;
        first_rank = r;
      }
      const std::string who = rank_name(r) + " in step " + std::to_string(number);
      if (step.epoch != first->epoch || step.version != first->version) {
        return violate(who + " ran under epoch " + std::to_string(step.epoch) + ", " +
                       rank_name(first_rank) + " under " + std::to_string(first->epoch));
      }
    }
    if (finished < actors_.size() && !another_way()) {
      return violate("step " + std::to_string(number) + " was completed by " +
                     std::to_string(finished) + " ranks");
    }
    if (first == nullptr) return;
    epochs.insert(first->epoch);
    verdict_.epochs = epochs.size();
    if (!reference_.knows(first->epoch)) {
      return violate("no machine prepared epoch " + std::to_string(first->epoch));
    }
    const Item& item = *steps_[number];
    const uint32_t tensors = tensors_in(number);
    Reference::Step about{.number = number, .epoch = first->epoch};
    for (uint32_t k = 0, rank = 0; k < program_.shape.size(); rank += program_.shape[k++]) {
      about.units.push_back(unit_of(item, rank, 2));
    }
    for (uint32_t t = 0; t < tensors; ++t) {
      auto& inputs = about.inputs.emplace_back();
      auto& present = about.present.emplace_back();
      for (uint32_t r = 0; r < actors_.size(); ++r) {
        present.push_back(has(number, r, t));
        const auto found = actors_[r].steps.find(number);
        const uint32_t attempt = found == actors_[r].steps.end() ? 0 : found->second.attempt;
        inputs.push_back(present.back() ? input_of(number, attempt, r, t) : Bytes{});
      }
    }
    const std::vector<Bytes> results = reference_.run(table(tensors), about);
    for (uint32_t t = 0; t < tensors; ++t) {
      const bool anywhere = std::find(about.present[t].begin(), about.present[t].end(), true) !=
                            about.present[t].end();
      const Bytes* same = nullptr;
      for (uint32_t r = 0; r < actors_.size(); ++r) {
        const auto found = actors_[r].steps.find(number);
        if (found == actors_[r].steps.end() || !found->second.finished) continue;
        const std::string who = rank_name(r) + " in step " + std::to_string(number) + " (epoch " +
                                std::to_string(first->epoch) + ", attempt " +
                                std::to_string(first->attempt) + "), tensor " +
                                program_.tensors[t].name;
        const uint8_t outcome = !anywhere             ? CGX_OUTCOME_ABSENT
                                : about.present[t][r] ? CGX_OUTCOME_RESULT
                                                      : CGX_OUTCOME_FILLED;
        if (found->second.said.at(t) != outcome) return violate(who + " has another outcome");
        if (!anywhere) continue;
        const Bytes& got = found->second.results.at(t);
        if (same != nullptr && got != *same) return violate(who + " differs from another rank's");
        same = &got;
        compare(who, program_.tensors[t], results[t], got);
        if (!verdict_.violation.empty()) return;
      }
    }
    reference_.close(item.fate == Fate::kDropped);
    cover_step(number, *first, redone);
  }
}

void Player::cover_step(uint64_t number, const StepState& step, bool redone) {
  const auto known = plans_.find(step.epoch);
  if (known == plans_.end()) return;  // one machine
  const Item& item = *steps_[number];
  const bool begins = step.epoch != covered_epoch_;
  using scheduler::PlanPurpose;
  const auto begins_of = [&](PlanPurpose purpose) {
    return begins && covered_epoch_ != 0 && known->second.purpose == purpose;
  };
  const std::pair<bool, Happening> all[] = {{true, Happening::kStep},
                                            {known->second.residuals, Happening::kResidual},
                                            {item.absences, Happening::kAbsences},
                                            {item.nonfinite, Happening::kNonfinite},
                                            {item.fate == Fate::kDropped, Happening::kDropped},
                                            {redone, Happening::kRedo},
                                            {begins_of(PlanPurpose::kCommit), Happening::kCommit},
                                            {begins_of(PlanPurpose::kPolicy), Happening::kPolicy},
                                            {begins_of(PlanPurpose::kPlanner), Happening::kSearch}};
  for (const auto& [happened, happening] : all) {
    for (const scheduler::Collective row : known->second.rows) {
      if (happened) verdict_.covered.meet(row, program_.slowest(), happening);
    }
  }
  if (known->second.racks) {
    verdict_.covered.meet(scheduler::Collective::kTwoLevel, program_.slowest(), Happening::kRacks);
  }
  covered_epoch_ = step.epoch;
}

// What ended the program, under the plan in force last.
void Player::cover_end() {
  const auto known = plans_.find(covered_epoch_);
  if (known == plans_.end()) return;
  const auto cover = [&](Happening happening) {
    for (const scheduler::Collective row : known->second.rows) {
      verdict_.covered.meet(row, program_.slowest(), happening);
    }
  };
  if (device_lost_) cover(Happening::kDevice);
  for (const Actor& actor : actors_) {
    for (const Item* item : actor.done_once) {
      if (!item->ends_everything()) continue;
      cover(item->kind == Item::Kind::kLeave ? Happening::kLeave : Happening::kDeath);
    }
  }
}

void Player::judge_calls() {
  for (uint64_t number = 0; number < calls_.size(); ++number) {
    const Item& item = *calls_[number];
    uint32_t right = 0, answered = 0;
    Bytes expected;
    const Cluster::Tensor about{
        .name = "call", .dtype = item.dtype, .op = item.op, .elements = item.elements};
    for (uint32_t r = 0; r < actors_.size(); ++r) {
      const auto found = actors_[r].calls.find(number);
      if (found == actors_[r].calls.end() || !found->second.answered) continue;
      ++answered;
      if (found->second.code != StatusCode::kOK) continue;
      const std::string who = rank_name(r) + " in call " + std::to_string(number);
      if (item.odd_rank != Item::kNobody) return violate(who + " got a result of different calls");
      if (right++ == 0) {
        std::vector<Bytes> inputs;
        for (uint32_t k = 0; k < actors_.size(); ++k) inputs.push_back(call_input(number, k));
        expected = reference_.call({.name = "",
                                    .dtype = item.dtype,
                                    .op = item.op,
                                    .elements = item.elements,
                                    .shape = {item.elements}},
                                   inputs);
      }
      compare(who, about, expected, found->second.result);
      if (!verdict_.violation.empty()) return;
    }
    if (another_way()) continue;
    if (answered < actors_.size()) {
      return violate("call " + std::to_string(number) + " was answered on " +
                     std::to_string(answered) + " ranks");
    }
    if (right != 0 && right != answered) {
      return violate("call " + std::to_string(number) + " has a result on " +
                     std::to_string(right) + " of " + std::to_string(answered) + " ranks");
    }
  }
}

// What the last operator was promised came at that step, or soon after something in between.
void Player::judge_promises() {
  if (unanswered_policies_ != 0 && !machines_down_) {
    return violate(std::to_string(unanswered_policies_) + " operators were never answered");
  }
  if (promises_.empty() || another_way()) return;
  const Promise& last = promises_.back();
  const uint64_t back = last.disturbed_step == 0 ? 0 : last.disturbed_step + kStepsToComeBack;
  const uint64_t from = std::max(last.switch_step, back);
  for (uint64_t number = from; number < steps_.size(); ++number) {
    const uint64_t version = actors_[0].steps.at(number).version;
    if (version == last.version) continue;
    return violate("an operator was promised version " + std::to_string(last.version) +
                   " from step " + std::to_string(last.switch_step) + " on, but step " +
                   std::to_string(number) + " ran under version " + std::to_string(version));
  }
}

// As mmap hands the hole to the next who asks: a session of another job, which works in it.
void Player::give_memory_away() {
  for (uint32_t r = 0; r < actors_.size(); ++r) {
    Rank& rank = cluster_->rank(r);
    const bool heir = mix(program_.seed, 17, r) % 2 == 0;
    if (!rank.released || !heir || heirs_.count(r) > 0 || rank.memory().touched()) continue;
    rank.memory().allow();
    const std::span<std::byte> arena = rank.arena();
    std::fill(arena.begin(), arena.end(), kOwnAgain);
    heirs_[r] = std::make_unique<Heir>();
    Heir& other = *heirs_[r];
    scheduler::Engine& engine = cluster_->engine(rank.machine);
    const auto session = engine.open_session({.job = "heir", .client = "sim"}, other);
    CGX_ASSERT(session.ok() && engine.add_arena(*session, 0, arena).ok());
    other.session = *session;
    cluster_->create_alone(rank.machine, *session, "heir of " + std::to_string(r));
    cgx_submit_record record{};
    record.kind = CGX_SUBMIT_CALL;
    record.dtype = static_cast<uint8_t>(DType::kU8);
    record.comm = 7;
    record.count = arena.size();
    if (!engine.submit(*session, record).ok()) violate("another job is thrown out");
  }
}

// What the rank, or who has its memory after it, left there.
bool Player::memory_is_whole(uint32_t rank) {
  const std::span<std::byte> arena = cluster_->rank(rank).arena();
  return std::all_of(arena.begin(), arena.end(), [](std::byte b) { return b == kOwnAgain; });
}

// Everybody has gone: nothing may be left.
void Player::drain() {
  cluster_->run_for(2 * kSecond);
  for (uint32_t r = 0; r < actors_.size(); ++r) {
    Rank& rank = cluster_->rank(r);
    if (!rank.alive || !actors_[r].leaving) continue;
    const bool answered = rank.replies.count(Cluster::kClose) > 0;
    if (rank.on_reply && !answered && !cluster_->stopped(rank.machine)) {
      return violate(rank_name(r) + " was not told that its memory is its own again");
    }
    if (answered && !memory_is_whole(r)) {
      return violate(rank_name(r) + "'s memory was written after it had closed");
    }
    cluster_->say_goodbye(r);
  }
  cluster_->run_for(10 * kSecond);
  if (cluster_->released_memory_touched()) {
    return violate("a daemon touched memory that it had let go of");
  }
  for (const auto& [r, heir] : heirs_) {
    if (machines_down_ && heir->completed == 0) continue;  // its daemon may be the stopped one
    const bool lost = heir->code == StatusCode::kDEVICE_LOST &&
                      program_.machine_of(r) == program_.failing_machine();
    if (heir->completed != 1 || (heir->code != StatusCode::kOK && !lost)) {
      return violate("another job's call did not go well: " + std::string(status_name(heir->code)));
    }
    if (!memory_is_whole(r)) return violate("a daemon wrote what is another job's memory now");
    cluster_->engine(program_.machine_of(r)).close_session(heir->session, {});
  }
  cluster_->run_for(kSecond);
  judge_end();
}

void Player::judge_end() {
  for (uint32_t k = 0; k < program_.shape.size() && !machines_down_; ++k) {
    const scheduler::Snapshot shown =
        cluster_->engine(k).snapshot(static_cast<uint64_t>(cluster_->now_ns()));
    if (!shown.communicators.empty() || !shown.sessions.empty()) {
      return violate("machine " + std::to_string(k) + " keeps " +
                     std::to_string(shown.communicators.size()) + " communicators and " +
                     std::to_string(shown.sessions.size()) + " sessions when all have gone");
    }
  }
  for (uint32_t r = 0; r < actors_.size() && !machines_down_; ++r) {
    if (!cluster_->rank(r).released) {
      return violate("the session of " + rank_name(r) + " is in use when all have gone");
    }
  }
}

}  // namespace cgx::sim
