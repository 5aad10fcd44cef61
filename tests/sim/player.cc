#include "tests/sim/player.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/floats.h"
#include "proto/wire/frame.h"
#include "scheduler/communicator/control.h"
#include "tests/scheduler/exchange/every_codec.h"
#include "tests/sim/player_values.h"

namespace cgx::sim {

Player::Player(const Program& program)
    : program_(program),
      random_(mix(program.seed, 0x706C6179)),
      reference_(program.shape, "job", "world"),
      actors_(program.ranks()) {
  uint32_t tensors = program.first_tensors;
  for (const Item& item : program.items) {
    if (item.kind == Item::Kind::kCommit) tensors += item.tensors;
    if (item.kind == Item::Kind::kCall) calls_.push_back(&item);
    if (item.kind != Item::Kind::kStep) continue;
    steps_.push_back(&item);
    tensors_of_step_.push_back(tensors);
  }
  if (const uint32_t machine = program.failing_machine(); machine != UINT32_MAX) {
    causes_.push_back({{StatusCode::kDEVICE_LOST}, {"machine " + std::to_string(machine)}, {}});
  }
  place_buffers();
  for (uint32_t rank = 0; rank < program.ranks(); ++rank) expand(rank);
  cluster_ = std::make_unique<Cluster>(options());
  for (uint32_t rank = 0; rank < program.ranks(); ++rank) {
    cluster_->rank(rank).on_complete = [this, rank](const cgx_completion_record& record,
                                                    std::string_view text) {
      complete(rank, record, text);
    };
  }
  cluster_->tap([this](uint32_t, const transport::Frame& frame) {
    const auto header = wire::open_frame(frame.header, frame.payload);
    if (!header.ok() || header->type != wire::FrameType::kControl) return;
    const auto message = scheduler::decode_control(frame.payload);
    if (!message.ok() || !std::holds_alternative<scheduler::Prepare>(*message)) return;
    const auto& prepare = std::get<scheduler::Prepare>(*message);
    const auto plan = scheduler::decode_plan(prepare.plan);
    if (!plan.ok()) return;
    reference_.learn(*plan);
    Known& known = plans_[plan->epoch] = {.purpose = prepare.purpose, .rows = {}};
    for (const scheduler::Group& group : plan->groups) {
      known.rows.insert(group.way.collective);
      known.residuals |= std::any_of(group.segments.begin(), group.segments.end(),
                                     [](const auto& segment) { return segment.spec.feedback(); });
      known.racks |= std::any_of(group.segments.begin(), group.segments.end(),
                                 [](const auto& segment) { return segment.rack_spec.has_value(); });
    }
    if (plan->trial.on() && tried_.insert(plan->epoch).second) ++verdict_.trials;
  });
}

namespace {

// Figures of no machine.
std::shared_ptr<const scheduler::MachineCosts> every_cost() {
  auto costs = std::make_shared<scheduler::MachineCosts>();
  for (const CodecSpec& spec : scheduler::every_codec()) {
    costs->codecs.push_back({spec, {0, 0.01}, {0, 0.01}});
  }
  return costs;
}

}  // namespace

ClusterOptions Player::options() const {
  ClusterOptions options{.ranks_per_machine = program_.shape, .policy = program_.policy};
  options.arena_bytes = arena_bytes_;
  options.timeout_ms = kTimeoutMs;
  options.costs = every_cost();
  options.search = program_.search;
  // Each link has its own pace; its frames stay in order whatever these say.
  auto random = std::make_shared<std::mt19937_64>(mix(program_.seed, 0x6C696E6B));
  options.link_latency_ns = [random, &program = program_](uint32_t from, uint32_t to) {
    const auto base = static_cast<int64_t>(mix(program.seed, from, to) %
                                           static_cast<uint64_t>(program.latency_ns)) +
                      1000;
    const auto up_to = [&](int64_t most) {
      return most == 0 ? 0 : static_cast<int64_t>((*random)() % static_cast<uint64_t>(most));
    };
    const bool spike = program.spike_ns != 0 && (*random)() % 100 == 0;
    return base + up_to(program.jitter_ns) + (spike ? up_to(program.spike_ns) : 0);
  };
  if (program_.planning_ns != 0) {
    auto plans = std::make_shared<std::mt19937_64>(mix(program_.seed, 0x706C616E));
    options.planning_ns = [plans, most = program_.planning_ns](uint32_t) {
      return static_cast<int64_t>((*plans)() % static_cast<uint64_t>(most));
    };
  }
  options.site = [seed = program_.seed, sites = program_.sites, most = program_.site_ns,
                  lost = program_.failing_machine(),
                  job = program_.site_fails_at](uint32_t machine) -> SlowSiteOptions {
    const uint64_t fails_at = machine == lost ? job : 0;
    switch (sites[machine]) {
      case SitePace::kInline:
        return {};
      case SitePace::kPriced:
        return {.takes_ns = price_ns, .consumes = true, .one_core = true, .fails_at = fails_at};
      case SitePace::kLate:
        break;
    }
    auto random = std::make_shared<std::mt19937_64>(mix(seed, 0x736C6F77, machine));
    return {.takes_ns =
                [random, most](const auto&, const auto&) {
                  return static_cast<int64_t>((*random)() % static_cast<uint64_t>(most));
                },
            .fails_at = fails_at};
  };
  return options;
}

void Player::place_buffers() {
  uint64_t end = 0;
  const auto take = [&](uint64_t bytes) {
    const uint64_t at = end;
    end += (bytes + 63) / 64 * 64;
    return at;
  };
  for (const Cluster::Tensor& tensor : program_.tensors) {
    const uint64_t bytes = tensor.elements * dtype_bytes(tensor.dtype);
    Buffers& buffers = buffers_.emplace_back();
    buffers.home = take(bytes);
    for (uint64_t* at : {&buffers.in[0], &buffers.in[1], &buffers.out[0], &buffers.out[1]}) {
      *at = take(bytes);
    }
  }
  uint64_t most = 64;
  for (const Item* call : calls_) {
    most = std::max(most, (call->elements + 1) * dtype_bytes(call->dtype));
  }
  for (uint32_t i = 0; i < kCallSlots && !calls_.empty(); ++i) {
    call_in_.push_back(take(most));
    call_out_.push_back(take(most));
  }
  arena_bytes_ = end + 64;
}

// A rank's part of the program. What is beside a step happens at a random place of it.
void Player::expand(uint32_t rank) {
  Actor& actor = actors_[rank];
  std::vector<Action> beside;
  uint64_t step = 0, call = 0;
  const auto add_beside = [&](std::vector<Action>& list, uint64_t seed) {
    size_t lowest = 0;
    for (size_t i = 0; i < beside.size(); ++i) {
      beside[i].kind == Action::Kind::kEvent ? beside[i].number = step : 0;
      lowest += mix(seed, rank, i) % (list.size() - lowest + 1);
      list.insert(list.begin() + static_cast<int64_t>(lowest++), beside[i]);
    }
    beside.clear();
  };
  for (const Item& item : program_.items) {
    const auto hit = [&](uint64_t salt, uint32_t percent) {
      return mix(item.seed, salt, rank) % 100 < percent;
    };
    if (item.kind == Item::Kind::kCall) {
      beside.push_back({Action::Kind::kCall, &item, call});
      if (hit(1, item.wait_percent)) beside.push_back({Action::Kind::kWaitCall, &item, call});
      ++call;
    } else if (item.kind == Item::Kind::kCommit) {
      add_beside(actor.actions, item.seed + actor.actions.size());
      actor.actions.push_back({Action::Kind::kCommit, &item});
    } else if (item.kind == Item::Kind::kStep) {
      std::vector<Action> said;
      for (uint32_t t = 0; t < tensors_of_step_[step]; ++t) {
        if (has(step, rank, t)) {
          said.push_back({Action::Kind::kSubmit, &item, step, t});
        } else if (mix(item.seed, 2, rank, t) % 100 < 40) {
          said.push_back({Action::Kind::kAbsent, &item, step, t});
        }
      }
      // Mostly in the order in which a backward pass comes to them, which all ranks share.
      for (size_t i = said.size(); i > 1; --i) {
        if (hit(3 + i, 30)) std::swap(said[i - 1], said[mix(item.seed, 4, rank, i) % i]);
      }
      add_beside(said, item.seed);
      actor.begin_of[step] = actor.actions.size();
      actor.actions.push_back({Action::Kind::kBegin, &item, step});
      actor.actions.insert(actor.actions.end(), said.begin(), said.end());
      actor.actions.push_back({Action::Kind::kEnd, &item, step});
      const bool says = item.fate == Fate::kDropped || (item.fate == Fate::kKept && hit(5, 50));
      if (says || hit(6, item.wait_percent)) {
        actor.actions.push_back({Action::Kind::kWaitStep, &item, step});
      }
      if (says) actor.actions.push_back({Action::Kind::kDone, &item, step});
      ++step;
    } else if (item.rank == rank) {
      beside.push_back({Action::Kind::kEvent, &item});
    }
  }
  // What follows the last step is done in order.
  actor.actions.insert(actor.actions.end(), beside.begin(), beside.end());
}

// The program's data

bool Player::has(uint64_t step, uint32_t rank, uint32_t tensor) const {
  const Item& item = *steps_[step];
  if (!item.absences) return true;
  if (mix(item.seed, 10, tensor) % 100 < 15) return false;  // nobody has it
  if (mix(item.seed, 11, tensor, program_.machine_of(rank)) % 100 < 20) return false;
  return mix(item.seed, 12, tensor, rank) % 100 >= 15;
}

double Player::unit_of(const Item& item, uint32_t rank, uint32_t times_begun) const {
  const uint32_t machine = program_.machine_of(rank);
  const double machines_own = mix(item.seed, 13, machine) % 4 == 0 ? 2.0 : 1.0;
  const bool odd =
      item.odd_unit && item.odd_rank == rank && times_begun == 1 && program_.shape[machine] > 1;
  return item.unit * (item.unit == 1 ? 1 : machines_own) * (odd ? 7 : 1);
}

Bytes Player::input_of(uint64_t step, uint32_t attempt, uint32_t rank, uint32_t tensor) const {
  const Cluster::Tensor& about = program_.tensors[tensor];
  Bytes bytes(about.elements * dtype_bytes(about.dtype));
  const Item& item = *steps_[step];
  fill(bytes, about.dtype, mix(item.seed, 20 + attempt, rank, tensor),
       item.nonfinite && mix(item.seed, 14, rank, tensor) % 3 == 0);
  return bytes;
}

Bytes Player::call_input(uint64_t call, uint32_t rank) const {
  const Item& item = *calls_[call];
  const uint64_t elements = item.elements + (item.odd_rank == rank);
  Bytes bytes(elements * dtype_bytes(item.dtype));
  fill(bytes, item.dtype, mix(item.seed, 21, rank), false);
  return bytes;
}

scheduler::TensorTable Player::table(uint32_t tensors) const {
  scheduler::TensorTable table;
  for (uint32_t t = 0; t < tensors; ++t) {
    const Cluster::Tensor& tensor = program_.tensors[t];
    table.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .op = tensor.op,
                     .elements = tensor.elements,
                     .shape = tensor.shape});
    if (tensor.shape.empty()) table.back().shape = {1, tensor.elements};
  }
  return table;
}

// Playing

bool Player::set_up() {
  cluster_->create();
  std::vector<Cluster::Tensor> first(program_.tensors.begin(),
                                     program_.tensors.begin() + program_.first_tensors);
  for (uint32_t t = 0; t < first.size(); ++t) first[t].offset = buffers_[t].home;
  const auto answered = [&](uint32_t request) {
    for (uint32_t r = 0; r < program_.ranks(); ++r) {
      const auto found = cluster_->rank(r).replies.find(request);
      if (found == cluster_->rank(r).replies.end()) {
        return violate(rank_name(r) + " was never answered at set-up"), false;
      }
      if (found->second.code == StatusCode::kOK) continue;
      return violate("set-up: " + found->second.message), false;
    }
    return true;
  };
  if (!answered(Cluster::kCreate)) return false;
  for (uint32_t r = 0; r < program_.ranks(); ++r) {
    cluster_->register_on(r, first);
    cluster_->request_commit(r, program_.first_tensors);
    actors_[r].tensors = actors_[r].committed = program_.first_tensors;
  }
  cluster_->run_for(5 * kSecond);
  if (!answered(Cluster::kCommit)) return false;
  for (uint32_t r = 0; r < program_.ranks(); ++r) cluster_->rank(r).replies.clear();
  return true;
}

Verdict Player::play() {
  if (set_up()) {
    std::vector<uint32_t> able;
    const auto look = [&] {
      able.clear();
      for (uint32_t r = 0; r < actors_.size(); ++r) {
        if (can_act(r) && actors_[r].ready_ns <= cluster_->now_ns()) able.push_back(r);
      }
      return !able.empty() || !verdict_.violation.empty();
    };
    while (verdict_.violation.empty()) {
      give_memory_away();
      if (look()) {
        act(able[random_() % able.size()]);
        if (random_() % 2 == 0) cluster_->run_rounds(1);
        continue;
      }
      const bool all_gone =
          std::all_of(actors_.begin(), actors_.end(), [](const Actor& a) { return a.gone; });
      if (all_gone) break;
      int64_t wake = INT64_MAX;
      for (uint32_t r = 0; r < actors_.size(); ++r) {
        if (can_act(r)) wake = std::min(wake, actors_[r].ready_ns);
      }
      if (wake != INT64_MAX) cluster_->wake_at(wake);
      if (cluster_->run_until(look, kHangNs)) continue;
      std::string text = "nothing happens any more:";
      for (uint32_t r = 0; r < actors_.size(); ++r) {
        const Actor& actor = actors_[r];
        if (actor.gone) continue;
        text += " " + rank_name(r) + " at action " + std::to_string(actor.next) + " of " +
                std::to_string(actor.actions.size());
        if (actor.next < actor.actions.size()) {
          const Action& action = actor.actions[actor.next];
          text += " (" + std::string(1, "BSAEWDCVMX"[static_cast<int>(action.kind)]) + " " +
                  std::to_string(action.number) + ")";
        }
        text += actor.redoing ? " redoing" : actor.committing ? " committing" : "";
        text += actor.failed ? " failed;" : actor.over ? " over;" : ";";
      }
      violate(text);
    }
  }
  if (verdict_.violation.empty()) drain();
  if (verdict_.violation.empty()) judge_steps();
  if (verdict_.violation.empty()) judge_calls();
  if (verdict_.violation.empty()) judge_promises();
  cover_end();
  verdict_.events = cluster_->events();
  verdict_.ended = may_end_;
  verdict_.lost = lost_;
  verdict_.virtual_ns = cluster_->now_ns();
  return verdict_;
}

bool Player::can_act(uint32_t rank) const {
  const Actor& actor = actors_[rank];
  const auto& replies = cluster_->rank(rank).replies;
  if (actor.gone) return false;
  if (actor.redoing) return replies.count(Cluster::kRedo) > 0;
  if (actor.committing) return replies.count(Cluster::kCommit) > 0;
  if (actor.over) return true;
  if (actor.never) {
    return std::all_of(actors_.begin(), actors_.end(),
                       [](const Actor& other) { return other.gone || other.never; });
  }
  if (actor.failed) return true;
  if (actor.abandoned) return false;
  if (actor.next == actor.actions.size()) {
    for (const auto& [number, step] : actor.steps) {
      if (step.begun && !step.finished) return false;
    }
    for (const auto& [number, call] : actor.calls) {
      if (call.submitted && !call.answered) return false;
    }
    return true;
  }
  return !blocked(actor, actor.actions[actor.next]);
}

bool Player::blocked(const Actor& actor, const Action& action) const {
  const auto finished = [&](uint64_t step) {
    const auto found = actor.steps.find(step);
    return found != actor.steps.end() && found->second.finished;
  };
  switch (action.kind) {
    case Action::Kind::kBegin:
      return action.number >= 2 && !finished(action.number - 2);
    case Action::Kind::kWaitStep:
    case Action::Kind::kDone:
      return !finished(action.number);
    case Action::Kind::kCall: {
      uint64_t oldest = actor.next_call;
      for (const auto& [number, call] : actor.calls) {
        if (!call.answered) oldest = std::min(oldest, number);
      }
      return action.number >= actor.next_call && actor.next_call >= oldest + 4;
    }
    case Action::Kind::kWaitCall: {
      const auto found = actor.calls.find(action.number);
      return found != actor.calls.end() && !found->second.answered;
    }
    case Action::Kind::kCommit:
      return std::any_of(actor.steps.begin(), actor.steps.end(),
                         [](const auto& s) { return s.second.begun && !s.second.finished; });
    case Action::Kind::kSubmit:
    case Action::Kind::kAbsent:
    case Action::Kind::kEnd:
    case Action::Kind::kEvent:
      return false;
  }
  return false;
}

void Player::act(uint32_t rank) {
  Actor& actor = actors_[rank];
  const auto think = static_cast<uint64_t>(program_.think_ns) + 1;
  actor.ready_ns = cluster_->now_ns() + static_cast<int64_t>(random_() % think);
  if (actor.redoing) return heard_redo(rank);
  if (actor.committing) return heard_commit(rank);
  if (actor.over || actor.never) return leave(rank, false);
  if (actor.next == actor.actions.size()) {
    return actor.failed ? ask_for_redo(rank) : leave(rank, false);
  }
  const Action action = actor.actions[actor.next];
  if (actor.failed) {
    // libcgx says so wherever a step is waited for or opened; elsewhere a rank may go on a while.
    const bool done = action.kind == Action::Kind::kDone && !blocked(actor, action);
    const bool goes_on = action.kind == Action::Kind::kSubmit ||
                         action.kind == Action::Kind::kAbsent ||
                         action.kind == Action::Kind::kEnd || action.kind == Action::Kind::kEvent;
    const bool calls =
        (action.kind == Action::Kind::kCall || action.kind == Action::Kind::kWaitCall) &&
        !blocked(actor, action);
    const bool unnoticed =
        goes_on && !actor.abandoned && random_() % 100 >= program_.notice_percent;
    if (!done && !calls && !unnoticed) return ask_for_redo(rank);
  }
  ++actor.next;
  static const char* const kNames[] = {"begins step",
                                       "submits in step",
                                       "has not in step",
                                       "ends step",
                                       "waits for step",
                                       "closes step",
                                       "call",
                                       "waits for call",
                                       "commits",
                                       "does something beside step"};
  note(rank, std::string(kNames[static_cast<size_t>(action.kind)]) + " " +
                 std::to_string(action.number) + ", tensor " + std::to_string(action.tensor) +
                 ", attempt " + std::to_string(actor.attempt));
  do_action(rank, action);
}

}  // namespace cgx::sim
