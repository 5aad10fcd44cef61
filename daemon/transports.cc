#include "daemon/transports.h"

#include <algorithm>

#include "daemon/transport_options.h"

namespace cgx::daemon {
namespace {

constexpr std::string_view kAuto = "auto";

struct Maker {
  std::string_view name;
  Result<TransportFactory> (*make)(const v1::Config&);
};
#define X(name, summary) {#name, &make_##name},
constexpr Maker kMakers[] = {
#include "transport/transports.def"
};
#undef X

const Maker* find_maker(std::string_view name) {
  const Maker* const found = std::find_if(std::begin(kMakers), std::end(kMakers),
                                          [&](const Maker& maker) { return maker.name == name; });
  return found == std::end(kMakers) ? nullptr : found;
}

}  // namespace

// UCX where RDMA is configured: nothing else speaks it. Between sockets tcp, which lets no stranger
// in and is as fast.
std::string transport_name(const v1::Transport& words) {
  if (words.name() != kAuto) return words.name();
  return only_tcp(words) ? "tcp" : "ucx";
}

std::string transport_names() {
  std::string names(kAuto);
  for (const Maker& maker : kMakers) names += ", " + std::string(maker.name);
  return names;
}

Status check_transport(std::string_view name) {
  if (name == kAuto || find_maker(name) != nullptr) return {};
  return invalid_argument("\"" + std::string(name) + "\" is no transport: " + transport_names());
}

Result<TransportChoice> choose_transport(const v1::Config& config) {
  const std::string name = transport_name(config.transport());
  CGX_RETURN_IF_ERROR(check_transport(name));
  TransportChoice choice{name, {}};
  CGX_ASSIGN_OR_RETURN(choice.make, find_maker(name)->make(config));
  return choice;
}

}  // namespace cgx::daemon
