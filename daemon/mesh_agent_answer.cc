// The dialed side of the mesh agent: judge a greeting, check a proof.
#include <algorithm>

#include "daemon/mesh_agent.h"
#include "daemon/mesh_wish.h"

namespace cgx::daemon {
namespace {

constexpr size_t kIssuedMax = 4096;

}  // namespace

void MeshAgent::greeted(const std::string& host, Greeting greeting,
                        UniqueFunction<void(Challenge)> answer) {
  inbox_.post_wait(
      [this, host, greeting = std::move(greeting), answer = std::move(answer)]() mutable {
        answer(answer_greeting(host, greeting));
      });
}

void MeshAgent::proved(const std::string& host, Proof proof, UniqueFunction<void(Welcome)> answer) {
  inbox_.post_wait([this, host, proof = std::move(proof), answer = std::move(answer)]() mutable {
    answer(answer_proof(host, proof));
  });
}

bool MeshAgent::within_rate() {
  if (now_ns_ - rate_second_ns_ >= kSecond) {
    rate_second_ns_ = now_ns_;
    rate_count_ = 0;
  }
  return ++rate_count_ <= options_.greetings_per_second;
}

Challenge MeshAgent::answer_greeting(const std::string& host, const Greeting& greeting) {
  Wish* wish = nullptr;
  Challenge challenge{.verdict = judge(host, greeting, wish), .name = options_.name};
  if (challenge.verdict.kind != Verdict::Kind::kGo) return challenge;
  challenge.nonce = new_nonce();
  issued_[challenge.nonce] = {.serial = wish->wish.serial,
                              .introduction = {greeting, challenge.nonce, options_.name},
                              .expires_ns = now_ns_ + options_.challenge_ns,
                              .answered = {},
                              .answer = {}};
  return challenge;
}

// kGo: `wish` is the one the greeting asks for.
Verdict MeshAgent::judge(const std::string& host, const Greeting& greeting, Wish*& wish) {
  if (!within_rate() || issued_.size() >= kIssuedMax) return Verdict::not_yet();
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
  const bool fits = found != wishes_.end() && greeting.version == kMeshVersion;
  if (!fits) return judge_near_miss(host, greeting);
  if (found->second->dials) {
    return stranger(host, protocol_error("the side with the smaller instance dials: here " +
                                         short_name(options_.instance)));
  }
  if (!found->second->key.secret() && !NetworkList::loopback().contains(host)) {
    return stranger(host, Status(StatusCode::kAUTH_FAILED, "a link without a key from " + host));
  }
  wish = found->second.get();
  return {};
}

// A greeting of the daemon we wait for, but with another version, user or key. It may belong to a
// wish still to come (a job may have several keys), so it is only refused when it keeps coming.
Verdict MeshAgent::judge_near_miss(const std::string& host, const Greeting& greeting) {
  const auto found = std::find_if(wishes_.begin(), wishes_.end(), [&](const auto& each) {
    const scheduler::LinkRequest& request = each.second->wish.request;
    return request.job == greeting.job && request.instance == greeting.from;
  });
  const std::string who = "the daemon " + greeting.name + " at " + host;
  Status why;
  if (greeting.version != kMeshVersion) {
    why = Status(StatusCode::kVERSION_MISMATCH,
                 who + " speaks mesh protocol " + std::to_string(greeting.version) + ", " +
                     options_.name + " speaks " + std::to_string(kMeshVersion));
  }
  if (found == wishes_.end()) return why.ok() ? Verdict::not_yet() : stranger(host, why);
  Wish& wish = *found->second;
  if (why.ok()) {
    const bool same = wish.stranger_since_ns != 0 && wish.stranger_key == greeting.key_id &&
                      wish.stranger_uid == greeting.uid;
    if (!same) wish.stranger_since_ns = now_ns_;
    wish.stranger_key = greeting.key_id;
    wish.stranger_uid = greeting.uid;
    if (now_ns_ - wish.stranger_since_ns < options_.grace_ns) return Verdict::not_yet();
    const bool other_user = greeting.uid != wish.wish.request.uid;
    const std::string job = "job '" + greeting.job + "'";
    why = other_user ? Status(StatusCode::kPERMISSION_DENIED,
                              job + " belongs to uid " + std::to_string(wish.wish.request.uid) +
                                  " at " + options_.name + ", to uid " +
                                  std::to_string(greeting.uid) + " at " + who)
                     : Status(StatusCode::kAUTH_FAILED,
                              who + " and " + options_.name + " have different keys for " + job);
  }
  const Verdict verdict = stranger(host, why);
  refuse(wish, why);
  return verdict;
}

Welcome MeshAgent::answer_proof(const std::string& host, const Proof& proof) {
  const auto found = issued_.find(proof.nonce);
  if (found == issued_.end()) return {.verdict = Verdict::not_yet()};  // expired: greet again
  Issued& issued = found->second;
  if (issued.answered && equal_in_constant_time(*issued.answered, proof.mac)) return issued.answer;
  const auto wish = wishes_.find(issued.serial);
  if (issued.answered || wish == wishes_.end()) return {.verdict = Verdict::not_yet()};
  issued.answered = proof.mac;
  issued.answer = check_proof(host, issued, *wish->second, proof);
  return issued.answer;
}

Welcome MeshAgent::check_proof(const std::string& host, Issued& issued, Wish& wish,
                               const Proof& proof) {
  const Introduction& both = issued.introduction;
  const std::string who = "the daemon " + both.greeting.name + " at " + host;
  if (!equal_in_constant_time(wish.key.prove_dialer(both, proof.endpoint), proof.mac)) {
    const Status why(
        StatusCode::kAUTH_FAILED,
        who + " could not prove that it knows the key of job '" + both.greeting.job + "'");
    return {.verdict = stranger(host, why)};  // whoever it was: the wish waits for the right one
  }
  if (proof.endpoint.settings != wish.wish.local.settings) {
    const Status why(StatusCode::kMISMATCH, "the transport settings differ: '" +
                                                proof.endpoint.settings + "' at " + who + ", '" +
                                                wish.wish.local.settings + "' at " + options_.name);
    refuse(wish, why);
    return {.verdict = Verdict::refused(why)};
  }
  Welcome welcome;
  welcome.endpoint = wish.wish.local;
  welcome.mac = wish.key.prove_listener(both, proof.endpoint, welcome.endpoint);
  made(wish, both, /*dialed=*/false, proof.endpoint);
  return welcome;
}

Verdict MeshAgent::stranger(const std::string& host, const Status& why) {
  ports_.counters.add(scheduler::Counter::kpeers_refused);
  refusals_.warn(now_ns_, "refused a mesh handshake from " + host + ": " + why.to_string());
  return Verdict::refused(why);
}

}  // namespace cgx::daemon
