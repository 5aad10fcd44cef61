#include "transport/ucx_context.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace cgx::transport {
namespace {

// Transports that cross a network. Shared memory and process copies (posix, sysv, cma, self, ...)
// are missing on purpose: between two namespaces of one machine they would bypass the link.
constexpr std::array<std::string_view, 15> kNetworkTransports = {
    "tcp",     "rc", "rc_x", "rc_v", "rc_verbs", "rc_mlx5", "dc", "dc_x",
    "dc_mlx5", "ud", "ud_x", "ud_v", "ud_verbs", "ud_mlx5", "ib"};

bool is_network(std::string_view transport) {
  return std::find(kNetworkTransports.begin(), kNetworkTransports.end(), transport) !=
         kNetworkTransports.end();
}

// A lane shows the variant UCX chose ("rc_mlx5") for what was allowed ("rc", "rc_x", "ib").
bool allows(const UcxOptions& options, std::string_view lane) {
  const auto family = [](std::string_view name) { return name.substr(0, name.find('_')); };
  return is_network(lane) &&
         std::any_of(options.transports.begin(), options.transports.end(), [&](const auto& name) {
           return family(name) == family(lane) || (name == "ib" && family(lane) != "tcp");
         });
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

Status failed(const std::string& what, ucs_status_t status) {
  return {StatusCode::kUNAVAILABLE, what + ": " + ucs_status_string(status)};
}

Status check(const UcxOptions& options) {
  if (options.transports.empty()) return invalid_argument("transports: at least one is needed");
  for (const std::string& transport : options.transports) {
    if (!is_network(transport)) {
      return invalid_argument("transports: \"" + transport +
                              "\" is no network transport known here, e.g. tcp or rc_x");
    }
  }
  for (const std::string& device : options.devices) {
    if (device.empty() || device.find(',') != std::string::npos) {
      return invalid_argument("devices: \"" + device + "\" is no device name");
    }
  }
  if (options.frame_bytes < (4u << 10) || options.frame_bytes > (1u << 20)) {
    return invalid_argument("frame_bytes: " + std::to_string(options.frame_bytes) +
                            " is outside 4096..1048576");
  }
  if (options.port_first > options.port_last || (options.port_first == 0 && options.port_last)) {
    return invalid_argument("ports: " + std::to_string(options.port_first) + "-" +
                            std::to_string(options.port_last) + " is no range");
  }
  if (std::string name = ucx_variable(); !name.empty()) {
    return invalid_argument(name + " is set in the environment; call prepare_process() in main");
  }
  if (ucx_handles_signals()) {
    return invalid_argument("UCX handles this process's signals; call prepare_process() in main");
  }
  return {};
}

// TCP registers no memory, so UCX need not watch what the process maps and unmaps.
bool only_tcp(const UcxOptions& options) {
  return std::all_of(options.transports.begin(), options.transports.end(),
                     [](const std::string& name) { return name == "tcp"; });
}

using Setting = std::pair<const char*, std::string>;

// Every setting that matters is named, so no default and no ucx.conf file decides it. Why each has
// its value: README.md. Those of a transport go without its prefix: UCX takes "TCP_RX_SEG_SIZE"
// here and silently ignores it.
std::vector<Setting> settings_of(const UcxOptions& options) {
  const std::string segment = std::to_string(options.frame_bytes + kUcxSegmentSpare);
  std::vector<Setting> settings = {
      {"TLS", join(options.transports)},
      {"NET_DEVICES", options.devices.empty() ? "all" : join(options.devices)},
      {"LOG_LEVEL", options.log_level},
      {"PROTO_ENABLE", "n"},
      {"MAX_EAGER_RAILS", "1"},
      {"RNDV_THRESH", "inf"},
      {"BCOPY_THRESH", "auto"},
      {"ZCOPY_THRESH", "inf"},
      {"KEEPALIVE_INTERVAL", "inf"},
      {"RCACHE_ENABLE", only_tcp(options) ? "n" : "try"},
      {"RX_SEG_SIZE", segment},
      {"TX_SEG_SIZE", segment},
      {"CONN_NB", "y"},
      {"MAX_NUM_EPS", "inf"},
      {"NODELAY", "y"},
      {"SNDBUF", "auto"},
      {"RCVBUF", "auto"},
      {"KEEPIDLE", "10s"},
      {"KEEPINTVL", "2s"},
  };
  if (options.port_first != 0) {
    settings.emplace_back(
        "PORT_RANGE", std::to_string(options.port_first) + "-" + std::to_string(options.port_last));
  }
  return settings;
}

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

Status make_context(const UcxOptions& options, UcxContext& ucx) {
  ucp_config_t* raw = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw);
  if (status != UCS_OK) return failed("reading UCX's defaults", status);
  const std::unique_ptr<ucp_config_t, ReleaseConfig> config(raw);
  for (const auto& [name, value] : settings_of(options)) {
    status = ucp_config_modify(config.get(), name, value.c_str());
    if (status != UCS_OK) {
      return invalid_argument(std::string("UCX refuses ") + name + "=" + value + ": " +
                              ucs_status_string(status));
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config.get(), &context);
  if (status != UCS_OK) {
    return failed("no UCX context for transports " + join(options.transports) + " on devices " +
                      (options.devices.empty() ? "all" : join(options.devices)),
                  status);
  }
  ucx.context.reset(context);
  return {};
}

Status make_worker(UcxContext& ucx) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  ucs_status_t status = ucp_worker_create(ucx.context.get(), &params, &worker);
  if (status != UCS_OK) return failed("no UCX worker", status);
  ucx.worker.reset(worker);
  status = ucp_worker_get_efd(worker, &ucx.event_fd);
  if (status != UCS_OK) return failed("no UCX event descriptor", status);
  return {};
}

}  // namespace

Result<UcxContext> make_ucx_context(const UcxOptions& options) {
  CGX_RETURN_IF_ERROR(check(options));
  UcxContext ucx;
  CGX_RETURN_IF_ERROR(make_context(options, ucx));
  CGX_RETURN_IF_ERROR(make_worker(ucx));
  return ucx;
}

std::string ucx_settings(const UcxOptions& options) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  std::vector<std::string> transports = options.transports;
  std::sort(transports.begin(), transports.end());
  return "ucx/2;lib=" + std::to_string(major) + "." + std::to_string(minor) +
         ";tls=" + join(transports) + ";frame=" + std::to_string(options.frame_bytes);
}

Status compare_ucx_settings(const std::string& ours, const std::string& theirs) {
  if (ours == theirs) return {};
  std::string_view a(ours), b(theirs);
  // Both are lists of fields with ';' between them; the first that differs is the news.
  while (true) {
    const std::string_view field_a = a.substr(0, a.find(';')), field_b = b.substr(0, b.find(';'));
    if (field_a != field_b || a.size() == field_a.size() || b.size() == field_b.size()) {
      return {StatusCode::kMISMATCH,
              "transport settings differ: ours has \"" + std::string(field_a) + "\", theirs \"" +
                  std::string(field_b) + "\" (ours \"" + ours + "\", theirs \"" + theirs + "\")"};
    }
    a.remove_prefix(field_a.size() + 1);
    b.remove_prefix(field_b.size() + 1);
  }
}

// UCX 1.13 tells an endpoint's lanes only in print: "lane[0]:  1:tcp/eth0.0 md[0] -> ...".
Status check_ucx_lanes(const UcxOptions& options, ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = ::open_memstream(&text, &size);
  if (!stream) return internal_error("open_memstream failed");
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);

  int lanes = 0;
  std::string_view rest(text, size);
  for (size_t at; (at = rest.find("lane[")) != std::string_view::npos; ++lanes) {
    rest.remove_prefix(at);
    rest.remove_prefix(std::min(rest.size(), rest.find(':') + 1));
    rest.remove_prefix(std::min(rest.size(), rest.find(':') + 1));
    const std::string transport(rest.substr(0, rest.find('/')));
    if (!allows(options, transport)) {
      return {StatusCode::kINTERNAL, "UCX chose a lane over \"" + transport + "\", allowed are " +
                                         join(options.transports)};
    }
  }
  if (lanes == 0) return internal_error("UCX shows no lane of a new endpoint");
  return {};
}

}  // namespace cgx::transport
