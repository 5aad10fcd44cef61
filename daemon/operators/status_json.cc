#include "daemon/operators/status_json.h"

#include <algorithm>
#include <cstdio>

#include "config/text.h"
#include "daemon/net/reach.h"
#include "kernels/codec.h"

namespace cgx::daemon {
namespace {

// Writes one JSON text; values in the order they are given, commas where they belong.
class Json {
 public:
  Json& open(char bracket) {
    comma();
    out_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    out_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(const char* name) {
    comma();
    out_ += '"' + std::string(name) + "\":";
    first_ = true;
    return *this;
  }
  Json& text(const std::string& value) {
    comma();
    out_ += config::json_quoted(config::plain_text(value));
    return *this;
  }
  Json& number(double value) {
    comma();
    char text[32];
    std::snprintf(text, sizeof text, "%.14g", value);
    out_ += text;
    return *this;
  }
  Json& yes(bool value) {
    comma();
    out_ += value ? "true" : "false";
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  void comma() {
    if (!first_) out_ += ',';
    first_ = false;
  }
  std::string out_;
  bool first_ = true;
};

class Clocks {
 public:
  explicit Clocks(const Moments& now) : now_(now) {}
  double unix_s(uint64_t monotonic_ns) const {
    return 1e-9 * static_cast<double>(now_.unix_ns) -
           1e-9 * (static_cast<double>(now_.monotonic_ns) - static_cast<double>(monotonic_ns));
  }

 private:
  Moments now_;
};

std::string mark_text(const Mark& mark) {
  using scheduler::EventKind;
  const std::string value = std::to_string(mark.value), peer = std::to_string(mark.peer);
  if (mark.kind == EventKind::kswitched) return "plan " + value + " takes force";
  if (mark.kind == EventKind::kterm) return "training goes on after a failure";
  if (mark.kind == EventKind::klate) {
    return "rank " + peer + " is " + std::to_string(mark.value / 1'000'000) + " ms late";
  }
  const std::string name(status_name(static_cast<StatusCode>(mark.value)));
  return mark.kind == EventKind::klink_lost ? "the link to machine " + peer + " is lost: " + name
                                            : "failed: " + name;
}

void put_codecs(const CommunicatorSnapshot& one, Json& json) {
  std::vector<std::pair<std::string, uint64_t>> totals;
  uint64_t all = 0;
  for (const scheduler::TensorSnapshot& tensor : one.tensors) {
    const std::string name = kernels::to_string(tensor.codec);
    auto total = std::find_if(totals.begin(), totals.end(),
                              [&](const auto& each) { return each.first == name; });
    if (total == totals.end()) total = totals.insert(total, {name, 0});
    total->second += tensor.elements;
    all += tensor.elements;
  }
  std::sort(totals.begin(), totals.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  json.key("codecs").open('[');
  for (const auto& [name, elements] : totals) {
    json.open('{').key("codec").text(name).key("elements").number(static_cast<double>(elements));
    const double share =
        static_cast<double>(elements) / static_cast<double>(std::max(all, uint64_t{1}));
    json.key("share").number(share).close('}');
  }
  json.close(']');
}

// A rank others wait for now is at least that late.
void put_ranks(const CommunicatorSnapshot& one, const Tally::Job* told, Json& json) {
  json.key("ranks").open('[');
  for (const scheduler::RankSnapshot& rank : one.rank_list) {
    const double waits_ms = 1e-6 * static_cast<double>(rank.late_ns);
    double late_ms = waits_ms;
    if (told != nullptr) {
      const auto usual = told->late_ns.find(static_cast<uint16_t>(rank.rank));
      if (usual != told->late_ns.end()) late_ms = std::max(late_ms, 1e-6 * usual->second);
    }
    json.open('{').key("rank").number(rank.rank).key("machine").number(rank.machine);
    json.key("local").yes(rank.local);
    json.key("late_ms").number(late_ms).key("waits_ms").number(waits_ms).close('}');
  }
  json.close(']');
}

void put_past(const Watch::JobPast* past, const Tally::Job* told, const Clocks& clocks,
              Json& json) {
  json.key("samples").open('[');
  for (const Watch::Sample& each : past == nullptr ? std::deque<Watch::Sample>() : past->samples) {
    json.open('[').number(clocks.unix_s(each.time_ns)).number(each.step_ms);
    json.number(each.exchange_ms).number(each.raw_rate).number(each.sent_rate).close(']');
  }
  json.close(']').key("marks").open('[');
  for (const Mark& mark : told == nullptr ? std::deque<Mark>() : told->marks) {
    json.open('[').number(clocks.unix_s(mark.time_ns));
    json.text(scheduler::event_row(mark.kind).name).text(mark_text(mark)).close(']');
  }
  json.close(']');
}

void put_job(const CommunicatorSnapshot& one, const Watch::JobPast* past, const Tally::Job* told,
             const Clocks& clocks, Json& json) {
  json.open('{').key("job").text(one.job).key("name").text(one.name).key("uid").number(one.uid);
  json.key("state").text(one.state).key("error").text(one.error);
  json.key("machines").number(one.machines).key("step").number(static_cast<double>(one.step));
  json.key("plan").number(static_cast<double>(one.epoch));
  json.key("raw").number(static_cast<double>(one.gradient_bytes));
  json.key("sent").number(static_cast<double>(one.wire_bytes_sent));
  put_codecs(one, json);
  put_ranks(one, told, json);
  put_past(past, told, clocks, json);
  json.close('}');
}

void put_link(const scheduler::PeerSnapshot& one, const Watch::LinkPast* past, const Clocks& clocks,
              Json& json) {
  json.open('{').key("job").text(one.job).key("name").text(one.name);
  json.key("machine")
      .number(one.machine)
      .key("address")
      .text(one.address)
      .key("state")
      .text(one.state);
  json.key("rtt_ms").number(1e-6 * static_cast<double>(one.rtt_ns));
  json.key("line_rate").number(line_rate(one.address)).key("samples").open('[');
  for (const auto& each : past == nullptr ? std::deque<Watch::LinkSample>() : past->samples) {
    json.open('[').number(clocks.unix_s(each.time_ns)).number(each.out_rate);
    json.number(each.in_rate).close(']');
  }
  json.close(']').close('}');
}

template <typename Map, typename Key>
const typename Map::mapped_type* found(const Map& map, const Key& key) {
  const auto place = map.find(key);
  return place == map.end() ? nullptr : &place->second;
}

}  // namespace

std::string status_json(const Snapshot& snapshot, Watch& watch, const DaemonFacts& facts,
                        const Moments& now) {
  const Clocks clocks(now);
  const double up_ns = static_cast<double>(std::max(snapshot.uptime_ns, uint64_t{1}));
  Json json;
  json.open('{').key("machine").text(facts.instance).key("version").text("cgxd " + facts.version);
  json.key("lane").text(facts.lane).key("up").number(1e-9 * up_ns);
  json.key("now").number(1e-9 * static_cast<double>(now.unix_ns));
  json.key("sessions").number(static_cast<double>(snapshot.sessions.size()));
  json.key("busy").number(static_cast<double>(snapshot.duty.busy_ns) / up_ns);
  watch.look([&](const Tally& tally, const auto& jobs, const auto& links, bool recorded) {
    json.key("recorder").yes(recorded).key("jobs").open('[');
    for (const CommunicatorSnapshot& one : snapshot.communicators) {
      put_job(one, found(jobs, Watch::JobKey(one.index, one.created_ns)),
              tally.find(one.index, one.created_ns), clocks, json);
    }
    json.close(']').key("links").open('[');
    for (const scheduler::PeerSnapshot& one : snapshot.peers) {
      put_link(one, found(links, Watch::key_of(one)), clocks, json);
    }
    json.close(']');
  });
  return json.close('}').take();
}

}  // namespace cgx::daemon
