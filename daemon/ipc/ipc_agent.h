// The edge to trainers: accepts connections on the Unix socket, checks who they are and what they
// send, maps arenas, and notices when they die. Everything that may take long or be hostile happens
// here or on a thread of the user's own, so that the data agent only sees checked, decoded
// messages.
//
// Thread rule: an agent on a thread of its own; answer(), stop_accepting() and the counts may be
// used from anywhere.
// Invariants: at most `pending_max` connections have not introduced themselves, each for at most
// `handshake_ns`; a session is opened once and closed once; a client that does not read is hung up
// on; no descriptor that a client had a hand in is closed on this thread, and who has many that are
// slow to close keeps the next ones in its sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "daemon/base/agent.h"
#include "daemon/base/limited_events.h"
#include "daemon/base/mailbox.h"
#include "daemon/base/open_files.h"
#include "daemon/base/user_threads.h"
#include "daemon/data/sessions_port.h"
#include "daemon/net/listen_socket.h"
#include "daemon/net/packet_socket.h"
#include "daemon/net/peer_process.h"
#include "proto/wire/mutex.h"

namespace cgx::daemon {

struct IpcOptions {
  ListenSocketOptions socket;
  wire::InstanceId instance{};
  std::string mesh_address;
  std::string version;
  uint64_t handshake_ns = 2'000'000'000;
  uint32_t pending_max = 64;       // connections that have not introduced themselves
  uint32_t user_tasks_max = 1024;  // of one holder's, not done yet
  uint32_t sessions_max = 256;
  uint64_t arena_bytes_max = 64ull << 30;  // all arenas of one session
  uint64_t shared_bytes_max = UINT64_MAX;  // and of all sessions
  uint32_t gpu_workers_max = 128;
  std::string gpu_worker;  // program for tensors on a GPU; empty: cgxd-gpu, beside
};

class IpcAgent final : public Agent, public SessionAnswers {
 public:
  struct Ports {
    SessionsPort& host;
    EdgeCounters& counters;
    scheduler::EventSink& events;
  };

  static Result<std::unique_ptr<IpcAgent>> create(const IpcOptions& options, const Ports& ports);
  ~IpcAgent() override;

  std::string_view name() const override { return "cgxd-ipc"; }
  Status on_start() override;
  void on_stop() override;
  int do_work(uint64_t now_ns) override;
  uint64_t next_deadline_ns() const override;
  bool prepare_sleep() override { return inbox_->empty(); }
  void woken(std::span<const Poller::Ready> ready) override;

  void answer(SessionAnswer answer) override;

  // New connections are refused; sessions are told `why` when the agent stops.
  void stop_accepting(const std::string& why = {});
  uint32_t sessions_open() const { return sessions_open_.load(); }
  uint32_t connections() const { return connections_open_.load(); }  // sessions and those to be
  uint64_t sessions_ever() const { return sessions_ever_.load(); }

 private:
  class Connection;
  friend class Connection;
  using Connections = std::unordered_map<SessionSerial, std::unique_ptr<Connection>>;

  IpcAgent(const IpcOptions& options, const Ports& ports, ListenSocket listener);

  static Status no_descriptor_left();
  void accept_all();
  void pause_accepting();
  void go_on_accepting();
  void pause_reading(const Connection& connection);
  void go_on_reading();
  Unserved::Count unserved_of(const std::string& holder) const;
  void admit(UniqueFd socket, uint64_t now_ns);
  bool too_much_waits(const std::string& holder) const;  // for its threads: it gets no more places
  Status may_admit(const std::string& holder) const;
  Status may_open(const std::string& holder) const;
  scheduler::Share pending() const;
  void show_pending();
  void show_workers();
  Status may_share(const std::string& holder, uint64_t bytes) const;
  void refuse(int socket, const Status& why);  // counted, told, named in the log
  void turn_away(UniqueFd socket, const std::string& holder, const Status& why);
  void handle(SessionAnswer answer);
  void make_page(const Connection& connection, uint32_t request, Shown shown);
  void on_ready(uint64_t tag);
  void expire(uint64_t now_ns);
  void drop(Connection& connection);

  IpcOptions options_;
  Ports ports_;
  LimitedEvents refusals_;
  scheduler::Share shown_pending_, shown_workers_;
  ListenSocket listener_;
  std::shared_ptr<Mailbox<SessionAnswer>> inbox_;  // users' threads may outlive the agent
  UserThreads users_;
  const std::shared_ptr<gpu::Workers> workers_;
  Connections connections_;
  SessionSerial next_serial_ = 1;
  UniqueFd spare_fd_;  // given up to accept and refuse when descriptors run out
  Admission admission_;
  bool listening_ = false;
  bool paused_ = false;          // who comes waits at the door
  bool reading_paused_ = false;  // of some who have asked for too much
  uint64_t now_ns_ = 0;
  Mutex last_words_mutex_;
  std::string last_words_ CGX_GUARDED_BY(last_words_mutex_);
  std::atomic<bool> accepting_{true};
  std::atomic<uint32_t> sessions_open_{0}, connections_open_{0};
  std::atomic<uint64_t> sessions_ever_{0};
  ThreadOwner owner_;
};

}  // namespace cgx::daemon
