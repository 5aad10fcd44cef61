#include "daemon/operators/concealed.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "proto/wire/frame.h"

namespace cgx::daemon {
namespace {

std::string concealed(const char* what, std::string_view name) {
  char text[32];
  const uint64_t number = wire::checksum(std::as_bytes(std::span(name)));
  std::snprintf(text, sizeof text, "%s-%08x", what, static_cast<unsigned>(number));
  return text;
}

}  // namespace

std::string concealed_job(std::string_view name) {
  return concealed("job", name);
}

std::string concealed_communicator(std::string_view name) {
  return concealed("communicator", name);
}

void conceal(scheduler::Snapshot& snapshot) {
  for (scheduler::CommunicatorSnapshot& one : snapshot.communicators) {
    one.job = concealed_job(one.job);
    one.name = concealed_communicator(one.name);
    one.error.resize(std::min(one.error.find(':'), one.error.size()));
  }
  for (scheduler::PeerSnapshot& one : snapshot.peers) {
    one.job = concealed_job(one.job);
    const size_t slash = std::min(one.name.rfind('/'), one.name.size());  // "communicator/machine"
    const std::string machine = one.name.substr(slash);
    one.name.resize(slash);
    one.name = concealed_communicator(one.name);
    one.name += machine;
  }
  for (scheduler::SessionSnapshot& one : snapshot.sessions) {
    one.job = concealed_job(one.job);
    one.pid = 0;
  }
}

}  // namespace cgx::daemon
