#include "daemon/operators/targets.h"

#include <algorithm>

#include "config/text.h"

namespace cgx::daemon {
namespace {

using config::plain_text;

// "resnet/dp of uid 1000": two users' jobs may share a name.
std::string full_name(const CommunicatorSnapshot& communicator) {
  return plain_text(communicator.job + "/" + communicator.name) + " of uid " +
         std::to_string(communicator.uid);
}

bool matches(const CommunicatorSnapshot& communicator, const v1::Target& target) {
  return (target.job().empty() || target.job() == plain_text(communicator.job)) &&
         (target.communicator().empty() ||
          target.communicator() == plain_text(communicator.name)) &&
         (!target.has_uid() || target.uid() == communicator.uid);
}

std::string names_of(const std::vector<const CommunicatorSnapshot*>& communicators) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, communicators.size()); ++i) {
    text += (text.empty() ? "" : ", ") + full_name(*communicators[i]);
  }
  return communicators.size() > kShown ? text + ", ..." : text;
}

std::string wanted(const v1::Target& target) {
  std::string text = target.job().empty() ? "*" : target.job();
  text += "/" + (target.communicator().empty() ? "*" : target.communicator());
  return target.has_uid() ? text + " of uid " + std::to_string(target.uid()) : text;
}

// What to do where a caller sees no communicator. Whether others have one is not told.
std::string nothing_here(const Caller& caller) {
  const char* const who = caller.is_operator ? "no job" : "no job of yours";
  const char* const others =
      caller.is_operator ? "" : "; jobs of others are shown to operators (control.operators_group)";
  return std::string(who) + " trains on this machine now; start one, or ask on a machine where " +
         "one trains" + others;
}

// Sites of one communicator know the same of it; the lowest one is shown.
bool is_sibling(const CommunicatorSnapshot& one, const CommunicatorSnapshot& other) {
  return one.id == other.id && one.uid == other.uid;
}

}  // namespace

Result<std::vector<const CommunicatorSnapshot*>> select_all(const Snapshot& snapshot,
                                                            const v1::Target& target,
                                                            const Caller& caller) {
  std::vector<const CommunicatorSnapshot*> seen, found;
  for (const CommunicatorSnapshot& one : snapshot.communicators) {
    if (!caller.may_see(one.uid)) continue;
    seen.push_back(&one);
    if (matches(one, target)) found.push_back(&one);
  }
  const bool named = !target.job().empty() || !target.communicator().empty() || target.has_uid();
  if (!found.empty() || !named) return found;
  return Status(StatusCode::kNOT_FOUND,
                "no communicator " + wanted(target) +
                    (seen.empty() ? ": " + nothing_here(caller) : "; there are " + names_of(seen)));
}

Result<const CommunicatorSnapshot*> select(const Snapshot& snapshot, const v1::Target& target,
                                           const Caller& caller) {
  CGX_ASSIGN_OR_RETURN(const std::vector<const CommunicatorSnapshot*> found,
                       select_all(snapshot, target, caller));
  if (found.empty()) return Status(StatusCode::kNOT_FOUND, nothing_here(caller));
  const bool one = std::all_of(found.begin(), found.end(), [&](const CommunicatorSnapshot* each) {
    return is_sibling(*each, *found.front());
  });
  if (one) {
    return *std::min_element(found.begin(), found.end(), [](const auto* left, const auto* right) {
      return left->local_machine < right->local_machine;
    });
  }
  return invalid_argument("name one communicator, with --job, --communicator or --uid; there are " +
                          names_of(found));
}

}  // namespace cgx::daemon
