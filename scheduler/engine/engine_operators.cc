// Engine, operators: whose communicator they mean, and what they ask of it.
#include <algorithm>
#include <utility>

#include "scheduler/engine/engine_state.h"

namespace cgx::scheduler {

Result<Communicator*> Engine::State::pick_communicator(const PolicyRequest& request) {
  std::vector<Communicator*> matching;
  std::string names;
  for (const auto& communicator : communicators_) {
    if (communicator->state() == Communicator::State::kClosed)
      continue;  // a site has yet to answer
    const Members& members = communicator->members();
    if (!request.any_uid && members.uid != request.uid) continue;
    names += (names.empty() ? "" : ", ") + members.job + "/" + members.name;
    if (!request.job.empty() && members.job != request.job) continue;
    if (!request.communicator.empty() && members.name != request.communicator) continue;
    const bool sibling = std::any_of(matching.begin(), matching.end(), [&](const auto* other) {
      return other->members().id == members.id;
    });
    if (!sibling) matching.push_back(communicator.get());
  }
  if (matching.size() == 1) return matching[0];
  return Status(
      matching.empty() ? StatusCode::kNOT_FOUND : StatusCode::kINVALID_ARGUMENT,
      (matching.empty() ? "no communicator matches job '" : "several communicators match job '") +
          request.job + "', communicator '" + request.communicator +
          "'; there are: " + (names.empty() ? "none" : names));
}

void Engine::apply_policy(const PolicyRequest& request, PolicyAnswer answer) {
  const Result<Communicator*> communicator = state_->pick_communicator(request);
  if (!communicator.ok()) return answer(communicator.status());
  (*communicator)
      ->apply_policy(request.policy, request.dry_run, request.expected_version, std::move(answer));
}

template <class Request, class Answer>
Communicator* Engine::State::pick_for(const Request& request, const Answer& answer) {
  const Result<Communicator*> communicator = pick_communicator(
      {.job = request.job, .communicator = request.communicator, .uid = request.uid, .policy = {}});
  if (!communicator.ok()) answer(communicator.status());
  return communicator.ok() ? *communicator : nullptr;
}

void Engine::explain(const ExplainRequest& request, const ExplainAnswer& answer) {
  if (auto* const of = state_->pick_for(request, answer)) of->explain(request.tensor, answer);
}

void Engine::what_if(const WhatIfRequest& request, const WhatIfAnswer& answer) {
  auto* const of = state_->pick_for(request, answer);
  if (of != nullptr) of->what_if(request.policy, request.machines, answer);
}

void Engine::profile(const ProfileRequest& request, const ProfileAnswer& answer) {
  if (auto* const of = state_->pick_for(request, answer)) of->profile(answer);
}

}  // namespace cgx::scheduler
