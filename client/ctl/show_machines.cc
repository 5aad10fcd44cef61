// Several machines' daemons as text: cgxctl status, jobs and tensors with --all, doctor.
#include <algorithm>
#include <cstdio>

#include "client/ctl/show.h"
#include "client/ctl/table.h"

namespace cgx::ctl {
namespace {

std::string agreed(const v1::Machine& machine, const std::string& key) {
  for (const v1::Agreed& one : machine.agreed()) {
    if (one.key() == key) return one.value();
  }
  return "-";
}

void add_machine(const v1::Machine& machine, Table& table) {
  const v1::Totals& totals = machine.totals();
  table.row({machine.name(), machine.address(), agreed(machine, "version"),
             agreed(machine, "transport.name"), human_time(totals.uptime_ns()),
             human_count(totals.communicators()), human_count(totals.sessions()),
             human_bytes(totals.gradient_bytes()), human_bytes(totals.wire_bytes_sent()),
             human_count(totals.operations_failed()), human_time(totals.late_ns())});
}

// The tensor of which least is sent, where that is measured.
const v1::Tensor* least_sent(const v1::TensorList& tensors) {
  const v1::Tensor* least = nullptr;
  for (const v1::Tensor& one : tensors.tensors()) {
    const bool less = least == nullptr || one.sent_share() < least->sent_share();
    if (one.has_sent_share() && less) least = &one;
  }
  return least;
}

void add_tensors(const v1::TensorList& tensors, Table& table) {
  const v1::Tensor* const least = least_sent(tensors);
  char share[32] = "-";
  if (least != nullptr) std::snprintf(share, sizeof share, "%.3f", least->sent_share());
  table.row({tensors.machine(), std::to_string(tensors.epoch()),
             human_count(tensors.tensors_size()), share, least != nullptr ? least->name() : ""});
}

// All machines of a job follow one plan; between a switch here and there they may differ shortly.
std::string codec_differences(const v1::TensorList& here, const v1::TensorList& there) {
  std::string text;
  for (int i = 0; i < std::min(here.tensors_size(), there.tensors_size()); ++i) {
    const v1::Tensor &ours = here.tensors(i), &theirs = there.tensors(i);
    const bool same = ours.codec() == theirs.codec() && ours.rack_codec() == theirs.rack_codec();
    if (ours.name() == theirs.name() && same) continue;
    text += there.machine() + ": " + theirs.name() + " travels as " + codecs_text(theirs) + ", " +
            ours.name() + " on " + here.machine() + " as " + codecs_text(ours) + "\n";
  }
  return text;
}

}  // namespace

std::string not_answered(const google::protobuf::RepeatedPtrField<v1::Finding>& findings) {
  std::string text;
  for (const v1::Finding& one : findings) {
    text += one.machine() + " does not say: " + one.text() + "\n";
  }
  return text;
}

std::string show_machines(const v1::TensorList& tensors) {
  if (tensors.machine().empty()) return {};
  Table table({"MACHINE", ">EPOCH", ">TENSORS", ">LEAST SENT SHARE", "OF"});
  add_tensors(tensors, table);
  std::string differences;
  for (const v1::TensorList& other : tensors.others()) {
    add_tensors(other, table);
    differences += codec_differences(tensors, other);
  }
  return table.text() + differences + not_answered(tensors.findings()) + "\n";
}

std::string show(const v1::Diagnosis& diagnosis) {
  if (!diagnosis.has_here()) return {};
  Table table({"MACHINE", "ADDRESS", "VERSION", "TRANSPORT", ">UP", ">JOBS", ">SESSIONS",
               ">GRADIENTS", ">SENT", ">FAILED", ">LATE"});
  add_machine(diagnosis.here(), table);
  for (const v1::Machine& one : diagnosis.others()) add_machine(one, table);
  return table.text();
}

std::string show_findings(const v1::Diagnosis& diagnosis) {
  std::string text;
  for (const v1::Finding& one : diagnosis.findings()) {
    text += one.machine() + ": " + (one.key().empty() ? "" : one.key() + ": ") + one.text() + "\n";
  }
  if (!text.empty()) return "\n" + text;
  const std::string& address = diagnosis.here().address();
  const bool alone = address.empty() || address.starts_with("127.") || address.starts_with("[::1]");
  const std::string ask =
      alone ? "this daemon listens on loopback only: jobs on several machines need mesh.network"
            : "from another machine: cgxctl doctor " + address;
  return diagnosis.others().empty() ? "\nnothing is wrong on this machine; " + ask + "\n"
                                    : "\nnothing is wrong\n";
}

}  // namespace cgx::ctl
