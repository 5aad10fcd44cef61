#include "daemon/operators/control_view.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <set>

#include "config/text.h"
#include "daemon/base/holder.h"
#include "daemon/base/open_files.h"
#include "daemon/operators/concealed.h"
#include "daemon/policy/policy_message.h"
#include "kernels/codec.h"
#include "kernels/codecs/codec_reference.h"

namespace cgx::daemon {
namespace {

using config::plain_text;  // names and errors hold what clients said

std::string hexadecimal(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, number);
  return text;
}

uint64_t counter(const Snapshot& snapshot, scheduler::Counter which) {
  return snapshot.counters[static_cast<size_t>(which)];
}

void add_group(const scheduler::GroupSnapshot& from, v1::Communicator& communicator) {
  v1::Group* to = communicator.add_groups();
  to->set_index(from.index);
  to->set_tensors(from.tensors);
  to->set_raw_bytes(from.raw_bytes);
  to->set_encoded_bytes(from.encoded_bytes);
  to->set_collective(from.collective);
  to->set_collective_reason(from.reason);
  to->set_rack_encoded_bytes(from.rack_encoded_bytes);
}

void add_rank(const scheduler::RankSnapshot& from, v1::Communicator& communicator) {
  v1::Rank* to = communicator.add_rank_list();
  to->set_rank(from.rank);
  to->set_machine(from.machine);
  to->set_local(from.local);
  to->set_step(from.step);
  to->set_late_ns(from.late_ns);
}

void add_switch(const scheduler::SwitchSnapshot& from, v1::Communicator& communicator) {
  v1::Switch* to = communicator.add_switches();
  to->set_epoch(from.epoch);
  to->set_step(from.step);
  to->set_policy_version(from.policy_version);
  to->set_plan_hash(hexadecimal(from.plan_hash));
  to->set_who(plain_text(from.origin.who));
  to->set_why(plain_text(from.origin.why));
}

void add_plan_note(const scheduler::PlanNote& from, v1::Communicator& communicator) {
  v1::PlanNote* to = communicator.add_plan_notes();
  to->set_epoch(from.epoch);
  to->set_step(from.step);
  to->set_plan(from.name);
  to->set_verdict(plain_text(from.verdict));
  to->set_predicted(from.predicted);
  to->set_measured(from.measured);
  to->set_step_ns(static_cast<uint64_t>(from.step_ns));
}

void fill_trial_time(const scheduler::TrialTime& from, v1::Communicator& communicator) {
  if (from.elapsed_ns == 0) return;
  v1::TrialTime* to = communicator.mutable_trial_time();
  to->set_spent_ns(from.spent_ns);
  to->set_allowed_ns(from.allowed_ns);
  to->set_elapsed_ns(from.elapsed_ns);
  to->set_waits(from.waits);
}

void fill_figures(const CommunicatorSnapshot& from, v1::Communicator& to) {
#define X(name, ...) to.set_##name(from.name);
#include "proto/wire/figures.def"
#undef X
}

void fill_session(const scheduler::SessionSnapshot& from, v1::Session& to) {
  to.set_uid(from.uid);
  to.set_pid(from.pid);
  to.set_job(plain_text(from.job));
  to.set_arena_bytes(from.arena_bytes);
  to.set_submits(from.submits);
  to.set_completions(from.completions);
}

void fill_peer(const scheduler::PeerSnapshot& from, v1::Peer& to) {
  to.set_job(plain_text(from.job));
  to.set_name(plain_text(from.name));
  to.set_address(plain_text(from.address));
  to.set_machine(from.machine);
  to.set_state(from.state);
  to.set_heartbeat_age_ns(from.heartbeat_age_ns);
  to.set_rtt_ns(from.rtt_ns);
  to.set_frames_sent(from.frames_sent);
  to.set_frames_received(from.frames_received);
  to.set_bytes_sent(from.bytes_sent);
  to.set_bytes_received(from.bytes_received);
}

void add_warnings(const CommunicatorSnapshot& communicator, v1::DaemonStatus& status) {
  const std::string name = plain_text(communicator.job + "/" + communicator.name) + ": ";
  if (!communicator.error.empty()) status.add_warnings(name + plain_text(communicator.error));
  for (const scheduler::RankSnapshot& rank : communicator.rank_list) {
    if (rank.late_ns == 0) continue;
    status.add_warnings(name + "rank " + std::to_string(rank.rank) + " on machine " +
                        std::to_string(rank.machine) + " is " +
                        std::to_string(rank.late_ns / 1'000'000'000) + " s late");
  }
}

std::string role_of(const Snapshot& snapshot, const Caller& caller) {
  if (caller.is_operator) return "operator";
  const auto& all = snapshot.communicators;
  const bool owns = std::any_of(all.begin(), all.end(), [&](const CommunicatorSnapshot& one) {
    return caller.may_see(one.uid);
  });
  return owns ? "owner" : "other";
}

void fill_round(const scheduler::RoundSnapshot& from, v1::DataThread::Round& to) {
  to.set_cpu_ns(from.cpu_ns);
  to.set_wall_ns(from.wall_ns);
  to.set_what(std::string(from.what));
}

void fill_duty(const scheduler::DutySnapshot& from, v1::DataThread& to) {
  to.set_rounds(from.rounds);
  to.set_busy_ns(from.busy_ns);
  to.set_cpu_ns(from.cpu_ns);
  if (from.longest.cpu_ns != 0) fill_round(from.longest, *to.mutable_longest());
  if (from.longest_lately.cpu_ns != 0)
    fill_round(from.longest_lately, *to.mutable_longest_lately());
}

void fill_totals(const Snapshot& snapshot, v1::DaemonStatus& status) {
  using scheduler::Counter;
  status.set_gradient_bytes(counter(snapshot, Counter::kgradient_bytes));
  status.set_wire_bytes_sent(counter(snapshot, Counter::kencoded_bytes_sent));
  status.set_operations_completed(counter(snapshot, Counter::koperations_completed));
  status.set_operations_failed(counter(snapshot, Counter::koperations_failed));
  uint64_t arena_bytes = 0, reserved_bytes = 0;
  for (const auto& session : snapshot.sessions) arena_bytes += session.arena_bytes;
  for (const auto& one : snapshot.communicators) reserved_bytes += one.reserved_bytes;
  status.set_arena_bytes(arena_bytes);
  uint32_t arenas = 0;
  for (const auto& session : snapshot.sessions) arenas += session.arenas;
  status.set_arenas(arenas);
  status.set_links(snapshot.links);
  status.set_residual_bytes(snapshot.residual_bytes);
  const OpenFiles files = open_files();
  status.set_open_files(files.open);
  status.set_open_files_max(files.limit);
  status.set_reserved_bytes(reserved_bytes);
  fill_duty(snapshot.duty, *status.mutable_data_thread());
}

void fill_share(const scheduler::Share& from, const Caller& caller, v1::Share& to) {
  to.set_name(from.name());
  to.set_limit(from.limit());
  to.set_used(from.used());
  for (const auto& [who, used] : from.holders()) {
    if (!caller.is_operator && !(caller.uid != kNoUser && is_of(who, caller.uid))) continue;
    v1::Share::Holding* added = to.add_holders();
    added->set_who(plain_text(who));
    added->set_used(used);
  }
}

void fill_usage(const kernels::CodecRow& row, v1::Codec& to) {
  const kernels::CodecUsage usage = kernels::usage_of(row);
  to.set_number(row.number);
  to.set_strength(usage.strength);
  to.set_strength_range(usage.range);
  for (const std::string& option : usage.options) to.add_options(option);
  for (const CodecSpec& example : usage.examples) to.add_examples(kernels::to_string(example));
  to.set_advice(row.advice);
  to.set_error(usage.error);
  to.set_collective(usage.collective);
}

void fill_tuning(const DaemonFacts& facts, v1::Tuning& tuning) {
  tuning.set_measured_ns(facts.tuning_ns);
  for (const kernels::TunedOperation& one : kernels::kTunedOperations) {
    v1::TunedOperation* added = tuning.add_operations();
    const kernels::Access& access = facts.tuning.*one.access;
    added->set_name(one.name);
    added->set_ahead_bytes(access.ahead_bytes);
    added->set_second_level(access.second_level);
    added->set_streams(access.stream);
  }
}

constexpr const char* kNoWords =
    "this GPU or its driver has no stream memory operations: cgxd-gpu asks for events";

void add_gpus(const Snapshot& snapshot, const Caller& caller, v1::DaemonStatus& status) {
  for (const scheduler::GpuSnapshot& from : snapshot.gpus) {
    if (!caller.may_see(from.uid)) continue;
    v1::GpuUse& to = *status.add_gpus();
    to.set_job(plain_text(from.job));
    to.set_uid(from.uid);
    to.set_gpu(from.device);
    to.set_driver(plain_text(from.driver));
    to.set_way(from.arenas_ipc == 0 ? "vmm" : from.arenas_vmm == 0 ? "ipc" : "vmm, ipc");
    to.set_mps(from.mps);
    if (from.asks_events) to.set_why(kNoWords);
  }
  for (const CommunicatorSnapshot& from : snapshot.communicators) {
    if (from.staged.empty() || !caller.may_see(from.uid)) continue;
    v1::GpuUse& to = *status.add_gpus();
    to.set_job(plain_text(from.job));
    to.set_uid(from.uid);
    to.set_way("staged");
    to.set_why(plain_text(from.staged));
  }
}

}  // namespace

v1::DaemonStatus status_of(const Snapshot& snapshot, const DaemonFacts& facts,
                           const Caller& caller) {
  v1::DaemonStatus status;
  status.set_version(facts.version);
  status.set_instance(facts.instance);
  status.set_lane(facts.lane);
  fill_tuning(facts, *status.mutable_tuning());
  status.set_uptime_ns(snapshot.uptime_ns);
  status.set_role(role_of(snapshot, caller));
  status.set_sessions(static_cast<uint32_t>(snapshot.sessions.size()));
  status.set_communicators(static_cast<uint32_t>(snapshot.communicators.size()));
  status.set_peers(static_cast<uint32_t>(snapshot.peers.size()));
  status.set_peers_up(static_cast<uint32_t>(
      std::count_if(snapshot.peers.begin(), snapshot.peers.end(),
                    [](const scheduler::PeerSnapshot& peer) { return peer.state == "up"; })));
  fill_totals(snapshot, status);
  for (const scheduler::Share& share : snapshot.shares) {
    fill_share(share, caller, *status.add_shares());
  }
  for (const CommunicatorSnapshot& one : snapshot.communicators) {
    if (caller.may_see(one.uid)) add_warnings(one, status);
  }
  add_gpus(snapshot, caller, status);
  return status;
}

v1::CounterList counters_of(const Snapshot& snapshot) {
  v1::CounterList list;
  for (size_t i = 0; i < snapshot.counters.size(); ++i) {
    v1::Counter* added = list.add_counters();
    added->set_name(scheduler::counter_name(static_cast<scheduler::Counter>(i)));
    added->set_help(scheduler::counter_help(static_cast<scheduler::Counter>(i)));
    added->set_value(snapshot.counters[i]);
  }
  return list;
}

v1::CodecList codec_list() {
  v1::CodecList list;
  for (const kernels::CodecRow& row : kernels::codecs()) {
    v1::Codec* added = list.add_codecs();
    added->set_name(row.name);
    added->set_summary(row.summary);
    added->set_bits_min(row.bits_min);
    added->set_bits_max(row.bits_max);
    added->set_zero_exact(row.zero_exact);
    added->set_wire_version(row.wire_version);
    added->set_stochastic(row.has(CodecSpec::kStochastic));
    added->set_feedback(row.has(CodecSpec::kFeedback));
    fill_usage(row, *added);
  }
  return list;
}

v1::Communicator communicator_of(const CommunicatorSnapshot& from) {
  v1::Communicator to;
  to.set_job(plain_text(from.job));
  to.set_name(plain_text(from.name));
  to.set_uid(from.uid);
  to.set_id(hexadecimal(from.id));
  to.set_state(from.state);
  to.set_error(plain_text(from.error));
  to.set_ranks(from.ranks);
  to.set_machines(from.machines);
  to.set_local_machine(from.local_machine);
  to.set_codec(kernels::to_string(from.policy.default_codec));
  to.set_tensors(static_cast<uint32_t>(from.tensors.size()));
  to.set_metrics_job(concealed_job(from.job));
  to.set_metrics_communicator(concealed_communicator(from.name));
  fill_figures(from, to);
  for (const auto& group : from.groups) add_group(group, to);
  for (const auto& rank : from.rank_list) add_rank(rank, to);
  for (const auto& change : from.switches) add_switch(change, to);
  to.set_mode(scheduler::kPlanModes[static_cast<size_t>(from.policy.mode)]);
  to.set_searching(from.searching);
  fill_trial_time(from.trial_time, to);
  for (const auto& note : from.plan_notes) add_plan_note(note, to);
  return to;
}

Result<v1::JobList> jobs_of(const Snapshot& snapshot, const v1::Target& target,
                            const Caller& caller) {
  CGX_ASSIGN_OR_RETURN(const std::vector<const CommunicatorSnapshot*> found,
                       select_all(snapshot, target, caller));
  v1::JobList list;
  for (const CommunicatorSnapshot* one : found) *list.add_communicators() = communicator_of(*one);
  for (const scheduler::SessionSnapshot& session : snapshot.sessions) {
    const bool wanted_job = target.job().empty() || target.job() == plain_text(session.job);
    if (caller.may_see(session.uid) && wanted_job) fill_session(session, *list.add_sessions());
  }
  const auto& all = snapshot.communicators;
  list.set_hidden(static_cast<uint32_t>(
      std::count_if(all.begin(), all.end(),
                    [&](const CommunicatorSnapshot& one) { return !caller.may_see(one.uid); })));
  return list;
}

Result<v1::PeerList> peers_of(const Snapshot& snapshot, const v1::Target& target,
                              const Caller& caller) {
  v1::PeerList list;
  std::set<std::string> jobs;
  for (const scheduler::PeerSnapshot& peer : snapshot.peers) {
    if (!caller.may_see(peer.uid)) continue;
    jobs.insert(plain_text(peer.job));
    const bool wanted_job = target.job().empty() || target.job() == plain_text(peer.job);
    const bool wanted_user = !target.has_uid() || target.uid() == peer.uid;
    if (wanted_job && wanted_user) fill_peer(peer, *list.add_peers());
  }
  if (list.peers().empty() && !target.job().empty()) {
    std::string names;
    for (const std::string& job : jobs)
      names += (names.empty() ? "; jobs with peers: " : ", ") + job;
    return Status(StatusCode::kNOT_FOUND, "job " + target.job() + " has no peers here" + names);
  }
  return list;
}

v1::TensorList tensors_of(const CommunicatorSnapshot& communicator) {
  v1::TensorList list;
  list.set_job(plain_text(communicator.job));
  list.set_communicator(plain_text(communicator.name));
  list.set_epoch(communicator.epoch);
  for (const scheduler::TensorSnapshot& tensor : communicator.tensors) {
    v1::Tensor* added = list.add_tensors();
    added->set_name(plain_text(tensor.name));
    added->set_dtype(std::string(dtype_name(tensor.dtype)));
    added->set_elements(tensor.elements);
    for (uint64_t dimension : tensor.shape) added->add_shape(dimension);
    added->set_group(tensor.group);
    added->set_codec(kernels::to_string(tensor.codec));
    if (tensor.rack_codec) added->set_rack_codec(kernels::to_string(*tensor.rack_codec));
    added->set_reason(plain_text(tensor.reason));
    if (tensor.group < communicator.groups.size()) {
      added->set_collective(communicator.groups[tensor.group].collective);
      added->set_collective_reason(communicator.groups[tensor.group].reason);
    }
    if (tensor.intended_sq > 0) added->set_sent_share(tensor.sent_sq / tensor.intended_sq);
  }
  return list;
}

namespace {

uint64_t whole(double value) {
  return value <= 0 ? 0 : static_cast<uint64_t>(value + 0.5);
}

v1::PricedChoice message_of(const scheduler::PricedChoice& priced) {
  v1::PricedChoice message;
  message.set_codec(kernels::to_string(priced.codec));
  message.set_collective(collective_name(priced.collective));
  message.set_step_ns(whole(priced.step_ns));
  message.set_daemon_ns(whole(priced.daemon_ns));
  message.set_sent_bytes(priced.sent_bytes);
  return message;
}

}  // namespace

void add_prices(const scheduler::Explanation& priced, v1::TensorExplanation& message) {
  message.set_measured_ns(whole(priced.measured_ns));
  message.set_by_default(priced.by_default);
  *message.mutable_chosen() = message_of(priced.chosen);
  for (const scheduler::PricedChoice& each : priced.others) {
    *message.add_others() = message_of(each);
  }
}

v1::SimulatedPlan simulated_of(const scheduler::WhatIf& found) {
  v1::SimulatedPlan message;
  message.set_measured_ns(whole(found.measured_ns));
  message.set_now_ns(whole(found.now_ns));
  message.set_now_bytes(found.now_bytes);
  message.set_step_ns(whole(found.step_ns));
  message.set_backward_ns(whole(found.backward_ns));
  message.set_sent_bytes(found.sent_bytes);
  message.set_plan(found.plan);
  return message;
}

v1::JobProfile profile_of(const scheduler::JobProfile& profile) {
  const auto [costs, link, share] = profile.fit.conditions;
  v1::JobProfile message;
  message.set_step_ns(whole(profile.step.step_ns));
  message.set_period_ns(whole(profile.step.period_ns));
  message.set_arithmetic_ns(whole(profile.step.arithmetic_ns));
  message.set_busy_ns(whole(profile.step.busy_ns));
  message.set_link_bits_per_second(link.ns_per_byte > 0 ? 8e9 / link.ns_per_byte : 0);
  message.set_trip_ns(whole(link.trip_ns));
  message.set_arithmetic_times(profile.fit.arithmetic);
  message.set_operation_ns(whole(costs.operation_ns));
  message.set_tensor_ns(whole(costs.segment_ns));
  message.set_frame_ns(whole(costs.frame_ns));
  message.set_wire_ns_per_byte(costs.wire_ns_per_byte);
  message.set_others_seen(profile.others_seen);
  message.set_machines_heard(profile.others_heard);
  message.set_left_out(plain_text(profile.left_out));
  for (const CodecSpec& spec : profile.menu) {
    const Result<scheduler::CodecCurves> curves = costs.curves_of(spec);
    if (!curves.ok()) continue;
    v1::CodecTime& codec = *message.add_codecs();
    codec.set_codec(kernels::to_string(spec));
    codec.set_encode_ns_per_byte(curves->encode.ns_per_byte);
    codec.set_decode_ns_per_byte(curves->decode.ns_per_byte);
  }
  const size_t tensors = profile.tensors == nullptr ? 0 : profile.tensors->size();
  for (size_t i = 0; i < tensors; ++i) {
    const scheduler::TensorDesc& from = (*profile.tensors)[i];
    v1::TensorArrival& tensor = *message.add_tensors();
    tensor.set_name(plain_text(from.name));
    const bool known = i < profile.step.arrival_ns.size();
    tensor.set_after_ns(known ? whole(double{profile.step.arrival_ns[i]}) : 0);
    tensor.set_elements(from.elements);
    for (const uint64_t side : from.shape) tensor.add_shape(side);
    tensor.set_dtype(std::string(dtype_name(from.dtype)));
  }
  return message;
}

v1::CurrentPolicy policy_of(const CommunicatorSnapshot& communicator) {
  v1::CurrentPolicy current;
  current.set_job(plain_text(communicator.job));
  current.set_communicator(plain_text(communicator.name));
  current.set_version(communicator.policy_version);
  current.set_epoch(communicator.epoch);
  *current.mutable_policy() = to_message(communicator.policy);
  return current;
}

}  // namespace cgx::daemon
