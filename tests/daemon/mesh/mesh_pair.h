// Two mesh agents in one thread with virtual time, joined by a network that tests may interfere
// with.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/mesh/mesh_agent.h"

namespace cgx::daemon {

struct CollectedEvents final : scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view text) override { texts.emplace_back(text); }
  std::vector<std::string> texts;
};

// One daemon: its mesh agent and what it told the data agent.
class MeshSide final : public LinksPort, private MeshDialer {
 public:
  // What happens to a call on its way: changes it, or returns false to lose the answer.
  struct Interference {
    std::function<bool(Greeting&, Challenge&)> greeting = [](auto&, auto&) { return true; };
    std::function<bool(Proof&)> proof = [](auto&) { return true; };
    std::function<bool(Arrival&)> arrival = [](auto&) { return true; };
    std::string host = "127.0.0.1";  // where our calls seem to come from
  };

  MeshSide(wire::InstanceId instance, const std::string& name, std::vector<std::string>* history,
           const std::function<void(MeshOptions&)>& change = {})
      : name(name), history_(history) {
    options.instance = instance;
    options.name = name;
    options.address = name + ":1";
    if (change) change(options);
    agent = std::make_unique<MeshAgent>(
        options, MeshAgent::Ports{*this, static_cast<MeshDialer&>(*this), counters, events});
    EXPECT_TRUE(agent->on_start().ok());
  }

  LinkWish wish(const MeshSide& to, char key = 'k', const std::string& job = "train") {
    LinkWish made;
    made.serial = ++last_serial;
    made.request = {.job = job, .uid = 1000, .instance = to.options.instance};
    made.request.job_key.fill(std::byte(key));
    made.request.mesh_address = "127.0.0.1:" + to.name;
    made.local = {{std::byte(name[0])}, settings};
    return made;
  }

  void connect_link(LinkSerial serial, transport::ConnectOptions made) override {
    history_->push_back(name + " connects");
    connections[serial] = std::move(made);
    agent->connected(serial, connect_status);
  }
  void link_made(LinkSerial serial) override {
    history_->push_back(name + " up");
    ++links_made[serial];
  }
  void link_refused(LinkSerial serial, Status why) override { refusals[serial] = std::move(why); }

  uint64_t count(scheduler::Counter counter) { return counters.take(counter); }

  std::string name;
  MeshOptions options;
  std::string settings = "loopback/1";
  Status connect_status;
  std::map<LinkSerial, transport::ConnectOptions> connections;
  std::map<LinkSerial, int> links_made;
  std::map<LinkSerial, Status> refusals;
  EdgeCounters counters;
  CollectedEvents events;
  Interference interference;
  std::map<std::string, MeshSide*> network;  // by address
  std::unique_ptr<MeshAgent> agent;
  LinkSerial last_serial = 0;
  int greetings_sent = 0;

 private:
  template <typename T>
  static Result<T> lost() {
    return Status(StatusCode::kUNAVAILABLE, "lost");
  }

  void greet(const std::string& address, const Greeting& greeting,
             MeshAnswer<Challenge> answer) override {
    ++greetings_sent;
    MeshSide* to = find(address);
    if (to == nullptr) return answer(lost<Challenge>());
    auto changed = std::make_shared<Greeting>(greeting);
    Challenge unused;
    if (!interference.greeting(*changed, unused)) return answer(lost<Challenge>());
    to->agent->greeted(interference.host, *changed,
                       [answer = std::move(answer)](Challenge challenge) mutable {
                         answer(std::move(challenge));
                       });
  }
  // A lost answer: the other side has heard the question.
  void prove(const std::string& address, const Proof& proof,
             MeshAnswer<Acceptance> answer) override {
    Proof changed = proof;
    const bool kept = interference.proof(changed);
    MeshSide* to = find(address);
    if (to == nullptr) return answer(lost<Acceptance>());
    to->agent->proved(
        interference.host, changed,
        [kept, answer = std::move(answer)](Acceptance acceptance) mutable {
          answer(kept ? Result<Acceptance>(std::move(acceptance)) : lost<Acceptance>());
        });
  }
  void arrive(const std::string& address, const Arrival& arrival,
              MeshAnswer<Verdict> answer) override {
    Arrival changed = arrival;
    const bool kept = interference.arrival(changed);
    MeshSide* to = find(address);
    if (to == nullptr) return answer(lost<Verdict>());
    to->agent->arrived(interference.host, changed,
                       [kept, answer = std::move(answer)](Verdict verdict) mutable {
                         answer(kept ? Result<Verdict>(std::move(verdict)) : lost<Verdict>());
                       });
  }
  void forget(const std::string&) override {}
  uint64_t expire(uint64_t) override { return kNever; }

  MeshSide* find(const std::string& address) {
    const auto found = network.find(address);
    return found == network.end() ? nullptr : found->second;
  }

  std::vector<std::string>* history_;
};

}  // namespace cgx::daemon
