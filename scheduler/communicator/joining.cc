#include "scheduler/communicator/joining.h"

#include <algorithm>

#include "proto/wire/bytes.h"
#include "proto/wire/frame.h"

namespace cgx::scheduler {

Joining::Joining(const Members& members, const wire::CreateCommunicator& first)
    : members_(members),
      job_key_(first.job_key),
      meeting_(first.meeting),
      first_step_(first.first_step),
      machines_(members.machines()) {}

Status Joining::compare(const wire::CreateCommunicator& message) const {
  bool same = message.members.size() == members_.ranks() && message.first_step == first_step_ &&
              same_meeting(message);
  for (uint32_t rank = 0; same && rank < members_.ranks(); ++rank) {
    const uint32_t machine = members_.machine_of_rank[rank];
    same = message.members[rank].instance == members_.instances[machine] &&
           message.members[rank].device == members_.devices[machine];
  }
  if (same) return {};
  return {StatusCode::kMISMATCH, "rank " + std::to_string(message.rank) + " describes " +
                                     members_.title() + " differently (size " +
                                     std::to_string(message.members.size()) + " against " +
                                     std::to_string(members_.ranks()) + ", first step " +
                                     std::to_string(message.first_step) + " against " +
                                     std::to_string(first_step_) + ", key or machines)"};
}

uint64_t Joining::shape_hash() const {
  wire::Writer writer;
  for (const uint32_t machine : members_.machine_of_rank) writer.put(machine);
  for (const wire::InstanceId& instance : members_.instances) writer.put(instance);
  for (const wire::DeviceId& device : members_.devices) writer.put(device);
  return wire::checksum(writer.take());
}

bool Joining::complete_here(const Peers& peers) const {
  const bool here = std::all_of(members_.local.begin(), members_.local.end(),
                                [](const LocalRank& local) { return local.port != nullptr; });
  return here && !said_joined() && peers.all_up();
}

Join Joining::message(const ResidualMark& kept) const {
  return {shape_hash(), first_step_, kept.step_end, kept.lineage};
}

Status Joining::take(uint32_t machine, const Join& message) {
  if (message.shape_hash != shape_hash() || message.first_step != first_step_) {
    return {StatusCode::kMISMATCH, members_.machine_name(machine) + " and " +
                                       members_.machine_name(0) + " describe " + members_.title() +
                                       " differently (first step " +
                                       std::to_string(message.first_step) + " against " +
                                       std::to_string(first_step_) + ", or the list of ranks)"};
  }
  machines_[machine] = {true, {message.residual_step_end, message.residual_lineage}};
  return {};
}

bool Joining::all_joined() const {
  return std::all_of(machines_.begin(), machines_.end(),
                     [](const Machine& machine) { return machine.joined; });
}

bool Joining::all_keep(const ResidualMark& own) const {
  if (!own.any()) return false;
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    if (k != members_.machine && !(machines_[k].kept == own)) return false;
  }
  return true;
}

// The latest step counts: who has not kept its residuals is named.
std::string Joining::feedback_begins(const ResidualMark& own) const {
  const auto kept = [&](uint32_t k) { return k == members_.machine ? own : machines_[k].kept; };
  ResidualMark latest = own;
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    if (kept(k).any() && kept(k).step_end > latest.step_end) latest = kept(k);
  }
  if (!latest.any()) return {};
  std::string without;
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    if (!(kept(k) == latest)) without += (without.empty() ? "" : ", ") + members_.machine_name(k);
  }
  const std::string step = "step " + std::to_string(latest.step_end - 1);
  if (without.empty()) return "error feedback goes on from " + step;
  return "error feedback begins at zero: that of " + step + " was not kept by " + without;
}

std::string Joining::missing(const Peers& peers) const {
  std::string names;
  for (const LocalRank& local : members_.local) {
    if (local.port == nullptr) names += " rank " + std::to_string(local.rank) + ",";
  }
  for (uint32_t k = 0; k < machines_.size(); ++k) {
    const bool here =
        k == members_.machine || (peers[k].up && (machines_[k].joined || !members_.coordinator()));
    if (!here) names += " " + members_.machine_name(k) + ",";
  }
  const bool nobody = names.empty() && !members_.coordinator();
  if (nobody) return " the word of the coordinator, " + members_.machine_name(0);
  if (!names.empty()) names.pop_back();
  return names;
}

}  // namespace cgx::scheduler
