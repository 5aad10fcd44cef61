// One client's connection: its handshake, its messages, its end. Internal to the ipc agent.
// Thread rule: the ipc agent's.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "daemon/ipc/ipc_agent.h"

namespace cgx::daemon {

class IpcAgent::Connection {
 public:
  enum class State : uint8_t {
    kGreeting,  // nothing heard yet
    kOpening,   // Hello accepted, the data agent has not answered
    kOpen,
  };

  Connection(IpcAgent& agent, SessionSerial serial, UniqueFd socket, PeerProcess peer,
             std::string holder, Unserved::Count unserved_of_user, uint64_t deadline_ns);

  Status watch();  // socket and pidfd into the agent's poller
  // Some of them; an error: hang up, it says why. `died`: also what would have to wait.
  Status read_packets(bool died);
  void read_again();  // unless too much still waits
  // What kRANK_LOST should say of this client.
  Status death() const;
  std::string description() const;  // "process 42 (python3 train.py) of job 'a', uid 1000"

  Status on_answer(uint32_t request, const Opened& opened);
  Status on_answer(uint32_t request, const wire::Reply& reply);
  Status on_mapped(uint32_t request, ArenaMapped mapped);
  Status on_dropped(uint32_t request, ArenaDropped dropped);
  void say(const Status& why);  // if it still listens
  // Tells the client and the data agent; the connection is to be destroyed then.
  void hang_up(const Status& why);

  State state() const { return state_; }
  bool said_goodbye() const { return goodbye_; }
  SessionSerial serial() const { return serial_; }
  uid_t uid() const { return peer_.uid; }
  const std::string& holder() const { return holder_; }  // who its shares count for
  uint64_t arenas() const { return arenas_.count(); }
  uint64_t arena_bytes() const { return arena_bytes_; }
  int socket() const { return socket_.get(); }
  UniqueFd take_socket() { return std::move(socket_); }  // descriptors may wait in it unread
  int pidfd() const { return peer_.pidfd.get(); }
  uint64_t deadline_ns() const { return deadline_ns_; }
  bool paused() const { return paused_; }
  const Unserved::Count& unserved_of_user() const { return unserved_of_user_; }

 private:
  static constexpr int kPacketsPerRound = 16;
  // So many requests wait for the data agent at most; the rest stay in their sockets. Whoever asks
  // for little waits for no more of another's.
  static constexpr uint32_t kUnservedMax = 4, kUnservedOfUserMax = 32;

  // What they have no use for stays in the packet or in `fd`.
  Status handle(Packet& packet);
  Status handle_open(const wire::PacketHeader& header, std::span<const std::byte> body,
                     std::vector<UniqueFd>& fds);
  Status hello(uint32_t request, const wire::Hello& hello, UniqueFd& pidfd);
  Status drop_arena(uint32_t request, std::span<const std::byte> body);
  Status add_arena(uint32_t request, const wire::AddArena& message, std::vector<UniqueFd>& fds);
  void map_on_host(uint32_t request, const wire::AddArena& message, UniqueFd memory);
  void import_on_gpu(uint32_t request, const wire::AddArena& message, std::vector<UniqueFd> fds);
  template <typename Message>
  Status forward(uint32_t request, std::span<const std::byte> body);
  Status send(const wire::Reply& reply, uint32_t request);
  template <typename Body>
  void ask(uint32_t request, Body body);
  bool too_much_waits() const;
  // Of a session, and `sent` ones.
  Admission::Answer ask_for_descriptors(size_t sent);
  Admission::Answer ask_for_room(NextPacket next);  // for what reading it takes
  Status check_greeting(NextPacket next) const;

  IpcAgent& agent_;
  const SessionSerial serial_;
  UniqueFd socket_;
  PeerProcess peer_;
  const std::string holder_;
  const Unserved::Count unserved_ = std::make_shared<std::atomic<uint32_t>>(0);
  const Unserved::Count unserved_of_user_;  // its holder's
  bool paused_ = false;                     // its packets are not read: too much waits
  State state_ = State::kGreeting;
  bool goodbye_ = false;
  uint64_t deadline_ns_;
  Admission admission_;
  std::string job_, client_;
  ClientEnds ends_;  // until Welcome has been sent
  uint32_t hello_request_ = 0;
  std::bitset<wire::kArenasMax> arenas_;
  struct Drop {
    uint32_t first = 0, last = 0;  // requests
    bool closed = false;
  };
  std::map<uint32_t, Drop> dropped_;  // by arena, until the number is another one's
  uint64_t arena_bytes_ = 0;
};

}  // namespace cgx::daemon
