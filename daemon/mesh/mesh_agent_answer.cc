// The dialed side of the mesh agent: judge a greeting, check a proof.
#include <algorithm>

#include "daemon/mesh/mesh_agent.h"
#include "daemon/mesh/mesh_wish.h"

namespace cgx::daemon {
namespace {

constexpr size_t kIssuedMax = 4096;

// Other users of a host need not wait for one whose introductions come to nothing.
std::string challenges_holder(const std::string& host, const Greeting& greeting) {
  return host + " for uid " + std::to_string(greeting.uid);
}

}  // namespace

void MeshAgent::greeted(const std::string& host, Greeting greeting,
                        UniqueFunction<void(Challenge)> answer) {
  inbox_.post_wait(
      [this, host, greeting = std::move(greeting), answer = std::move(answer)]() mutable {
        answer(answer_greeting(host, greeting));
      });
}

void MeshAgent::proved(const std::string& host, Proof proof,
                       UniqueFunction<void(Acceptance)> answer) {
  inbox_.post_wait([this, host, proof = std::move(proof), answer = std::move(answer)]() mutable {
    answer_proof(host, proof, std::move(answer));
  });
}

void MeshAgent::arrived(const std::string&, Arrival arrival, UniqueFunction<void(Verdict)> answer) {
  inbox_.post_wait(
      [this, arrival, answer = std::move(answer)]() mutable { answer(answer_arrival(arrival)); });
}

// Of the last full second operators are shown who greeted.
bool MeshAgent::within_rate(const std::string& host) {
  if (now_ns_ - rate_second_ns_ >= kSecond) {
    rate_second_ns_ = now_ns_;
    ports_.counters.shares().show(rate_);
    rate_.clear();
  }
  if (rate_.left_for(host) == 0) return false;
  rate_.add(host);
  return true;
}

bool MeshAgent::challenges_left(const std::string& holder) const {
  scheduler::Use use{.limit = kIssuedMax, .all = issued_.size()};
  if (scheduler::left_for({use.limit, use.all, use.limit}) > 0) return true;
  for (const auto& [nonce, issued] : issued_) use.own += issued.holder == holder;
  return scheduler::left_for(use) > 0;
}

MeshAgent::Issued* MeshAgent::find_issued(const Nonce& challenge) {
  for (auto* each : {&issued_, &finished_}) {
    if (const auto found = each->find(challenge); found != each->end()) return &found->second;
  }
  return nullptr;
}

Challenge MeshAgent::answer_greeting(const std::string& host, const Greeting& greeting) {
  Wish* wish = nullptr;
  Challenge challenge{.verdict = judge(host, greeting, wish), .name = options_.name};
  if (wish == nullptr) return challenge;
  challenge.nonce = new_nonce();
  Issued& issued = issued_[challenge.nonce];
  issued.holder = challenges_holder(host, greeting);
  issued.serial = wish->wish.serial;
  issued.introduction = {greeting, challenge.nonce, options_.name};
  issued.expires_ns = now_ns_ + options_.challenge_ns;
  return challenge;
}

// kGo, and only then: `wish` is the one the greeting asks for.
Verdict MeshAgent::judge(const std::string& host, const Greeting& greeting, Wish*& wish) {
  const bool room = within_rate(host) && challenges_left(challenges_holder(host, greeting));
  if (!room) return Verdict::not_yet();
  if (!options_.trusted.contains(host)) {
    return stranger(host, Status(StatusCode::kPERMISSION_DENIED,
                                 host + " is in none of the networks of mesh.trusted_networks (" +
                                     options_.trusted.to_string() + ")"));
  }
  if (greeting.to != options_.instance) {
    return Verdict::refused(
        Status(StatusCode::kNOT_FOUND, "this is the daemon " + short_name(options_.instance) +
                                           ", not " + short_name(greeting.to) + " (restarted?)"));
  }
  const auto found = std::find_if(wishes_.begin(), wishes_.end(), [&](const auto& each) {
    const scheduler::LinkRequest& request = each.second->wish.request;
    return request.job == greeting.job && request.uid == greeting.uid &&
           request.instance == greeting.from && each.second->key_id == greeting.key_id;
  });
  const bool fits = found != wishes_.end() && other_version(host, greeting).ok();
  if (!fits) return judge_near_miss(host, greeting);
  // The side with the smaller instance dials: it is asked back where somebody else pretends to be
  // it.
  if (found->second->dials) return Verdict::not_yet();
  if (!found->second->key.secret() && !NetworkList::loopback().contains(host)) {
    return stranger(host, Status(StatusCode::kAUTH_FAILED, "a link without a key from " + host));
  }
  wish = found->second.get();
  return {};
}

// Not the greeting of a wish, perhaps of the daemon a wish waits for.
Verdict MeshAgent::judge_near_miss(const std::string& host, const Greeting& greeting) {
  const auto found = std::find_if(wishes_.begin(), wishes_.end(), [&](const auto& each) {
    const scheduler::LinkRequest& request = each.second->wish.request;
    return request.job == greeting.job && request.instance == greeting.from;
  });
  Wish* const wish = found == wishes_.end() ? nullptr : found->second.get();
  Status why = other_version(host, greeting);
  bool at_once = true;
  if (why.ok() && wish != nullptr) {
    why = misfit(host, greeting, *wish);
    at_once = keeps_coming(greeting, *wish);
  } else if (why.ok()) {
    why = refused_lately(greeting);
  }
  if (why.ok()) return Verdict::not_yet();
  if (wish != nullptr) ask_back(*wish, why);
  return at_once ? stranger(host, why) : Verdict::not_yet();
}

// OK: the same as this one's.
Status MeshAgent::other_version(const std::string& host, const Greeting& greeting) const {
  const std::string who = "the daemon " + greeting.name + " at " + host;
  if (greeting.version != kMeshVersion) {
    return {StatusCode::kVERSION_MISMATCH,
            who + " speaks mesh protocol " + std::to_string(greeting.version) + ", " +
                options_.name + " speaks " + std::to_string(kMeshVersion)};
  }
  if (greeting.program == options_.program) return {};
  return {StatusCode::kVERSION_MISMATCH,
          who + " is " + (greeting.program.empty() ? "an older cgxd" : greeting.program) + ", " +
              options_.name + " is " + options_.program +
              ": all daemons of a job must be of one version"};
}

// Another user or key than the wish's may belong to a wish still to come (a job may have several
// keys), so its caller is told only when it keeps coming.
bool MeshAgent::keeps_coming(const Greeting& greeting, Wish& wish) {
  const bool again = wish.stranger_since_ns != 0 && wish.stranger_key == greeting.key_id &&
                     wish.stranger_uid == greeting.uid;
  if (!again) wish.stranger_since_ns = now_ns_;
  wish.stranger_key = greeting.key_id;
  wish.stranger_uid = greeting.uid;
  return now_ns_ - wish.stranger_since_ns >= options_.grace_ns;
}

Status MeshAgent::misfit(const std::string& host, const Greeting& greeting,
                         const Wish& wish) const {
  const std::string who = "the daemon " + greeting.name + " at " + host;
  const std::string job = "job '" + greeting.job + "'";
  if (greeting.uid == wish.wish.request.uid) {
    return Status(StatusCode::kAUTH_FAILED, who + " and " + options_.name +
                                                " have different keys for " + job +
                                                " (mesh.key_file, mesh.cluster_key)");
  }
  return Status(StatusCode::kPERMISSION_DENIED,
                job + " belongs to uid " + std::to_string(wish.wish.request.uid) + " at " +
                    options_.name + ", to uid " + std::to_string(greeting.uid) + " at " + who);
}

// The wish that did not fit has ended here; the other side asks whether it is so.
Status MeshAgent::refused_lately(const Greeting& greeting) const {
  const auto found = std::find_if(refused_.begin(), refused_.end(), [&](const Refusal& one) {
    return one.job == greeting.job && one.peer == greeting.from && one.expires_ns > now_ns_ &&
           (one.key_id != greeting.key_id || one.uid != greeting.uid);
  });
  return found == refused_.end() ? Status() : found->why;
}

void MeshAgent::answer_proof(const std::string& host, const Proof& proof,
                             UniqueFunction<void(Acceptance)> answer) {
  Issued* const found = find_issued(proof.nonce);
  if (found == nullptr) return answer({.verdict = Verdict::not_yet()});  // greet again
  Issued& issued = *found;
  const auto waiting = wishes_.find(issued.serial);
  Wish* wish = waiting == wishes_.end() ? nullptr : waiting->second.get();
  if (issued.proof && equal_in_constant_time(*issued.proof, proof.mac)) {
    const bool connecting = wish != nullptr && !wish->connected;
    if (!connecting) return answer(issued.answer);
    wish->acceptance = std::move(answer);
    return;
  }
  if (issued.proof || wish == nullptr || wish->challenge != Nonce{}) {
    return answer({.verdict = Verdict::not_yet()});
  }
  if (Status why = check_proof(host, issued.introduction, *wish, proof); !why.ok()) {
    issued_.erase(proof.nonce);  // one proof per challenge
    // Whoever cannot prove anything may be anybody: the wish waits for the right one.
    if (why.code() != StatusCode::kAUTH_FAILED) refuse(*wish, why);
    return answer({.verdict = stranger(host, why)});
  }
  accept(issued, *wish, proof, std::move(answer));
}

void MeshAgent::accept(Issued& issued, Wish& wish, const Proof& proof,
                       UniqueFunction<void(Acceptance)> answer) {
  issued.proof = proof.mac;
  issued.arrival = wish.key.prove_arrival(issued.introduction, {});
  issued.expires_ns = now_ns_ + options_.deadline_ns;
  issued.answer.endpoint = wish.wish.local;
  issued.answer.mac = wish.key.prove_listener(issued.introduction, proof.endpoint, wish.wish.local);
  wish.challenge = proof.nonce;
  wish.acceptance = std::move(answer);
  connect(wish, issued.introduction, proof.endpoint);
}

Status MeshAgent::check_proof(const std::string& host, const Introduction& both, const Wish& wish,
                              const Proof& proof) const {
  const std::string who = "the daemon " + both.greeting.name + " at " + host;
  if (!equal_in_constant_time(wish.key.prove_dialer(both, proof.endpoint), proof.mac)) {
    return Status(
        StatusCode::kAUTH_FAILED,
        who + " could not prove that it knows the key of job '" + both.greeting.job + "'");
  }
  if (proof.endpoint.settings == wish.wish.local.settings) return {};
  return Status(StatusCode::kMISMATCH, "the transport settings differ: '" +
                                           proof.endpoint.settings + "' at " + who + ", '" +
                                           wish.wish.local.settings + "' at " + options_.name);
}

Verdict MeshAgent::answer_arrival(const Arrival& arrival) {
  if (!arrival.failure.ok()) return answer_failure(arrival);
  const Issued* const found = find_issued(arrival.nonce);
  const bool known =
      found != nullptr && found->proof && equal_in_constant_time(found->arrival, arrival.mac);
  if (!known) return Verdict::refused(Status(StatusCode::kNOT_FOUND, "no such handshake"));
  const auto wish = wishes_.find(found->serial);
  if (wish != wishes_.end() && wish->second->connected) {
    made(*wish->second);
    end(*wish->second);
  }
  return {};
}

// The dialer's transport could not connect.
Verdict MeshAgent::answer_failure(const Arrival& arrival) {
  const Issued* const found = find_issued(arrival.nonce);
  if (found == nullptr) return {};
  const auto waiting = wishes_.find(found->serial);
  if (waiting == wishes_.end()) return {};  // nobody waits for it
  Wish& wish = *waiting->second;
  const Mac expected = wish.key.prove_arrival(found->introduction, arrival.failure);
  const bool known = found->proof && equal_in_constant_time(expected, arrival.mac);
  if (!known) return Verdict::refused(Status(StatusCode::kNOT_FOUND, "no such handshake"));
  refuse(wish, Status(arrival.failure.code(), peer_text(wish) + " cannot connect for gradients: " +
                                                  arrival.failure.message()));
  return {};
}

Verdict MeshAgent::stranger(const std::string& host, const Status& why) {
  ports_.counters.add(scheduler::Counter::kpeers_refused);
  refusals_.warn(now_ns_, "refused a mesh handshake from " + host + ": " + why.to_string());
  return Verdict::refused(why);
}

}  // namespace cgx::daemon
