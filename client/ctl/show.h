// Answers of the daemon as text for people. Thread rule: pure functions.
#pragma once

#include <string>

#include "proto/messages/control.pb.h"

namespace cgx::ctl {

// "resnet/dp".
template <typename Answer>
std::string full_name(const Answer& answer) {
  return answer.job() + "/" + answer.communicator();
}

std::string show(const v1::DaemonStatus& status);
// Jobs with gradients in the memory of a GPU: which way they go. Empty: there is none.
std::string show_gpus(const v1::DaemonStatus& status);
std::string show(const v1::JobList& jobs);
std::string show(const v1::TensorList& tensors);
// "maxmin:4, in racks fp32": of both levels, where they differ.
std::string codecs_text(const v1::Tensor& tensor);
std::string show_plans(const v1::JobList& jobs);  // their groups
std::string show_searches(const v1::JobList& jobs);
std::string show_explanation(const v1::TensorExplanation& explained, const v1::Communicator& one);
std::string show_simulated(const v1::SimulatedPlan& answer);
std::string show_profile(const v1::JobProfile& profile);
std::string show_model(const v1::JobProfile& profile);  // a file for cgxsim --model
// what mode auto has tried
std::string show(const v1::PeerList& peers);
std::string show(const v1::CodecList& codecs);
std::string show(const v1::CounterList& counters);  // those that are not 0
std::string show(const v1::EventList& events);
std::string show_more(const v1::EventList& events);  // that follow: without titles
std::string show(const v1::CurrentPolicy& policy);   // YAML that `policy apply` takes
std::string show(const v1::PolicyDiff& diff);
std::string show(const v1::PolicyHistory& history);
std::string show(const v1::Diagnosis& diagnosis);           // a line for each machine
std::string show_findings(const v1::Diagnosis& diagnosis);  // "machine: key: what"
std::string not_answered(const google::protobuf::RepeatedPtrField<v1::Finding>& findings);
std::string show_machines(const v1::TensorList& tensors);  // empty: only one was asked
// Empty: nothing that travels exactly now would be compressed.
std::string loss_text(const v1::PolicyEffect& effect);
std::string effect_text(const v1::PolicyEffect& effect);  // by codec, before and after
std::string show_check(const v1::PolicyChange& change);
std::string show_apply(const v1::PolicyChange& change);

}  // namespace cgx::ctl
