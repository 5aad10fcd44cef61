// Several machines' daemons as text: cgxctl status --all and doctor.
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

}  // namespace

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
  const std::string ask = "from another machine: cgxctl doctor " + diagnosis.here().address();
  return diagnosis.others().empty() ? "\nnothing is wrong on this machine; " + ask + "\n"
                                    : "\nnothing is wrong\n";
}

}  // namespace cgx::ctl
