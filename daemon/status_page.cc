#include "daemon/status_page.h"

#include <cstdio>
#include <initializer_list>

#include "config/text.h"
#include "kernels/codec.h"

namespace cgx::daemon {
namespace {

constexpr const char* kHead =
    "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>cgxd</title>"
    "<meta http-equiv=\"refresh\" content=\"5\"><style>"
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:.5em 0 2em}"
    "th,td{padding:.25em .9em .25em 0;text-align:left;border-bottom:1px solid #ddd}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b00}</style></head><body>";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : config::plain_text(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string seconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

std::string mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

class Table {
 public:
  explicit Table(std::initializer_list<const char*> titles) : out_("<table><tr>") {
    for (const char* title : titles) out_ += std::string("<th>") + title + "</th>";
    out_ += "</tr>";
  }
  Table& row() {
    out_ += "<tr>";
    return *this;
  }
  Table& text(const std::string& value, bool bad = false) {
    out_ += (bad ? "<td class=\"bad\">" : "<td>") + escaped(value) + "</td>";
    return *this;
  }
  Table& number(const std::string& value) {
    out_ += "<td class=\"n\">" + value + "</td>";
    return *this;
  }
  std::string take() { return std::move(out_) + "</table>"; }

 private:
  std::string out_;
};

std::string late_ranks(const CommunicatorSnapshot& communicator) {
  std::string text;
  for (const auto& rank : communicator.rank_list) {
    if (rank.late_ns == 0) continue;
    text += (text.empty() ? "late: rank " : ", rank ") + std::to_string(rank.rank) + " " +
            seconds(rank.late_ns);
  }
  return text;
}

std::string jobs(const Snapshot& snapshot) {
  Table table({"job", "communicator", "uid", "state", "ranks", "machines", "step", "epoch", "codec",
               "gradients", "sent", "remarks"});
  for (const CommunicatorSnapshot& one : snapshot.communicators) {
    const std::string late = late_ranks(one);
    table.row().text(one.job).text(one.name).number(std::to_string(one.uid));
    table.text(one.state, one.state == "failed").number(std::to_string(one.ranks));
    table.number(std::to_string(one.machines)).number(std::to_string(one.step));
    table.number(std::to_string(one.epoch)).text(kernels::to_string(one.policy.default_codec));
    table.number(mebibytes(one.gradient_bytes)).number(mebibytes(one.wire_bytes_sent));
    table.text(one.error + (one.error.empty() || late.empty() ? "" : "; ") + late, true);
  }
  return table.take();
}

std::string peers(const Snapshot& snapshot) {
  Table table({"job", "peer", "address", "machine", "state", "heartbeat", "sent", "received"});
  for (const scheduler::PeerSnapshot& one : snapshot.peers) {
    table.row().text(one.job).text(one.name).text(one.address);
    table.number(std::to_string(one.machine)).text(one.state, one.state != "up");
    table.number(seconds(one.heartbeat_age_ns) + " ago");
    table.number(mebibytes(one.bytes_sent)).number(mebibytes(one.bytes_received));
  }
  return table.take();
}

std::string counters(const Snapshot& snapshot) {
  Table table({"counter", "value", "meaning"});
  for (size_t i = 0; i < snapshot.counters.size(); ++i) {
    if (snapshot.counters[i] == 0) continue;
    const auto counter = static_cast<scheduler::Counter>(i);
    table.row().text(scheduler::counter_name(counter)).number(std::to_string(snapshot.counters[i]));
    table.text(scheduler::counter_help(counter));
  }
  return table.take();
}

}  // namespace

std::string status_page(const Snapshot& snapshot, const DaemonFacts& facts) {
  std::string out = kHead;
  out += "<h1>cgxd " + escaped(facts.version) + "</h1><p>" + escaped(facts.instance) + ", lane " +
         escaped(facts.lane) + ", up " + seconds(snapshot.uptime_ns) + ", " +
         std::to_string(snapshot.sessions.size()) + " sessions</p>";
  out += "<h2>Jobs</h2>" + jobs(snapshot) + "<h2>Peers</h2>" + peers(snapshot);
  out += "<h2>Counters</h2>" + counters(snapshot) + "</body></html>\n";
  return out;
}

}  // namespace cgx::daemon
