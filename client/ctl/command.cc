#include "client/ctl/command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace cgx::ctl {
namespace {

constexpr auto kClocksDiffer = std::chrono::milliseconds(10);

}  // namespace

v1::Target target_of(const Options& options) {
  v1::Target target;
  target.set_job(options.job);
  target.set_communicator(options.communicator);
  if (options.uid != UINT32_MAX) target.set_uid(options.uid);
  return target;
}

const v1::Communicator* only_one(const v1::JobList& jobs) {
  const auto& all = jobs.communicators();
  const auto lowest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.local_machine() < b.local_machine();
  });
  const bool same = std::all_of(all.begin(), all.end(),
                                [&](const auto& each) { return each.id() == lowest->id(); });
  return all.empty() || !same ? nullptr : &*lowest;
}

int fail(ExitCode code, const std::string& message) {
  std::cerr << "cgxctl: " << message << "\n";
  return code;
}

int fail(const Status& status) {
  return fail(status.code() == StatusCode::kUNAVAILABLE ? kUnreachable : kUsage, status.message());
}

// The daemon may have time-outs of its own, which say more.
bool Caller::unanswered(const grpc::Status& status) const {
  return status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
         std::chrono::system_clock::now() + kClocksDiffer >= limit_.at;
}

std::string Caller::why(const grpc::Status& status) const {
  const bool is_path = connection_.address.starts_with("unix:");
  const std::string address = connection_.address.substr(is_path ? 5 : 0);
  if (unanswered(status)) {
    char within[64];
    std::snprintf(within, sizeof within, "%g s (%s)", limit_.seconds, limit_.option);
    return "the daemon at " + address + " has not answered within " + within;
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
    return "the daemon at " + address +
           " does not know this question: it is of an older version than this cgxctl; restart it "
           "with the version that is installed (cgxctl status shows the running one)";
  }
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  return (unreachable ? connection_.address + ": " : "") +
         config::plain_text(status.error_message());
}

int Caller::fail_call(const grpc::Status& status) const {
  const bool unreachable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  return fail(unreachable || unanswered(status) ? kUnreachable : kError, why(status));
}

std::string check_seconds(const std::string& text) {
  return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is no number of seconds";
}

void add_target(CLI::App& command, Options& options) {
  command.add_option("-j,--job", options.job, "Name of the job, if there are several");
  command.add_option("-c,--communicator", options.communicator,
                     "Name of the communicator, if the job has several");
  command.add_option("-u,--uid", options.uid, "Owner, if two users' jobs share a name");
}

size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace cgx::ctl
