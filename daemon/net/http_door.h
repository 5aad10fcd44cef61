// HTTP for pages that anybody may read: one GET per connection, answered whole.
//
// A request reaches a thread when all of its head is there (GuardedListener), so half-open ones
// cost a place among those that wait and nothing else; an answer leaves as fast as its reader reads
// and no longer than some seconds, and a reader that stays is closed after some more. Of too many
// connections the oldest of the largest crowd goes.
// Thread rule: create and destroy on one thread; `answer` runs on the door's own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/net/guarded_listener.h"
#include "daemon/net/tcp_listener.h"

namespace cgx::daemon {

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain";
  std::string body;
  std::string headers = {};  // more of them, each with its line end
};

struct HttpOptions {
  uint64_t request_timeout_ns = 2'000'000'000;  // until all of a request's head is there
  uint64_t answer_timeout_ns = 10'000'000'000;  // until all of its answer has left
  uint64_t closing_timeout_ns = 5'000'000'000;  // then until its reader has closed the connection
  std::function<void()> on_junk;                // what is no request
  std::function<void(const scheduler::Share&)> on_share = {};
};

class HttpDoor {
 public:
  using Answer = std::function<HttpAnswer(const std::string& path)>;

  static Result<std::unique_ptr<HttpDoor>> create(TcpListener listener, const HttpOptions& options,
                                                  Answer answer);
  ~HttpDoor();
  uint16_t port() const;

 private:
  class Serving;
  explicit HttpDoor(std::unique_ptr<Serving> serving);
  std::unique_ptr<Serving> serving_;
};

}  // namespace cgx::daemon
