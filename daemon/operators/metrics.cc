#include "daemon/operators/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "config/text.h"
#include "daemon/base/open_files.h"
#include "kernels/codec.h"

namespace cgx::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kNanosecond = 1e-9;

class Page {
 public:
  void one(const std::string& name, const std::string& help, MetricType type, double value,
           Labels labels = {}) {
    begin(name, help, type);
    add(std::move(labels), value);
  }
  void begin(const std::string& name, const std::string& help, MetricType type) {
    families_.push_back({"cgxd_" + name, help, type, {}});
    seen_.clear();
  }
  // A second series with the same labels would make Prometheus refuse the whole page.
  void add(Labels labels, double value) {
    for (ClientMetric::Label& label : labels) label.value = config::plain_text(label.value);
    if (!seen_.insert(labels).second) return;
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void add(Labels labels, const Histogram& histogram) {
    ClientMetric::Histogram shown;
    shown.sample_count = histogram.count();
    shown.sample_sum = static_cast<double>(histogram.sum_ns()) * kNanosecond;
    for (size_t i = 0; i <= Histogram::kBoundsNs.size(); ++i) {
      const bool last = i == Histogram::kBoundsNs.size();
      shown.bucket.push_back(
          {histogram.up_to(i), last ? std::numeric_limits<double>::infinity()
                                    : static_cast<double>(Histogram::kBoundsNs[i]) * kNanosecond});
    }
    const size_t before = families_.back().metric.size();
    add(std::move(labels), 0.0);
    if (families_.back().metric.size() == before) return;  // a second one of that name
    families_.back().metric.back().histogram = std::move(shown);
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
  std::set<Labels> seen_;  // of the last family
};

template <typename Object>
struct Row {  // one metric per object
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const Object&);
};

double late_seconds(const CommunicatorSnapshot& communicator) {
  uint64_t latest = 0;
  for (const auto& rank : communicator.rank_list) latest = std::max(latest, rank.late_ns);
  return static_cast<double>(latest) * kNanosecond;
}

// Of a row of figures.def.
enum class Unit : uint8_t { number, bytes, ns };
constexpr double unit_of(Unit unit) {
  return unit == Unit::ns ? kNanosecond : 1;
}
constexpr MetricType type_of(std::string_view metric) {
  return metric.ends_with("_total") ? MetricType::Counter : MetricType::Gauge;
}

using C = CommunicatorSnapshot;
constexpr Row<C> kCommunicatorRows[] = {
#define X(name, unit, metric, title, help)        \
  {"communicator_" metric, help, type_of(metric), \
   [](const C& c) { return static_cast<double>(c.name) * unit_of(Unit::unit); }},
#include "proto/wire/figures.def"
#undef X
    {"communicator_failed", "1 after a failure that has not been redone", MetricType::Gauge,
     [](const C& c) { return c.state == "failed" ? 1.0 : 0.0; }},
    {"communicator_late_seconds", "how long the others have waited for the latest rank",
     MetricType::Gauge, late_seconds},
    {"communicator_trials_cost_seconds", "what trials took beyond the plan beside them",
     MetricType::Gauge,
     [](const C& c) { return static_cast<double>(c.trial_time.spent_ns) * kNanosecond; }},
    {"communicator_trials_allowed_seconds", "what they may take; beyond, no new one begins",
     MetricType::Gauge,
     [](const C& c) { return static_cast<double>(c.trial_time.allowed_ns) * kNanosecond; }},
};

using P = scheduler::PeerSnapshot;
constexpr Row<P> kPeerRows[] = {
    {"peer_up", "1 while the link to the peer daemon is up", MetricType::Gauge,
     [](const P& p) { return p.state == "up" ? 1.0 : 0.0; }},
    {"peer_heartbeat_age_seconds", "time since the peer's last heartbeat", MetricType::Gauge,
     [](const P& p) { return static_cast<double>(p.heartbeat_age_ns) * kNanosecond; }},
    {"peer_rtt_seconds", "round trip of heartbeats", MetricType::Gauge,
     [](const P& p) { return static_cast<double>(p.rtt_ns) * kNanosecond; }},
    {"peer_sent_bytes_total", "bytes sent to the peer", MetricType::Counter,
     [](const P& p) { return static_cast<double>(p.bytes_sent); }},
    {"peer_received_bytes_total", "bytes received from the peer", MetricType::Counter,
     [](const P& p) { return static_cast<double>(p.bytes_received); }},
    {"peer_sent_frames_total", "frames sent to the peer", MetricType::Counter,
     [](const P& p) { return static_cast<double>(p.frames_sent); }},
    {"peer_received_frames_total", "frames received from the peer", MetricType::Counter,
     [](const P& p) { return static_cast<double>(p.frames_received); }},
};

// A job on several GPUs of this machine has a communicator on each.
Labels with_device(Labels labels, const std::string& device) {
  if (!device.empty()) labels.push_back({"gpu", device});
  return labels;
}

Labels labels_of(const C& c) {
  return with_device({{"cgx_job", c.job}, {"uid", std::to_string(c.uid)}, {"communicator", c.name}},
                     c.device);
}
Labels labels_of(const P& p) {
  return with_device({{"cgx_job", p.job},
                      {"uid", std::to_string(p.uid)},
                      {"peer", p.name},
                      {"machine", std::to_string(p.machine)}},
                     p.device);
}

template <typename Object, size_t kRows>
void add_rows(const Row<Object> (&rows)[kRows], const std::vector<Object>& objects, Page& page) {
  for (const Row<Object>& row : rows) {
    page.begin(row.name, row.help, row.type);
    for (const Object& object : objects) page.add(labels_of(object), row.value(object));
  }
}

void add_totals(const Snapshot& snapshot, Page& page) {
  for (size_t i = 0; i < snapshot.counters.size(); ++i) {
    const auto counter = static_cast<scheduler::Counter>(i);
    page.one(std::string(scheduler::counter_name(counter)) + "_total",
             scheduler::counter_help(counter), MetricType::Counter,
             static_cast<double>(snapshot.counters[i]));
  }
  const scheduler::DutySnapshot& duty = snapshot.duty;
  page.one("data_thread_busy_seconds_total", "time in which the data thread had work",
           MetricType::Counter, static_cast<double>(duty.busy_ns) * kNanosecond);
  page.one("data_thread_cpu_seconds_total", "processor time of the data thread",
           MetricType::Counter, static_cast<double>(duty.cpu_ns) * kNanosecond);
  page.one("data_thread_longest_round_seconds",
           "processor time of the data thread's longest round of the last minute: so long other "
           "jobs waited",
           MetricType::Gauge, static_cast<double>(duty.longest_lately.cpu_ns) * kNanosecond);
  double arena_bytes = 0, arenas = 0;
  for (const auto& session : snapshot.sessions) {
    arena_bytes += static_cast<double>(session.arena_bytes);
    arenas += session.arenas;
  }
  page.one("sessions", "trainer processes connected", MetricType::Gauge,
           static_cast<double>(snapshot.sessions.size()));
  page.one("arenas", "mappings of the sessions' shared memory", MetricType::Gauge, arenas);
  page.one("links", "links to other daemons, one for each job and daemon", MetricType::Gauge,
           static_cast<double>(snapshot.links));
  page.one("residual_bytes", "kept of jobs with error feedback, should their ranks come back",
           MetricType::Gauge, static_cast<double>(snapshot.residual_bytes));
  const OpenFiles files = open_files();
  page.one("open_files", "descriptors this process has open", MetricType::Gauge,
           static_cast<double>(files.open));
  page.one("open_files_max", "descriptors this process may have open", MetricType::Gauge,
           static_cast<double>(files.limit));
  page.one("arena_bytes", "shared memory of the sessions", MetricType::Gauge, arena_bytes);
}

// How long each phase takes, from the recorder's events.
void add_phases(const std::vector<C>& communicators, const Tally& tally, Page& page) {
  constexpr std::pair<const char*, const char*> kRows[] = {
#define X(name, help) {#name, help},
      CGX_PHASES(X)
#undef X
  };
  for (size_t row = 0; row < std::size(kRows); ++row) {
    page.begin(std::string("communicator_") + kRows[row].first + "_seconds", kRows[row].second,
               MetricType::Histogram);
    for (const C& one : communicators) {
      const Tally::Job* const job = tally.find(one.index, one.created_ns);
      if (job != nullptr) page.add(labels_of(one), job->phases[row]);
    }
  }
}

// What codecs send of what they should, by the squared norms of the steps that were measured.
void add_sent_shares(const std::vector<C>& communicators, Page& page) {
  page.begin("communicator_sent_share", "squared norm sent / intended, of this machine's encoders",
             MetricType::Gauge);
  for (const C& communicator : communicators) {
    std::map<std::string, std::pair<double, double>> sums;  // by codec: intended, sent
    for (const scheduler::TensorSnapshot& tensor : communicator.tensors) {
      if (tensor.intended_sq == 0) continue;
      auto& [intended_sq, sent_sq] = sums[kernels::to_string(tensor.codec)];
      intended_sq += tensor.intended_sq;
      sent_sq += tensor.sent_sq;
    }
    for (const auto& [codec, sum] : sums) {
      Labels labels = labels_of(communicator);
      labels.push_back({"codec", codec});
      page.add(std::move(labels), sum.second / sum.first);
    }
  }
}

}  // namespace

std::string metrics_text(const Snapshot& snapshot, const Tally& tally, const DaemonFacts& facts,
                         uint64_t log_dropped) {
  Page page;
  page.one("build_info", "always 1; version, lane and instance as labels", MetricType::Gauge, 1,
           {{"version", facts.version}, {"lane", facts.lane}, {"cgx_host", facts.instance}});
  page.one("uptime_seconds", "time since the daemon started", MetricType::Gauge,
           static_cast<double>(snapshot.uptime_ns) * kNanosecond);
  page.one("log_dropped_total", "log lines nobody took in time", MetricType::Counter,
           static_cast<double>(log_dropped));
  add_totals(snapshot, page);
  add_rows(kCommunicatorRows, snapshot.communicators, page);
  add_sent_shares(snapshot.communicators, page);
  add_phases(snapshot.communicators, tally, page);
  add_rows(kPeerRows, snapshot.peers, page);
  return page.text();
}

}  // namespace cgx::daemon
