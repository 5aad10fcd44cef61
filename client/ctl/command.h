// What every command of cgxctl needs: its options, one call with its deadline, one answer printed.
// Thread rule: main's thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/connection.h"
#include "client/ctl/show.h"
#include "client/ctl/table.h"
#include "config/config.h"
#include "config/text.h"
#include "proto/messages/control.pb.h"

namespace cgx::ctl {

enum ExitCode : int { kOk = 0, kError = 1, kUsage = 2, kUnreachable = 3 };

struct Options {
  Address address;
  std::string output = "table";
  double timeout_s = 0;  // 0: by command
  std::string job, communicator;
  uint32_t uid = UINT32_MAX;
  std::string policy_file;
  std::vector<std::string> assignments;
  uint64_t expected_version = 0;
  std::string reason;
  bool lossy = false;
  uint64_t version = 0;  // to go back to
  double wait_s = 30;    // for an agreed plan to take force
  double limit_s = -1;   // for jobs to leave a daemon; below 0: as it is configured
  double end_s = -1;     // for the daemon's end then; below 0: some more
  uint32_t last = 100;   // events
  bool follow = false;
  bool all = false;  // every daemon of this one's jobs
  std::vector<std::string> peers;
  std::string config_file;
  std::string tensor, codec;  // to be pinned
  bool over_rules = false;
  uint32_t machines = 0;  // to be simulated; 0: as many as there are
  bool model = false;     // of a profile, for cgxsim
};

constexpr double kReadTimeoutS = 10;
constexpr double kChangeTimeoutS = 90;
constexpr double kSecondsMax = 365 * 24 * 3600;  // a longer time-out means the same
constexpr auto kLookAgain = std::chrono::milliseconds(100);

using Run = std::function<int()>;  // what the command line asks for; returns an ExitCode

v1::Target target_of(const Options& options);
// The one that a change was of: a machine has one for each of its GPUs (the lowest speaks for all).
// Null: it has ended.
const v1::Communicator* only_one(const v1::JobList& jobs);

int fail(ExitCode code, const std::string& message);
int fail(const Status& status);
std::string check_seconds(const std::string& text);  // of an option; CLI11 lets nan and inf pass
void add_target(CLI::App& command, Options& options);
size_t terminal_columns();  // of standard output; 0: it is no terminal

// One call with its deadline; the stub's method is passed as a member pointer.
class Caller {
 public:
  Caller(Connection connection, const Options& options)
      : connection_(std::move(connection)), options_(options) {}

  // Within --timeout.
  template <typename Request, typename Answer>
  grpc::Status call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Answer*),
                    const Request& request, Answer& answer, double default_timeout_s) {
    return call_within(method, request, answer,
                       options_.timeout_s > 0 ? options_.timeout_s : default_timeout_s,
                       "--timeout");
  }
  // Within what another option says.
  template <typename Request, typename Answer>
  grpc::Status call_within(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Answer*),
                           const Request& request, Answer& answer, double seconds,
                           const char* option) {
    grpc::ClientContext context;
    seconds = std::min(seconds, kSecondsMax);
    limit_ = {std::chrono::system_clock::now() +
                  std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)),
              seconds, option};
    context.set_deadline(limit_.at);
    return (connection_.stub.get()->*method)(&context, request, &answer);
  }

  // Of the last call.
  bool unanswered(const grpc::Status& status) const;
  int fail_call(const grpc::Status& status) const;
  std::string why(const grpc::Status& status) const;

 private:
  struct Limit {
    std::chrono::system_clock::time_point at;
    double seconds = 0;
    const char* option = "";
  };

  Connection connection_;
  const Options& options_;
  Limit limit_;
};

template <typename Answer, typename Show>
int print(const Answer& answer, const Options& options, Show show_table) {
  std::cout << (options.output == "json" ? config::to_json(answer)
                                         : config::plain_lines(show_table(answer)));
  return std::cout.flush() ? kOk : fail(kError, "cannot write the answer");
}

template <typename Request, typename Answer>
int read(const Options& options, const Environment& environment, const Request& request,
         grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&, Answer*),
         std::string (*text_of)(const Answer&) = show) {
  Result<Connection> connection = connect(options.address, environment);
  if (!connection.ok()) return fail(connection.status());
  Caller caller(*std::move(connection), options);
  Answer answer;
  const grpc::Status status = caller.call(method, request, answer, kReadTimeoutS);
  if (!status.ok()) return caller.fail_call(status);
  return print(answer, options, [text_of](const Answer& shown) {
    const bool is_file = std::is_same_v<Answer, v1::CurrentPolicy>;
    return cut_lines(text_of(shown), is_file ? 0 : terminal_columns());
  });
}

template <typename Request>
Request targeted(const Options& options) {
  Request request;
  *request.mutable_target() = target_of(options);
  return request;
}

}  // namespace cgx::ctl
