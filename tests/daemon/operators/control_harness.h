// A control service on a temporary Unix socket, over a fake engine.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "config/config.h"
#include "daemon/operators/control_service.h"
#include "tests/daemon/base/scratch_directory.h"
#include "tests/daemon/operators/fake_operator_port.h"

namespace cgx::daemon {

// For what other threads do: polls until it is true, at most 10 s.
template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

inline sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

inline UniqueFd listen_unix(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = unix_address(path);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(::bind(fd.get(), plain, sizeof address), 0) << path;
  EXPECT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(::listen(fd.get(), 16), 0);
  return fd;
}

inline UniqueFd connect_unix(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = unix_address(path);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(::connect(fd.get(), plain, sizeof address), 0) << path;
  return fd;
}

inline UniqueFd connect_tcp(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  EXPECT_EQ(::connect(fd.get(), plain, sizeof address), 0) << port;
  return fd;
}

// Other users may pass through it.
class OpenDirectory {
 public:
  OpenDirectory() { EXPECT_EQ(::chmod(scratch_.path().c_str(), 0755), 0); }
  std::string operator/(const std::string& name) const { return scratch_.path() + "/" + name; }

 private:
  ScratchDirectory scratch_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ControlHarness final : public StopPort {
 public:
  explicit ControlHarness(const v1::ControlPort& port_config = {}, const std::string& audit = {},
                          uint64_t idle_ns = ControlOptions().idle_ns)
      : audit_path_(audit.empty() ? directory / "audit.jsonl" : audit) {
    v1::ControlPort config = port_config;
    config::fill_defaults(config);
    port.show(two_users());
    Result<std::unique_ptr<AuditLog>> opened = AuditLog::open(audit_path(), log_);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    audit_ = *std::move(opened);
    ControlOptions options;
    options.config = config;
    options.unix_fd = listening_.get();
    options.idle_ns = idle_ns;
    options.facts = {"0.1.0", "node1", "scalar"};
    options.on_junk = [this] { junk.fetch_add(1); };
    options.on_share = [this](const scheduler::Share& share) {
      const auto held = share.holders();
      if (share.name() != "connections of cgxctl over TLS" || held.empty()) return;
      most_over_tls = std::max(most_over_tls.load(), held.front().second);
    };
    options.stop = this;
    options.diagnose = [this](const v1::DiagnoseRequest&, bool, const StillWaits&) {
      return diagnosis;
    };
    Result<std::unique_ptr<ControlService>> created =
        ControlService::create(options, port, *audit_, log_);
    EXPECT_TRUE(created.ok()) << created.status().to_string();
    if (created.ok()) service = *std::move(created);
  }

  void stop(const StopOrder&) override { stops.fetch_add(1); }
  std::optional<std::vector<std::string>> cut_off(uint64_t) override {
    const int waited = looks.fetch_add(1);
    if (waited < drain_looks) return std::nullopt;
    return left;
  }
  std::optional<Draining> draining() const override { return drains; }

  std::string socket_path() const { return directory / "control.sock"; }
  const std::string& audit_path() const { return audit_path_; }

  FakeOperatorPort port;
  std::atomic<int> junk{0}, stops{0}, looks{0};
  int drain_looks = 0;                     // how often it still drains
  std::vector<std::string> left;           // and what is cut off then
  std::optional<Draining> drains;          // from before the service is asked
  v1::Diagnosis diagnosis;                 // of all machines, as others have filled it in
  std::atomic<uint64_t> most_over_tls{0};  // connections that one host had at once
  OpenDirectory directory;

 private:
  const std::string audit_path_;
  Log log_{LogSettings{.level = LogLevel::kError}};
  std::unique_ptr<AuditLog> audit_;
  UniqueFd listening_ = listen_unix(socket_path());

 public:
  std::unique_ptr<ControlService> service;  // first to go
};

}  // namespace cgx::daemon
