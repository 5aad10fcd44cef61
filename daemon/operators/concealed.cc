#include "daemon/operators/concealed.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "proto/wire/frame.h"

namespace cgx::daemon {
namespace {

void conceal_name(const char* what, std::string& name) {
  char text[32];
  const uint64_t number = wire::checksum(std::as_bytes(std::span(name)));
  std::snprintf(text, sizeof text, "%s-%08x", what, static_cast<unsigned>(number));
  name = text;
}

}  // namespace

void conceal(scheduler::Snapshot& snapshot) {
  for (scheduler::CommunicatorSnapshot& one : snapshot.communicators) {
    conceal_name("job", one.job);
    conceal_name("communicator", one.name);
    one.error.resize(std::min(one.error.find(':'), one.error.size()));
  }
  for (scheduler::PeerSnapshot& one : snapshot.peers) {
    conceal_name("job", one.job);
    const size_t slash = std::min(one.name.rfind('/'), one.name.size());  // "communicator/machine"
    const std::string machine = one.name.substr(slash);
    one.name.resize(slash);
    conceal_name("communicator", one.name);
    one.name += machine;
  }
  for (scheduler::SessionSnapshot& one : snapshot.sessions) {
    conceal_name("job", one.job);
    one.pid = 0;
  }
}

}  // namespace cgx::daemon
