#include "daemon/mesh/mesh_agent.h"

#include <algorithm>

#include "daemon/mesh/mesh_wish.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kInboxTag = 0;
constexpr size_t kInboxCapacity = 16 * 1024;
constexpr int kMessagesPerRound = 64;
constexpr size_t kAddressesMax = 8;
constexpr size_t kRefusedMax = 256;

// "a:1,b:2" -> {"a:1", "b:2"}
std::vector<std::string> split(const std::string& addresses) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < addresses.size() && parts.size() < kAddressesMax) {
    const size_t end = std::min(addresses.find(',', begin), addresses.size());
    if (end > begin) parts.push_back(addresses.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string doubt_text(const Status& doubt) {
  return doubt.ok() ? "" : "; somebody who could not be asked back said: " + doubt.message();
}

}  // namespace

MeshAgent::Wish::Wish(LinkWish asked, const std::string& cluster_key, const wire::InstanceId& own,
                      uint64_t now_ns)
    : wish(std::move(asked)),
      key(cluster_key, wish.request.job_key),
      key_id(key.id()),
      dials(own < wish.request.instance),
      addresses(split(wish.request.mesh_address)),
      since_ns(now_ns),
      next_try_ns(now_ns) {}

MeshAgent::MeshAgent(MeshOptions options, const Ports& ports)
    : options_(std::move(options)),
      ports_(ports),
      refusals_(ports.events),
      inbox_(kInboxCapacity),
      rate_("mesh greetings per second", options_.greetings_per_second) {}

MeshAgent::~MeshAgent() = default;

Status MeshAgent::on_start() {
  owner_.bind();
  return poller().add(inbox_.event_fd(), EPOLLIN | EPOLLET, kInboxTag);
}

int MeshAgent::do_work(uint64_t now_ns) {
  owner_.check();
  now_ns_ = now_ns;
  is_own_ = {};
  const int work = inbox_.drain(kMessagesPerRound, [](Message message) { message(); });
  expire();
  for (auto& [serial, wish] : wishes_) {
    if (!wish->calls() || wish->attempt != 0 || wish->next_try_ns > now_ns) continue;
    if (wish->greets() && !greets_in_time(*wish)) {
      wish->next_try_ns = own_rate_second_ns_ + kSecond;
      continue;
    }
    wish->dials ? dial(*wish) : look_near(*wish);
  }
  next_overdue_ns_ = ports_.dialer.expire(now_ns);
  return work;
}

uint64_t MeshAgent::next_deadline_ns() const {
  uint64_t deadline = next_overdue_ns_;
  for (const auto& [serial, wish] : wishes_) {
    deadline = std::min(deadline, wish->since_ns + options_.deadline_ns);
    if (wish->calls() && wish->attempt == 0) deadline = std::min(deadline, wish->next_try_ns);
  }
  for (const auto* each : {&issued_, &finished_}) {
    for (const auto& [nonce, issued] : *each) deadline = std::min(deadline, issued.expires_ns);
  }
  return deadline;
}

bool MeshAgent::want(LinkWish wish) {
  return inbox_.post([this, wish = std::move(wish)]() mutable { add(std::move(wish)); });
}

void MeshAgent::unwant(LinkSerial serial) {
  // A lost withdrawal only means that the answer finds nobody.
  (void)inbox_.post([this, serial] {
    if (const auto found = wishes_.find(serial); found != wishes_.end()) end(*found->second);
  });
}

// Only where daemons may be, and never at a port of this one: what a client names is not dialed for
// it. A link's own listener exists before the link is asked for.
Status MeshAgent::check(Wish& wish) {
  if (wish.addresses.empty()) {
    return Status(StatusCode::kUNAVAILABLE,
                  "the daemon " + short_name(wish.wish.request.instance) +
                      " serves one machine only: it advertises no mesh address");
  }
  if (wish.wish.request.instance == options_.instance) {
    return invalid_argument("a link from this daemon to itself");
  }
  std::erase_if(wish.addresses, [this](const std::string& each) {
    return !options_.trusted.contains(host_of(each));
  });
  if (wish.addresses.empty()) {
    return Status(StatusCode::kPERMISSION_DENIED,
                  "the daemon " + short_name(wish.wish.request.instance) + " is at " +
                      wish.wish.request.mesh_address +
                      ", in none of the networks of mesh.trusted_networks (" +
                      options_.trusted.to_string() + ")" + loopback_hint(wish));
  }
  const std::vector<std::string> own = split(options_.address);
  std::erase_if(wish.addresses, [&](const std::string& each) {
    return std::find(own.begin(), own.end(), each) != own.end() || is_own(each);
  });
  if (wish.addresses.empty()) {
    return Status(
        StatusCode::kPERMISSION_DENIED,
        peer_text(wish) + " would be this daemon: it listens there itself" + loopback_hint(wish));
  }
  const NetworkList loopback = NetworkList::loopback();
  const bool local =
      std::all_of(wish.addresses.begin(), wish.addresses.end(),
                  [&](const auto& each) { return loopback.contains(host_of(each)); });
  if (!wish.key.secret() && !local) {
    return Status(StatusCode::kAUTH_FAILED,
                  "job '" + wish.wish.request.job +
                      "' has no key and mesh.cluster_key is not set: without a key only daemons on "
                      "loopback addresses talk to each other");
  }
  return {};
}

// Looking takes long, and clients name addresses as they like: once for all messages of a round.
bool MeshAgent::is_own(const std::string& address) {
  if (!options_.look_at_own) return false;
  if (!is_own_) is_own_ = options_.look_at_own();
  return is_own_(address);
}

void MeshAgent::add(LinkWish asked) {
  const LinkSerial serial = asked.serial;
  auto made =
      std::make_unique<Wish>(std::move(asked), options_.cluster_key, options_.instance, now_ns_);
  Wish& wish = *wishes_.emplace(serial, std::move(made)).first->second;
  const bool nowhere = wish.addresses.empty();
  std::erase_if(wish.addresses, [this](const std::string& each) { return outside(each); });
  const bool away = wish.addresses.empty() && !nowhere;
  const Status status =
      away ? Status(StatusCode::kPERMISSION_DENIED,
                    peer_text(wish) + " is in none of the networks of " + options_.name +
                        ", mesh.network or mesh.trusted_networks (" + options_.trusted.to_string() +
                        ")" + loopback_hint(wish))
           : check(wish);
  if (!status.ok()) return refuse(wish, status);
  wish.unmet = on_loopback(wish);
}

// A numeric address that may not be called; what a name stands for shows when it is.
bool MeshAgent::outside(const std::string& address) const {
  const std::string host = host_of(address);
  const bool numeric = host.find_first_not_of("0123456789abcdefABCDEF:.") == std::string::npos;
  return numeric && !options_.trusted.contains(host);
}

void MeshAgent::connect(Wish& wish, const Introduction& both, const transport::Endpoint& remote) {
  transport::ConnectOptions options;
  options.remote = remote;
  const uint64_t to_dialer = wish.key.tag_to_dialer(both);
  const uint64_t to_listener = wish.key.tag_to_listener(both);
  options.inbound_tag = wish.dials ? to_dialer : to_listener;
  options.outbound_tag = wish.dials ? to_listener : to_dialer;
  options.secret = wish.key.secret_of_link(both);
  options.dials = wish.dials;
  options.name =
      (wish.dials ? both.listener_name : both.greeting.name) + " (" + wish.current_address() + ")";
  ports_.host.connect_link(wish.wish.serial, std::move(options));
}

void MeshAgent::connected(LinkSerial serial, const Status& status) {
  // Bounded by wishes, of which want() has let in fewer than there is room.
  (void)inbox_.post([this, serial, status] {
    if (const auto found = wishes_.find(serial); found != wishes_.end()) {
      on_connected(*found->second, status);
    }
  });
}

// The dialer hears that the listener has connected before it connects itself: it may send at once.
// The listener waits for the Arrival.
void MeshAgent::on_connected(Wish& wish, const Status& status) {
  if (wish.dials) {
    status.ok() ? made(wish) : fail(wish, status);
    return dial(wish);
  }
  Acceptance answer = issued_[wish.challenge].answer;
  if (!status.ok()) answer.verdict = Verdict::refused(status);
  if (wish.acceptance) wish.acceptance(answer);
  wish.acceptance = {};
  wish.connected = status.ok();
  if (!status.ok()) refuse(wish, status);
}

// The listener, whose transport has connected, would wait for us until the deadline.
void MeshAgent::fail(Wish& wish, const Status& why) {
  wish.answered = true;
  wish.failure = Status(why.code(), why.message().substr(0, kReasonBytesMax));
  ports_.host.link_refused(wish.wish.serial, why);
}

void MeshAgent::made(Wish& wish) {
  wish.answered = true;
  if (ports_.keys != nullptr) {
    ports_.keys->keep({wish.wish.request.job, wish.wish.request.uid}, wish.key);
  }
  ports_.events.event(scheduler::EventLevel::kInfo,
                      "linked to " + peer_text(wish) + " for job '" + wish.wish.request.job + "'");
  ports_.host.link_made(wish.wish.serial);
}

void MeshAgent::refuse(Wish& wish, const Status& why) {
  if (!wish.answered) ports_.host.link_refused(wish.wish.serial, why);
  const bool misfit = why.code() == StatusCode::kAUTH_FAILED ||
                      why.code() == StatusCode::kPERMISSION_DENIED ||
                      why.code() == StatusCode::kVERSION_MISMATCH;
  if (misfit) {
    const scheduler::LinkRequest& request = wish.wish.request;
    refused_.push_back({request.job, request.instance, wish.key_id, request.uid, why,
                        now_ns_ + options_.challenge_ns});
    if (refused_.size() > kRefusedMax) refused_.pop_front();
  }
  end(wish);
}

void MeshAgent::end(Wish& wish) {
  const bool dialed = wish.dials || wish.next_ask_ns != 0;
  if (dialed && !wish.addresses.empty()) ports_.dialer.forget(wish.current_address());
  if (auto given = issued_.extract(wish.challenge); !given.empty()) {
    given.mapped().expires_ns = now_ns_ + options_.challenge_ns;
    finished_.insert(std::move(given));
  }
  wishes_.erase(wish.wish.serial);
}

void MeshAgent::expire() {
  for (auto* each : {&issued_, &finished_}) {
    std::erase_if(*each, [this](const auto& one) { return one.second.expires_ns <= now_ns_; });
  }
  for (auto it = wishes_.begin(); it != wishes_.end();) {
    Wish& wish = *(it++)->second;
    if (now_ns_ - wish.since_ns < options_.deadline_ns) continue;
    const std::string seconds = std::to_string(options_.deadline_ns / kSecond) + " s";
    const std::string missed =
        wish.dials
            ? " has no rank that joined job '" + wish.wish.request.job + "' within " + seconds
        : wish.connected
            ? " has introduced itself, but not connected for gradients within " + seconds +
                  "; the log of its daemon has the cause (transport.devices, its networks)"
            : " has not introduced itself within " + seconds + "; it must be able to reach " +
                  options_.address + loopback_hint(wish) + doubt_text(wish.doubt);
    refuse(wish, Status(StatusCode::kTIMED_OUT, peer_text(wish) + missed));
  }
}

// Who has not configured anything and starts a second machine.
std::string MeshAgent::loopback_hint(const Wish& wish) const {
  const NetworkList loopback = NetworkList::loopback();
  const bool own = loopback.contains(host_of(options_.address));
  const bool theirs = loopback.contains(host_of(wish.wish.request.mesh_address));
  if (!own && !theirs) return {};
  return std::string("; ") +
         (own && theirs ? "both daemons listen"
          : own         ? "this daemon listens"
                        : "that one listens") +
         " on loopback only: if they are on two machines, set mesh.network on both (cgxd --network "
         "10.1.0.0/24)";
}

std::string MeshAgent::peer_text(const Wish& wish) const {
  return "the daemon " + short_name(wish.wish.request.instance) + " at " +
         wish.wish.request.mesh_address;
}

}  // namespace cgx::daemon
