#include "client/ctl/command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace cgx::ctl {

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
