// A store for ranks that have none: the process of rank 0 serves it at CGX_LEADER=host:port, all
// ranks ask it over TCP. Nothing is encrypted and nobody is asked who he is: whoever reaches the
// port may read the job's key, as in the stores of launchers. For networks one trusts.
//
//   request := magic u32 "CGXL", what u8 (1 put, 2 get), key bytes u32, value bytes u32, key, value
//   reply   := magic u32 "CGXL", found u8, value bytes u32, value
//
// Little endian.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/deadline.h"
#include "client/rendezvous.h"
#include "proto/wire/unique_fd.h"

struct addrinfo;

namespace cgx::client {

// Thread rule: open and destroy on one thread; a thread of its own serves. Invariant: keys, values
// and connections are bounded; a connection that breaks the form is closed, and so is one that asks
// for nothing where there is room for no other.
class LeaderServer {
 public:
  // NOT_FOUND: the host is another machine's, nobody knows its name yet, or somebody serves there
  // already.
  static Result<std::unique_ptr<LeaderServer>> open(const std::string& address);
  ~LeaderServer();
  int listening() const { return listening_.get(); }  // not to be inherited
  // The address, where no other machine reaches it; else empty.
  const std::string& loopback() const { return loopback_; }
  // Until nobody is connected any more.
  void wait_for_others(Deadline deadline) const;

 private:
  struct Connection;
  class Book;

  LeaderServer(UniqueFd listening, UniqueFd wake);
  void serve();
  bool let_in(std::vector<Connection>& connections);
  static bool make_room(std::vector<Connection>& connections);

  UniqueFd listening_, wake_;
  const std::string loopback_;
  std::atomic<size_t> connected_{0};
  std::thread thread_;
};

// One connection to it at a time. Thread rule: the calling thread.
class LeaderStore final : public Store {
 public:
  // Tries until the deadline: the leader may not be there yet. go_on is asked between two tries and
  // while an answer is awaited, here and later.
  // While nobody knows the leader's name, resolvers are asked ever less often; `named` is called
  // each time, and once more when they know the name.
  using GoOn = std::function<Status()>;
  static Result<std::unique_ptr<LeaderStore>> connect(
      const std::string& address, Deadline deadline, const GoOn& go_on,
      const GoOn& named = [] { return Status(); },
      std::chrono::milliseconds silence = std::chrono::seconds(10));

  Status put(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::byte>> get(const std::string& key) override;

 private:
  LeaderStore(std::string address, Deadline deadline, GoOn go_on, std::chrono::milliseconds silence)
      : address_(std::move(address)),
        go_on_(std::move(go_on)),
        silence_(silence),
        deadline_(deadline) {}
  struct Answer {
    bool found = false;
    std::vector<std::byte> value;
  };
  Result<Answer> ask(uint8_t what, const std::string& key, std::span<const std::byte> value);
  Result<Answer> ask_once(uint8_t what, const std::string& key, std::span<const std::byte> value);
  Status await(int fd, short events) const;
  Result<int> dial(const addrinfo& place, UniqueFd& fd) const;
  Result<UniqueFd> dial() const;
  Status dial_again();
  Status read_all(std::byte* to, size_t bytes) const;
  Status write_all(std::span<const std::byte> bytes) const;
  Status lost() const;

  const std::string address_;
  const GoOn go_on_;
  const std::chrono::milliseconds silence_;  // so long, and it is connected to anew
  Deadline deadline_;
  UniqueFd fd_;
};

}  // namespace cgx::client
