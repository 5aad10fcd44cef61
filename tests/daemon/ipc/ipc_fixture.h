// An ipc agent on a temporary socket, with a fake in the data agent's place.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "daemon/ipc/ipc_agent.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/daemon/ipc/raw_client.h"

namespace cgx::daemon {

// The data agent's place: takes every request, opens sessions at once.
class FakeHost final : public SessionsPort {
 public:
  void ask(SessionRequest request) override {
    if (std::holds_alternative<OpenSession>(request.body) && open_sessions) {
      answers->answer({request.session, request.request, Opened{}});
    }
    if (const auto* arena = std::get_if<AddMappedArena>(&request.body)) {
      if (!refuses_arenas) answers->answer({request.session, request.request, wire::Reply{}});
      if (refuses_arenas) refuse(request, *arena);
    }
    std::lock_guard lock(mutex_);
    ++asked_;
    if (!serves_) unserved_.push_back(std::move(request.unserved));
    request.unserved = {};
    requests_.push_back(std::move(request));
    arrived_.notify_all();
  }
  // False: what is asked stays unserved until it is true.
  void serve(bool serves) {
    std::lock_guard lock(mutex_);
    serves_ = serves;
    if (serves) unserved_.clear();
  }
  size_t asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  // The next request of this kind, skipping others.
  template <typename Body>
  std::pair<SessionRequest, Body*> next() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool some =
          arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return !requests_.empty(); });
      if (!some) throw std::runtime_error("no such request within 10 s");
      taken_.push_back(std::move(requests_.front()));
      requests_.pop_front();
      if (auto* body = std::get_if<Body>(&taken_.back().body)) {
        return {SessionRequest{taken_.back().session, taken_.back().request, wire::RedoStep{}, {}},
                body};
      }
    }
  }

  SessionAnswers* answers = nullptr;
  bool open_sessions = true;
  std::atomic<bool> refuses_arenas{false};

 private:
  // As the data agent does.
  void refuse(const SessionRequest& request, const AddMappedArena& arena) {
    ArenaMapped refused{
        "", arena.arena, arena.region.bytes().size(), resource_exhausted("full"), nullptr, 0};
    answers->answer({request.session, request.request, std::move(refused)});
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<SessionRequest> requests_, taken_;
  std::vector<Unserved> unserved_;
  size_t asked_ = 0;
  bool serves_ = true;
};

class Collected final : public scheduler::EventSink {
 public:
  void event(scheduler::EventLevel, std::string_view text) override {
    std::lock_guard lock(mutex_);
    texts_.emplace_back(text);
  }
  size_t size() {
    std::lock_guard lock(mutex_);
    return texts_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

class IpcAgentTest : public testing::Test {
 protected:
  void start() {
    listen();
    thread = AgentThread::start(*agent).value();
  }
  void listen() {
    options.socket.path = scratch.path() + "/cgxd.sock";
    auto created = IpcAgent::create(options, {host, counters, events});
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    agent = std::move(created).value();
    host.answers = agent.get();
  }
  RawClient connect() { return RawClient(options.socket.path); }
  RawClient open_session(const std::string& job = "train") {
    RawClient client = connect();
    client.send(wire::Hello{job, "test"}, 1);
    EXPECT_EQ(client.receive()->header.type,
              static_cast<uint16_t>(wire::SessionMessageType::kWelcome));
    return client;
  }
  // A session opened by another process, which then does `then` and sleeps for ever.
  template <typename Then>
  pid_t fork_client(Then then) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    RawClient client = connect();
    client.send(wire::Hello{"train", "forked"}, 1);
    client.receive();
    then(client);
    for (;;) ::pause();
  }

  ScratchDirectory scratch;
  FakeHost host;
  EdgeCounters counters;
  Collected events;
  IpcOptions options{.instance = {11, 12}, .mesh_address = "10.0.0.3:7701", .version = "cgxd 0.1"};
  std::unique_ptr<IpcAgent> agent;
  std::unique_ptr<AgentThread> thread;
};

}  // namespace cgx::daemon
