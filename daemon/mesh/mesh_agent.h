// Introduces this daemon to others, one link at a time: the side with the smaller instance dials,
// the other waits to be dialed; both must want the link.
// Thread rule: an agent on a thread of its own. What it implements of LinkMaker and MeshListener
// may be called from anywhere; the dialer calls back from anywhere.
//
// Invariants: a wish ends in exactly one link_made or link_refused, unless it is withdrawn; nothing
// of a peer is believed before its MAC, and no wish is refused for what a caller without one says,
// only for what the address that the job named answers; only addresses inside the trusted networks
// are dialed, and none where this process listens itself; all a stranger can cause is bounded
// (challenges, rate).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/agent.h"
#include "daemon/base/clock.h"
#include "daemon/base/limited_events.h"
#include "daemon/base/mailbox.h"
#include "daemon/base/unique_function.h"
#include "daemon/data/links_port.h"
#include "daemon/data/sessions_port.h"
#include "daemon/mesh/link_keys.h"
#include "daemon/mesh/mesh_handshake.h"
#include "daemon/net/networks.h"

namespace cgx::daemon {

template <typename T>
using MeshAnswer = UniqueFunction<void(Result<T>)>;

// The way out. Answers come exactly once, from any thread, an error if nobody was reached in time.
class MeshDialer {
 public:
  virtual ~MeshDialer() = default;
  virtual void greet(const std::string& address, const Greeting& greeting,
                     MeshAnswer<Challenge> answer) = 0;
  virtual void prove(const std::string& address, const Proof& proof,
                     MeshAnswer<Acceptance> answer) = 0;
  virtual void arrive(const std::string& address, const Arrival& arrival,
                      MeshAnswer<Verdict> answer) = 0;
  // Nobody waits for a call there: the next one makes a new connection.
  virtual void forget(const std::string& address) = 0;
  // Calls that are overdue get their errors; returns when the next one will be, kNever: none is.
  virtual uint64_t expire(uint64_t now_ns) = 0;
};

// The way in. `host`: the numeric address the request came from.
class MeshListener {
 public:
  virtual ~MeshListener() = default;
  virtual void greeted(const std::string& host, Greeting greeting,
                       UniqueFunction<void(Challenge)> answer) = 0;
  virtual void proved(const std::string& host, Proof proof,
                      UniqueFunction<void(Acceptance)> answer) = 0;
  virtual void arrived(const std::string& host, Arrival arrival,
                       UniqueFunction<void(Verdict)> answer) = 0;
};

using IsOwn = std::function<bool(const std::string& address)>;

struct MeshOptions {
  wire::InstanceId instance{};
  std::string name;
  std::string program;      // that all daemons of a job must be: "cgxd 0.1.0"
  std::string address;      // advertised, for messages
  std::string cluster_key;  // empty: job keys alone
  NetworkList trusted = NetworkList::loopback();
  // Looks where this process listens, and says whether an address is one of those; empty: only
  // `address` is.
  std::function<IsOwn()> look_at_own = {};
  uint64_t deadline_ns = 120 * kSecond;    // both sides must have asked by then
  uint64_t unreachable_ns = 10 * kSecond;  // nobody answers at any of the peer's addresses
  uint64_t near_ns = 1 * kSecond;          // nobody listens there, and both are on loopback
  uint64_t grace_ns = 2 * kSecond;         // a greeting that nearly fits may be for a later wish
  uint64_t challenge_ns = 10 * kSecond;
  uint64_t retry_first_ns = 20 * kMillisecond;
  uint64_t retry_max_ns = 500 * kMillisecond;
  uint32_t greetings_per_second = 500;      // shared by the hosts that greet
  uint32_t own_greetings_per_second = 200;  // of one user, to one address
};

class MeshAgent final : public Agent, public LinkMaker, public MeshListener {
 public:
  struct Ports {
    LinksPort& host;
    MeshDialer& dialer;
    EdgeCounters& counters;
    scheduler::EventSink& events;
    LinkKeys* keys = nullptr;  // told the key of each link that is made
  };

  MeshAgent(MeshOptions options, const Ports& ports);
  ~MeshAgent() override;

  std::string_view name() const override { return "cgxd-mesh"; }
  Status on_start() override;
  void on_stop() override { inbox_.close(); }
  int do_work(uint64_t now_ns) override;
  uint64_t next_deadline_ns() const override;
  bool prepare_sleep() override { return inbox_.empty(); }

  bool want(LinkWish wish) override;
  void unwant(LinkSerial serial) override;
  void connected(LinkSerial serial, const Status& status) override;
  void greeted(const std::string& host, Greeting greeting,
               UniqueFunction<void(Challenge)> answer) override;
  void proved(const std::string& host, Proof proof,
              UniqueFunction<void(Acceptance)> answer) override;
  void arrived(const std::string& host, Arrival arrival,
               UniqueFunction<void(Verdict)> answer) override;

 private:
  using Message = UniqueFunction<void()>;
  struct Wish;
  struct Issued;
  struct Refusal {  // of a wish that is gone; the peer may still ask
    std::string job;
    wire::InstanceId peer{};
    KeyId key_id{};
    uint32_t uid = 0;
    Status why;
    uint64_t expires_ns = 0;
  };
  using Wishes = std::map<LinkSerial, std::unique_ptr<Wish>>;

  // Wishes.
  void add(LinkWish wish);
  Status check(Wish& wish);
  bool is_own(const std::string& address);
  void connect(Wish& wish, const Introduction& both, const transport::Endpoint& remote);
  void on_connected(Wish& wish, const Status& status);
  void made(Wish& wish);
  void fail(Wish& wish, const Status& why);
  void refuse(Wish& wish, const Status& why);  // destroys the wish
  void end(Wish& wish);                        // likewise
  void expire();
  bool outside(const std::string& address) const;
  std::string loopback_hint(const Wish& wish) const;
  std::string peer_text(const Wish& wish) const;

  // The dialing side.
  template <typename T>
  MeshAnswer<T> answer_to(Wish& wish, void (MeshAgent::*handler)(Wish&, const Result<T>&));
  void dial(Wish& wish);
  void on_challenge(Wish& wish, const Result<Challenge>& challenge);
  void on_welcome(Wish& wish, const Result<Acceptance>& acceptance);
  void on_arrival_heard(Wish& wish, const Result<Verdict>& verdict);
  void ask_back(Wish& wish, const Status& doubt);
  void on_asked_back(Wish& wish, const Result<Challenge>& answer);
  void look_near(Wish& wish);
  void on_looked_near(Wish& wish, const Result<Challenge>& answer);
  bool on_loopback(const Wish& wish) const;
  void try_later(Wish& wish);
  void not_reached(Wish& wish, const Status& why);

  // The dialed side.
  Challenge answer_greeting(const std::string& host, const Greeting& greeting);
  Verdict judge(const std::string& host, const Greeting& greeting, Wish*& wish);
  Verdict judge_near_miss(const std::string& host, const Greeting& greeting);
  Status other_version(const std::string& host, const Greeting& greeting) const;
  Status misfit(const std::string& host, const Greeting& greeting, const Wish& wish) const;
  bool keeps_coming(const Greeting& greeting, Wish& wish);
  Status refused_lately(const Greeting& greeting) const;
  void answer_proof(const std::string& host, const Proof& proof,
                    UniqueFunction<void(Acceptance)> answer);
  void accept(Issued& issued, Wish& wish, const Proof& proof,
              UniqueFunction<void(Acceptance)> answer);
  Status check_proof(const std::string& host, const Introduction& both, const Wish& wish,
                     const Proof& proof) const;
  Verdict answer_arrival(const Arrival& arrival);
  Verdict answer_failure(const Arrival& arrival);
  Verdict stranger(const std::string& host, const Status& why);
  bool within_rate(const std::string& host);
  bool challenges_left(const std::string& holder) const;
  bool greets_in_time(const Wish& wish);
  Issued* find_issued(const Nonce& challenge);

  MeshOptions options_;
  Ports ports_;
  LimitedEvents refusals_;
  Mailbox<Message> inbox_;
  Wishes wishes_;
  std::map<Nonce, Issued> issued_;    // limited
  std::map<Nonce, Issued> finished_;  // their wishes have ended; a lost answer is asked for again
  std::deque<Refusal> refused_;       // bounded
  uint64_t next_attempt_ = 1;
  uint64_t now_ns_ = 0;
  uint64_t next_overdue_ns_ = kNever;  // a call of the dialer
  uint64_t rate_second_ns_ = 0;
  scheduler::Share rate_;  // of this second
  uint64_t own_rate_second_ns_ = 0;
  std::map<std::pair<uint32_t, std::string>, uint32_t> own_rate_;  // likewise, by uid and address
  IsOwn is_own_;                                                   // of this round
  ThreadOwner owner_;
};

}  // namespace cgx::daemon
