// The dialing side of the mesh agent: greet, prove, retry.
#include <algorithm>

#include "daemon/mesh_agent.h"
#include "daemon/mesh_wish.h"

namespace cgx::daemon {

void MeshAgent::dial(Wish& wish) {
  const LinkSerial serial = wish.wish.serial;
  const uint64_t attempt = wish.attempt = next_attempt_++;
  // Answers come from other threads; a wish withdrawn or retried meanwhile does not see them.
  if (wish.proof) {
    return ports_.dialer.prove(
        wish.current_address(), *wish.proof, [this, serial, attempt](Result<Welcome> welcome) {
          inbox_.post_wait([this, serial, attempt, welcome = std::move(welcome)] {
            if (Wish* found = find(serial, attempt)) on_welcome(*found, welcome);
          });
        });
  }
  const scheduler::LinkRequest& request = wish.wish.request;
  wish.introduction.greeting = {kMeshVersion,     request.job, request.uid, options_.instance,
                                request.instance, wish.key_id, new_nonce(), options_.name};
  ports_.dialer.greet(wish.current_address(), wish.introduction.greeting,
                      [this, serial, attempt](Result<Challenge> challenge) {
                        inbox_.post_wait([this, serial, attempt, challenge = std::move(challenge)] {
                          if (Wish* found = find(serial, attempt)) on_challenge(*found, challenge);
                        });
                      });
}

void MeshAgent::on_challenge(Wish& wish, const Result<Challenge>& challenge) {
  wish.attempt = 0;
  if (!challenge.ok()) return not_reached(wish, challenge.status());
  const Verdict& verdict = challenge->verdict;
  if (verdict.kind == Verdict::Kind::kRefused) {
    const bool wrong_daemon = verdict.why.code() == StatusCode::kNOT_FOUND;
    if (wrong_daemon) return not_reached(wish, verdict.why);
    return refuse(wish, Status(verdict.why.code(),
                               peer_text(wish) + " refused the link: " + verdict.why.message()));
  }
  wish.silent_since_ns = 0;
  if (verdict.kind == Verdict::Kind::kNotYet) return try_later(wish);
  wish.introduction.challenge = challenge->nonce;
  wish.introduction.listener_name = challenge->name;
  wish.proof = Proof{challenge->nonce, wish.wish.local,
                     wish.key.prove_dialer(wish.introduction, wish.wish.local)};
  dial(wish);
}

void MeshAgent::on_welcome(Wish& wish, const Result<Welcome>& welcome) {
  wish.attempt = 0;
  if (!welcome.ok()) return not_reached(wish, welcome.status());  // the same proof goes again
  wish.proof.reset();
  const Verdict& verdict = welcome->verdict;
  if (verdict.kind == Verdict::Kind::kRefused) {
    return refuse(wish, Status(verdict.why.code(),
                               peer_text(wish) + " refused the link: " + verdict.why.message()));
  }
  wish.silent_since_ns = 0;
  if (verdict.kind == Verdict::Kind::kNotYet) return try_later(wish);
  const Mac expected =
      wish.key.prove_listener(wish.introduction, wish.wish.local, welcome->endpoint);
  if (!equal_in_constant_time(expected, welcome->mac)) {
    ports_.counters.add(scheduler::Counter::kpeers_refused);
    return refuse(wish, Status(StatusCode::kAUTH_FAILED,
                               peer_text(wish) + " could not prove that it knows the key of job '" +
                                   wish.wish.request.job + "'"));
  }
  made(wish, wish.introduction, /*dialed=*/true, welcome->endpoint);
}

void MeshAgent::try_later(Wish& wish) {
  wish.pause_ns = std::clamp(wish.pause_ns * 2, options_.retry_first_ns, options_.retry_max_ns);
  wish.next_try_ns = now_ns_ + wish.pause_ns;
}

void MeshAgent::not_reached(Wish& wish, const Status& why) {
  wish.silence = why;
  if (wish.silent_since_ns == 0) wish.silent_since_ns = now_ns_;
  if (now_ns_ - wish.silent_since_ns >= options_.unreachable_ns) {
    return refuse(wish, Status(StatusCode::kUNAVAILABLE,
                               peer_text(wish) + " cannot be reached for " +
                                   std::to_string(options_.unreachable_ns / kSecond) +
                                   " s: " + why.message()));
  }
  if (!wish.proof) ++wish.address;
  try_later(wish);
}

}  // namespace cgx::daemon
