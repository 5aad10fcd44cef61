// FakeDaemon: the daemon's side of the session protocol for one machine, small enough to misbehave
// on demand. Sums fp32 in rank order. It runs in a thread of its own (or of fake_daemon_main), owns
// all its state there and is told what to do through atomics.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/ring.h"
#include "proto/wire/session_messages.h"
#include "proto/wire/unique_fd.h"

namespace cgx::testing {

class FakeDaemon {
 public:
  enum class Mood {
    kGood,
    kSilent,           // accepts connections, answers nothing
    kRefuses,          // answers before it has read anything, and closes
    kGarbageWelcome,   // random bytes instead of Welcome
    kWrongVersion,     // a Welcome of another protocol version
    kNoDescriptors,    // a Welcome without its descriptors
    kGarbageReply,     // well-formed until the handshake is over
    kWildCompletions,  // after the first record its completion cursor is nonsense
    kEvicts,           // closes the session with its reason at the first record
  };
  struct Options {
    std::string socket_path;
    Mood mood = Mood::kGood;
    bool exit_when_unused = false;  // run() returns after the last session has gone
  };

  explicit FakeDaemon(Options options);
  ~FakeDaemon();

  void start();  // in a thread of its own
  void run();    // in the caller's
  // Ends the thread, closes every descriptor: what a killed daemon looks like to its clients.
  void die();
  // From now on nothing is read or answered, but the sockets stay open: a stopped daemon.
  void freeze();
  // Takes so long before each message.
  void read_every(std::chrono::milliseconds pause) { pause_ = pause; }
  size_t reading() const { return reading_; }  // messages that it takes so long before
  // Results stay back until released: steps and calls pend.
  void hold(bool held) { held_ = held; }
  // A rank that closes its communicator is not told that its memory is its own again.
  void keep_memory() { keeps_memory_ = true; }
  // The next step that completes fails on all ranks instead.
  void fail_next_step(StatusCode code) { fail_next_ = static_cast<uint16_t>(code); }

  const std::string& path() const { return options_.socket_path; }
  uint64_t doorbells() const { return doorbells_; }
  size_t sessions() const { return session_count_; }
  size_t communicators() const { return comm_count_; }
  size_t committing() const { return committing_count_; }  // ranks that wait for the others
  size_t dropped_steps() const { return dropped_count_; }  // ranks' words, each counted once
  uint64_t timeout_ms() const { return timeout_ms_; }      // of the latest communicator
  size_t waiting() const { return waiting_count_; }  // sessions with a thread asleep on its futex

 private:
  struct Session;
  struct Comm;
  struct Member;

  void turn(int timeout_ms);
  bool anything_to_do();
  void accept_session();
  void greet(Session& session, uint32_t request);
  void read_socket(Session& session);
  void dispatch(Session& session, const wire::PacketHeader& header, std::span<const std::byte> body,
                cgx::UniqueFd fd);
  void add_arena(Session& session, uint32_t request, const wire::AddArena& message,
                 cgx::UniqueFd fd);
  void meet(Session& session, uint32_t request, const wire::Meet& message);
  void create(Session& session, uint32_t request, const wire::CreateCommunicator& message);
  void register_tensors(Session& session, const wire::RegisterTensors& message);
  void commit(Session& session, uint32_t request, const wire::Commit& message);
  void redo(Session& session, uint32_t request, const wire::RedoStep& message);
  void close_communicator(Session& session, uint32_t handle, const std::string& why);
  void reply(Session& session, uint32_t request, const wire::Reply& reply);
  bool drain(Session& session);
  void take(Session& session, const cgx_submit_record& record);
  void advance(Comm& comm);
  void advance_step(Comm& comm, uint64_t step);
  void advance_calls(Comm& comm);
  void fail_step(Comm& comm, uint64_t step, StatusCode code, const std::string& text);
  void report_failure(Comm& comm);
  void refuse(Member& member, const cgx_submit_record& record, const Status& why);
  void complete(Member& member, cgx_completion_record record, StatusCode code,
                const std::string& text);
  void end_session(Session& session);
  Comm* comm_of(Session& session, uint32_t handle, Member** member);

  const Options options_;
  cgx::UniqueFd listener_;
  std::thread thread_;
  std::atomic<bool> stop_{false}, frozen_{false}, frozen_seen_{false}, held_{false},
      keeps_memory_{false};
  std::atomic<std::chrono::milliseconds> pause_{std::chrono::milliseconds(0)};
  std::atomic<uint16_t> fail_next_{0};
  std::atomic<uint64_t> doorbells_{0}, timeout_ms_{0};
  std::atomic<size_t> session_count_{0}, comm_count_{0}, waiting_count_{0}, committing_count_{0},
      reading_{0}, dropped_count_{0};
  bool used_ = false;
  wire::InstanceId instance_{};
  std::vector<std::unique_ptr<Session>> sessions_;
  std::map<std::string, std::unique_ptr<Comm>> comms_;  // by job and name
};

}  // namespace cgx::testing
