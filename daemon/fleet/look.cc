#include "daemon/fleet/look.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <set>
#include <system_error>
#include <thread>

#include "config/config.h"
#include "config/text.h"
#include "daemon/base/clock.h"
#include "daemon/fleet/call_limit.h"
#include "daemon/fleet/fan_out.h"
#include "daemon/fleet/mesh_credentials.h"
#include "daemon/net/reach.h"
#include "proto/messages/mesh.grpc.pb.h"

namespace cgx::daemon {
namespace {

constexpr int kReachMs = 3000;
constexpr std::chrono::nanoseconds kAnswerLimit = std::chrono::seconds(4);
constexpr uint64_t kFreshNs = 500 * kMillisecond;  // what is told of this machine
constexpr uint64_t kSnapshotNs = 1 * kSecond;
constexpr size_t kPeersMax = 256;
constexpr size_t kLooksAtOnceMax = 128;
constexpr uint32_t kResolvingMax = 64;          // names at once
constexpr int kDataMax = 8;                     // of a machine's addresses for gradients
constexpr uint64_t kDiagnosisNs = 8 * kSecond;  // less than cgxctl waits
constexpr uint32_t kDiagnosesMax = 4;           // at once, of users and of operators each
constexpr const char kTimeOver[] = ": not tried, the time for all machines was over";
constexpr const char kNetwork[] = "mesh.network";

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool all_loopback(const std::string& addresses) {
  const NetworkList loopback = NetworkList::loopback();
  const std::vector<std::string> each = split(addresses);
  return std::all_of(each.begin(), each.end(),
                     [&](const std::string& one) { return loopback.contains(host_of(one)); });
}

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::strtoul(address.c_str() + address.rfind(':') + 1, nullptr, 10));
}

Result<v1::LookReply> ask(const std::string& address, const MeshTls& tls, const KeyId& key_id,
                          uint64_t left_ns) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::MeshHandshake::NewStub(
      grpc::CreateCustomChannel(address, channel_credentials(tls), arguments));
  v1::LookRequest request;
  request.set_key_id(key_id.data(), key_id.size());
  v1::LookReply reply;
  const auto look = [&](auto* context, auto answered) {
    stub->async()->Look(context, &request, &reply, std::move(answered));
  };
  const grpc::Status status =
      LimitedCall().run(std::min(kAnswerLimit, std::chrono::nanoseconds(left_ns)), look);
  if (status.ok()) return reply;
  return Status(status.error_code() == grpc::StatusCode::UNIMPLEMENTED
                    ? StatusCode::kVERSION_MISMATCH
                    : StatusCode::kUNAVAILABLE,
                status.error_message());
}

// Without a port.
bool is_ipv6(const std::string& text) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, without_brackets(text).c_str(), &address) == 1;
}

const char* or_nothing(const std::string& value) {
  return value.empty() ? "nothing" : value.c_str();
}

}  // namespace

// One of those that look at the same time.
struct Look::Turn {
  explicit Turn(std::atomic<uint32_t>& all) : count(all), number(all.fetch_add(1)) {}
  ~Turn() { count.fetch_sub(1); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  std::atomic<uint32_t>& count;
  const uint32_t number;
};

bool Look::Terms::over() const {
  return left_ns() == 0 || (waits && !waits());
}

uint64_t Look::Terms::left_ns() const {
  return end_ns - std::min(end_ns, monotonic_ns());
}

int Look::Terms::reach_ms() const {
  return static_cast<int>(std::clamp<uint64_t>(left_ns() / kMillisecond, 1, kReachMs));
}

// A name server that says nothing keeps who asks waiting for longer than there is time: those are
// threads of their own, which nobody waits for.
class Look::Names : public std::enable_shared_from_this<Names> {
 public:
  using Resolve = std::function<std::string(const std::string& host)>;
  static constexpr std::chrono::milliseconds kSlice{20};  // whether somebody still waits
  explicit Names(Resolve resolve) : resolve_(std::move(resolve)) {}

  Result<std::string> find(const std::string& host, const Terms& terms) {
    if (const std::string numeric = numeric_address(host); !numeric.empty()) return numeric;
    const auto answer = std::make_shared<std::promise<std::string>>();
    std::future<std::string> found = answer->get_future();
    bool started = false;
    while (!terms.over()) {
      started = started || start(host, answer);
      if (!started) {
        std::this_thread::sleep_for(kSlice);
      } else if (found.wait_for(kSlice) == std::future_status::ready) {
        return found.get();
      }
    }
    return Status(StatusCode::kTIMED_OUT, started ? "the name was not resolved in time"
                                                  : "too many names are being looked up");
  }

 private:
  bool start(const std::string& host, const std::shared_ptr<std::promise<std::string>>& answer) {
    if (under_way_.fetch_add(1) < kResolvingMax) {
      try {
        std::thread([names = shared_from_this(), host, answer] {
          answer->set_value(names->resolve_(host));
          names->under_way_.fetch_sub(1);
        }).detach();
        return true;
      } catch (const std::system_error&) {  // no thread to be had
      }
    }
    under_way_.fetch_sub(1);
    return false;
  }

  const Resolve resolve_;
  std::atomic<uint32_t> under_way_{0};
};

struct Look::Seen {
  std::optional<v1::Machine> machine;
  std::vector<v1::Finding> findings;

  void find(const std::string& machine_name, const std::string& key, const std::string& text) {
    v1::Finding& finding = findings.emplace_back();
    finding.set_machine(config::plain_text(machine_name));
    finding.set_key(key);
    finding.set_text(config::plain_text(text));
  }
};

Look::Look(LookFacts facts, OperatorPort& port)
    : facts_(std::move(facts)),
      key_id_(LinkKey(facts_.cluster_key, {}).id()),
      loopback_only_(all_loopback(facts_.mesh_address)),
      port_(port),
      names_{std::make_shared<Names>(facts_.resolve), std::make_shared<Names>(facts_.resolve)} {}

Look::~Look() = default;

v1::LookReply Look::answer(const std::string& host, const v1::LookRequest& request) {
  v1::LookReply reply;
  if (!facts_.trusted.contains(host)) {
    reply.mutable_verdict()->set_code(static_cast<uint32_t>(StatusCode::kPERMISSION_DENIED));
    reply.mutable_verdict()->set_message(host + " is in none of the networks of " + facts_.name +
                                         " (" + facts_.trusted.to_string() + ")");
    return reply;
  }
  reply.set_name(facts_.name);
  for (const auto& [key, value] : facts_.agreed) {
    v1::Agreed& agreed = *reply.add_agreed();
    agreed.set_key(key);
    agreed.set_value(value);
  }
  reply.set_has_key(!facts_.cluster_key.empty());
  reply.set_same_key(request.key_id() ==
                     std::string(reinterpret_cast<const char*>(key_id_.data()), key_id_.size()));
  for (const std::string& address : listeners()) reply.add_data(address);
  *reply.mutable_totals() = totals();
  return reply;
}

std::vector<std::string> Look::listeners() {
  const MutexLock lock(mutex_);
  if (listeners_ns_ == 0 || monotonic_ns() - listeners_ns_ >= kFreshNs) {
    listeners_ = facts_.listeners(facts_.other_ports);
    listeners_ns_ = monotonic_ns();
  }
  return listeners_;
}

// However many ask, the engine is asked twice a second.
v1::Totals Look::totals() {
  const MutexLock lock(mutex_);
  if (totals_ns_ != 0 && monotonic_ns() - totals_ns_ < kFreshNs) return totals_;
  const Result<scheduler::Snapshot> snapshot = port_.snapshot(kSnapshotNs);
  if (!snapshot.ok()) return totals_;
  const auto counter = [&](scheduler::Counter which) {
    return snapshot->counters[static_cast<size_t>(which)];
  };
  totals_.set_uptime_ns(snapshot->uptime_ns);
  totals_.set_sessions(static_cast<uint32_t>(snapshot->sessions.size()));
  totals_.set_communicators(static_cast<uint32_t>(snapshot->communicators.size()));
  totals_.set_gradient_bytes(counter(scheduler::Counter::kgradient_bytes));
  totals_.set_wire_bytes_sent(counter(scheduler::Counter::kencoded_bytes_sent));
  totals_.set_operations_failed(counter(scheduler::Counter::koperations_failed));
  uint64_t late_ns = 0;
  for (const auto& communicator : snapshot->communicators) {
    for (const auto& rank : communicator.rank_list) late_ns = std::max(late_ns, rank.late_ns);
  }
  totals_.set_late_ns(late_ns);
  totals_ns_ = monotonic_ns();
  return totals_;
}

// One address of each daemon that this one has links with. Whom it has not met yet a client may
// have made up: only operators are told what keeps it from them.
std::vector<std::string> Look::linked(bool for_operator) {
  const Result<scheduler::Snapshot> snapshot = port_.snapshot(kSnapshotNs);
  std::set<std::string> addresses;
  for (const auto& peer : snapshot.ok() ? snapshot->peers : decltype(snapshot->peers){}) {
    if (!for_operator && peer.state == "connecting") continue;
    for (const std::string& each : split(peer.address)) {
      if (!facts_.trusted.contains(host_of(each))) continue;
      addresses.insert(each);
      break;
    }
  }
  return {addresses.begin(), addresses.end()};
}

v1::Diagnosis Look::diagnose(const v1::DiagnoseRequest& request, bool for_operator,
                             const StillWaits& waits) {
  v1::Diagnosis diagnosis;
  v1::Machine& here = *diagnosis.mutable_here();
  here.set_name(facts_.name);
  here.set_address(facts_.mesh_address);
  here.set_networks(facts_.trusted.to_string());
  for (const auto& [key, value] : facts_.agreed) {
    v1::Agreed& agreed = *here.add_agreed();
    agreed.set_key(key);
    agreed.set_value(value);
  }
  *here.mutable_totals() = totals();
  const auto add = [&](Seen seen) {
    if (seen.machine) *diagnosis.add_others() = std::move(*seen.machine);
    for (v1::Finding& finding : seen.findings) *diagnosis.add_findings() = std::move(finding);
  };
  const Turn turn(diagnoses_[for_operator]);
  if (turn.number < kDiagnosesMax) {
    const uint64_t end_ns = monotonic_ns() + kDiagnosisNs;
    std::vector<std::pair<std::string, Terms>> peers;
    for (const std::string& each : request.peers()) {
      peers.emplace_back(each, Terms{for_operator, for_operator, end_ns, waits});
    }
    if (request.linked()) {
      for (std::string& each : linked(for_operator))
        peers.emplace_back(std::move(each), Terms{true, for_operator, end_ns, waits});
    }
    if (peers.size() > kPeersMax) peers.resize(kPeersMax);
    std::vector<Seen> seen(peers.size());
    fan_out(peers.size(), kLooksAtOnceMax,
            [&](size_t i) { seen[i] = look_at(peers[i].first, peers[i].second); });
    for (Seen& each : seen) add(std::move(each));
  } else {
    Seen none;
    none.find(facts_.name, "", "the daemon looks at others for several callers already: ask again");
    add(std::move(none));
  }
  return diagnosis;
}

// `asked`: a host or host:port; an IPv6 address alone has colons, too.
Look::Seen Look::look_at(const std::string& asked, const Terms& terms) const {
  Seen seen;
  const bool has_port = !is_ipv6(asked) && !host_of(asked).empty();
  const std::string name = has_port ? host_of(asked) : without_brackets(asked);
  const uint16_t port = has_port ? port_of(asked) : facts_.usual_port;
  if (!terms.any_port && port != facts_.usual_port) {
    seen.find(asked, "mesh.listen",
              "port " + std::to_string(port) + " is not the one this machine's daemon has (" +
                  std::to_string(facts_.usual_port) + "): only operators may have others tried");
    return seen;
  }
  const Result<std::string> found = names_[terms.any_port]->find(name, terms);
  if (!found.ok() || found->empty()) {
    const std::string why = found.ok() ? "" : ": " + found.status().message();
    seen.find(asked, "mesh.listen", "no address is known for " + asked + why);
    return seen;
  }
  const std::string& host = *found;
  if (loopback_only_ && !NetworkList::loopback().contains(host)) {
    seen.find(facts_.name, kNetwork,
              "the daemon listens on loopback only (" + facts_.mesh_address +
                  "): other machines cannot reach it; set mesh.network (cgxd --network "
                  "10.1.0.0/24)");
    return seen;
  }
  if (!facts_.trusted.contains(host)) {
    seen.find(facts_.name, kNetwork,
              host + " is in none of this machine's networks (" + facts_.trusted.to_string() +
                  "): its daemon would not be called nor let in");
    return seen;
  }
  const std::string address = address_of(host, port);
  const std::string own = has_port ? "" : " (the usual port, as none was given)";
  if (terms.over()) {
    seen.find(host, "mesh.listen", address + own + kTimeOver);
    return seen;
  }
  const Status reached = reach(host, port, terms.reach_ms());
  if (reached.code() == StatusCode::kTIMED_OUT) {
    seen.find(host, "mesh.listen",
              address + own + ": " + reached.message() +
                  ": a firewall drops what goes to mesh.listen's port, or the machine is away");
    return seen;
  }
  if (!reached.ok()) {
    seen.find(host, "mesh.listen",
              address + own + ": " + reached.message() +
                  ": no daemon runs there, its mesh.listen has another port, it listens on "
                  "loopback only (mesh.network), or a firewall refuses");
    return seen;
  }
  const Result<v1::LookReply> reply = ask(address, facts_.tls, key_id_, terms.left_ns());
  if (reply.ok()) {
    compare(*reply, address, terms, seen);
  } else if (reply.status().code() == StatusCode::kVERSION_MISMATCH) {
    seen.find(host, "version", address + ": its daemon is of another version");
  } else {
    seen.find(host, "mesh.tls",
              address + ": it answers, but not as a daemon does (" + reply.status().message() +
                  "): another program has that port, or mesh.tls is configured on one side only");
  }
  return seen;
}

void Look::compare(v1::LookReply reply, const std::string& address, const Terms& terms,
                   Seen& seen) const {
  config::make_plain(reply);
  if (reply.verdict().code() != 0) {
    return seen.find(host_of(address), kNetwork, reply.verdict().message());
  }
  v1::Machine& machine = seen.machine.emplace();
  machine.set_name(reply.name());
  machine.set_address(address);
  *machine.mutable_agreed() = reply.agreed();
  *machine.mutable_totals() = reply.totals();
  for (const auto& [key, value] : facts_.agreed) {
    const auto theirs =
        std::find_if(reply.agreed().begin(), reply.agreed().end(),
                     [&, name = key](const v1::Agreed& one) { return one.key() == name; });
    const std::string their = theirs == reply.agreed().end() ? "" : theirs->value();
    if (their == value) continue;
    seen.find(machine.name(), key,
              "is " + std::string(or_nothing(their)) + " there, " + or_nothing(value) + " on " +
                  facts_.name);
  }
  if (!reply.same_key()) {
    const bool here = !facts_.cluster_key.empty();
    seen.find(machine.name(), "mesh.key_file",
              here && reply.has_key() ? "the cluster key is another one than that of " + facts_.name
              : here                  ? "there is no cluster key, " + facts_.name + " has one"
                                      : "there is a cluster key, " + facts_.name + " has none");
  }
  for (int i = 0; i < std::min(reply.data_size(), kDataMax); ++i) {
    const std::string& data = reply.data(i);
    const std::string host = host_of(data);
    const bool any = host == "0.0.0.0" || host == "::";
    const std::string at = any ? host_of(address) : host;
    if (!facts_.trusted.contains(at) || (!terms.any_data && at != host_of(address))) continue;
    if (terms.over()) return seen.find(machine.name(), "transport.ports", data + kTimeOver);
    const Status reached = reach(at, port_of(data), terms.reach_ms());
    if (reached.ok()) continue;
    seen.find(machine.name(), "transport.ports",
              data + ", where gradients go, cannot be reached: " + reached.message() +
                  "; a firewall wants transport.ports open");
  }
}

}  // namespace cgx::daemon
