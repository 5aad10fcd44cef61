// The dialing side of the mesh agent: greet, prove, retry.
#include <algorithm>

#include "daemon/mesh/mesh_agent.h"
#include "daemon/mesh/mesh_wish.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kAskPauseNs = 200 * kMillisecond;

}  // namespace

// Answers come from other threads; a wish withdrawn or retried meanwhile does not see them.
template <typename T>
MeshAnswer<T> MeshAgent::answer_to(Wish& wish,
                                   void (MeshAgent::*handler)(Wish&, const Result<T>&)) {
  const LinkSerial serial = wish.wish.serial;
  const uint64_t attempt = wish.attempt = next_attempt_++;
  return [this, serial, attempt, handler](Result<T> answer) {
    inbox_.post_wait([this, serial, attempt, handler, answer = std::move(answer)] {
      const auto found = wishes_.find(serial);
      if (found == wishes_.end() || found->second->attempt != attempt) return;
      found->second->attempt = 0;
      (this->*handler)(*found->second, answer);
    });
  };
}

// Of the many links of one user to one daemon some greet it each second: it lets in so many of a
// host, and the others of this machine need it, too.
bool MeshAgent::greets_in_time(const Wish& wish) {
  if (now_ns_ - own_rate_second_ns_ >= kSecond) {
    own_rate_second_ns_ = now_ns_;
    own_rate_.clear();
  }
  uint32_t& greeted = own_rate_[{wish.wish.request.uid, wish.current_address()}];
  if (greeted >= options_.own_greetings_per_second) return false;
  ++greeted;
  return true;
}

void MeshAgent::dial(Wish& wish) {
  const std::string& address = wish.current_address();
  if (wish.answered) {
    return ports_.dialer.arrive(
        address,
        {wish.introduction.challenge, wish.key.prove_arrival(wish.introduction, wish.failure),
         wish.failure},
        answer_to(wish, &MeshAgent::on_arrival_heard));
  }
  if (wish.proof) {
    return ports_.dialer.prove(address, *wish.proof, answer_to(wish, &MeshAgent::on_welcome));
  }
  const scheduler::LinkRequest& request = wish.wish.request;
  wish.introduction.greeting = {kMeshVersion,      request.job,      request.uid,
                                options_.instance, request.instance, wish.key_id,
                                new_nonce(),       options_.name,    options_.program};
  ports_.dialer.greet(address, wish.introduction.greeting,
                      answer_to(wish, &MeshAgent::on_challenge));
}

void MeshAgent::on_challenge(Wish& wish, const Result<Challenge>& challenge) {
  if (!challenge.ok()) return not_reached(wish, challenge.status());
  const Verdict& verdict = challenge->verdict;
  if (verdict.kind == Verdict::Kind::kRefused) {
    const bool wrong_daemon = verdict.why.code() == StatusCode::kNOT_FOUND;
    if (wrong_daemon) return not_reached(wish, verdict.why);
    return refuse(wish, Status(verdict.why.code(),
                               peer_text(wish) + " refused the link: " + verdict.why.message()));
  }
  wish.silent_since_ns = 0;
  wish.unmet = false;
  if (verdict.kind == Verdict::Kind::kNotYet) return try_later(wish);
  wish.introduction.challenge = challenge->nonce;
  wish.introduction.listener_name = challenge->name;
  wish.proof = Proof{challenge->nonce, wish.wish.local,
                     wish.key.prove_dialer(wish.introduction, wish.wish.local)};
  dial(wish);
}

void MeshAgent::on_welcome(Wish& wish, const Result<Acceptance>& acceptance) {
  if (!acceptance.ok()) return not_reached(wish, acceptance.status());  // the same proof goes again
  wish.proof.reset();
  const Verdict& verdict = acceptance->verdict;
  if (verdict.kind == Verdict::Kind::kRefused) {
    return refuse(wish, Status(verdict.why.code(),
                               peer_text(wish) + " refused the link: " + verdict.why.message()));
  }
  wish.silent_since_ns = 0;
  if (verdict.kind == Verdict::Kind::kNotYet) return try_later(wish);
  const Mac expected =
      wish.key.prove_listener(wish.introduction, wish.wish.local, acceptance->endpoint);
  if (!equal_in_constant_time(expected, acceptance->mac)) {
    ports_.counters.add(scheduler::Counter::kpeers_refused);
    return refuse(wish, Status(StatusCode::kAUTH_FAILED,
                               peer_text(wish) + " could not prove that it knows the key of job '" +
                                   wish.wish.request.job + "'"));
  }
  wish.next_try_ns = kNever;  // until the transport has connected
  connect(wish, wish.introduction, acceptance->endpoint);
}

void MeshAgent::on_arrival_heard(Wish& wish, const Result<Verdict>& verdict) {
  if (!verdict.ok()) return not_reached(wish, verdict.status());
  end(wish);  // refused or not: a link that is up here has a heartbeat, which tells
}

// The dialed side asks the address that the job named whether it is of another version, user or
// key.
void MeshAgent::ask_back(Wish& wish, const Status& doubt) {
  wish.doubt = doubt;
  if (wish.dials || wish.attempt != 0 || now_ns_ < wish.next_ask_ns) return;
  wish.next_ask_ns = now_ns_ + kAskPauseNs;
  const scheduler::LinkRequest& request = wish.wish.request;
  const Greeting question{kMeshVersion,      request.job,      request.uid,
                          options_.instance, request.instance, wish.key_id,
                          new_nonce(),       options_.name,    options_.program};
  ports_.dialer.greet(wish.current_address(), question, answer_to(wish, &MeshAgent::on_asked_back));
}

void MeshAgent::on_asked_back(Wish& wish, const Result<Challenge>& answer) {
  if (!answer.ok()) {
    ports_.dialer.forget(wish.current_address());
    ++wish.address;
    return;
  }
  const bool confirmed = answer->verdict.kind == Verdict::Kind::kRefused &&
                         answer->verdict.why.code() == wish.doubt.code();
  const bool waits = wish.challenge == Nonce{};  // else the right one has come meanwhile
  if (confirmed && waits) refuse(wish, Status(wish.doubt));
}

bool MeshAgent::on_loopback(const Wish& wish) const {
  const NetworkList loopback = NetworkList::loopback();
  return loopback.contains(host_of(options_.address)) &&
         loopback.contains(host_of(wish.current_address()));
}

// The dialed side of two daemons on loopback would wait in vain for one of another machine.
void MeshAgent::look_near(Wish& wish) {
  wish.next_ask_ns = now_ns_ + kAskPauseNs;
  const scheduler::LinkRequest& request = wish.wish.request;
  const Greeting question{kMeshVersion,      request.job,      request.uid,
                          options_.instance, request.instance, wish.key_id,
                          new_nonce(),       options_.name,    options_.program};
  ports_.dialer.greet(wish.current_address(), question,
                      answer_to(wish, &MeshAgent::on_looked_near));
}

void MeshAgent::on_looked_near(Wish& wish, const Result<Challenge>& answer) {
  const bool another = answer.ok() && answer->verdict.kind == Verdict::Kind::kRefused &&
                       answer->verdict.why.code() == StatusCode::kNOT_FOUND;
  const bool stands_still =
      !answer.ok() && answer.status().code() == StatusCode::kTIMED_OUT;  // which others see to
  wish.unmet = another || !(answer.ok() || stands_still);
  if (wish.unmet) not_reached(wish, another ? answer->verdict.why : answer.status());
}

void MeshAgent::try_later(Wish& wish) {
  wish.pause_ns = std::clamp(wish.pause_ns * 2, options_.retry_first_ns, options_.retry_max_ns);
  wish.next_try_ns = now_ns_ + wish.pause_ns;
}

// The next call connects anew: gRPC's own pause before it does would follow the wall clock. What a
// connection met is for this daemon's log: clients name the addresses, and would learn of any host
// which of its ports are open.
void MeshAgent::not_reached(Wish& wish, const Status& why) {
  ports_.dialer.forget(wish.current_address());
  wish.silence = why;
  if (wish.silent_since_ns == 0) wish.silent_since_ns = now_ns_;
  const bool near = wish.unmet && why.code() != StatusCode::kTIMED_OUT;
  const uint64_t limit_ns = near ? options_.near_ns : options_.unreachable_ns;
  if (now_ns_ - wish.silent_since_ns >= limit_ns) {
    const std::string told =
        peer_text(wish) + " cannot be reached for " + std::to_string(limit_ns / kSecond) + " s";
    refusals_.warn(now_ns_, told + ": " + why.message());
    const bool of_a_daemon = why.code() == StatusCode::kNOT_FOUND;
    return refuse(wish, Status(StatusCode::kUNAVAILABLE,
                               told + (of_a_daemon ? ": " + why.message() : "") +
                                   "; its mesh.listen must be open to this machine, whose daemon's "
                                   "log has the cause" +
                                   loopback_hint(wish)));
  }
  if (!wish.proof) ++wish.address;
  try_later(wish);
}

}  // namespace cgx::daemon
