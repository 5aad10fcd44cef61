#include "daemon/operators/metrics_server.h"

#include <chrono>

#include "config/text.h"
#include "daemon/base/clock.h"
#include "daemon/net/http_door.h"
#include "daemon/net/interfaces.h"
#include "daemon/operators/concealed.h"
#include "daemon/operators/metrics.h"
#include "daemon/operators/status_json.h"
#include "daemon/operators/watch.h"

namespace cgx::daemon {
namespace {

// Its own files and figures; nothing from elsewhere, nothing within the HTML.
constexpr const char kPageMay[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:";

Moments now() {
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  const auto unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count();
  return {monotonic_ns(), static_cast<uint64_t>(unix_ns)};
}

}  // namespace

class MetricsServer::Pages {
 public:
  Pages(const MetricsOptions& options, OperatorPort& port)
      : options_(options), port_(port), watch_(port, options.job_names) {}

  Status open() {
    CGX_ASSIGN_OR_RETURN(
        TcpListener listener,
        TcpListener::open(address_of(options_.address, options_.port), "metrics.port"));
    CGX_ASSIGN_OR_RETURN(
        door_, HttpDoor::create(std::move(listener),
                                {.on_junk = options_.on_junk, .on_share = options_.on_share},
                                [this](const std::string& path) { return page(path); }));
    return {};
  }
  uint16_t port() const { return door_->port(); }

 private:
  HttpAnswer page(const std::string& path) {
    if (path == "/metrics") {
      return made("text/plain; version=0.0.4; charset=utf-8", [this](const Snapshot& snapshot) {
        return watch_.look([&](const Tally& tally, const auto&...) {
          return metrics_text(snapshot, tally, options_.facts, options_.log_dropped());
        });
      });
    }
    if (path == "/healthz") {
      return made("text/plain", [](const Snapshot&) { return std::string("ok\n"); });
    }
    if (path == "/status.json") {
      return made("application/json", [this](const Snapshot& snapshot) {
        return status_json(snapshot, watch_, options_.facts, now());
      });
    }
    const PageFile* const file = page_file(path);
    if (file == nullptr) return {.status = 404, .body = "no such page\n"};
    return {.type = file->type,
            .body = std::string(file->content),
            .headers = std::string("Content-Security-Policy: ") + kPageMay + "\r\n"};
  }

  template <typename Print>
  HttpAnswer made(const char* type, const Print& print) {
    Result<Snapshot> snapshot = port_.snapshot(options_.snapshot_timeout_ns);
    if (!snapshot.ok()) {
      return {.status = 503, .body = config::plain_text(snapshot.status().to_string()) + "\n"};
    }
    if (!options_.job_names) conceal(*snapshot);
    return {.type = type, .body = print(*snapshot)};
  }

  const MetricsOptions options_;
  OperatorPort& port_;
  Watch watch_;
  std::unique_ptr<HttpDoor> door_;
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::create(const MetricsOptions& options,
                                                             OperatorPort& port) {
  CGX_ASSERT(options.log_dropped && options.on_junk);
  auto pages = std::make_unique<Pages>(options, port);
  CGX_RETURN_IF_ERROR(pages->open());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(pages)));
}

MetricsServer::MetricsServer(std::unique_ptr<Pages> pages) : pages_(std::move(pages)) {}
MetricsServer::~MetricsServer() = default;

uint16_t MetricsServer::port() const {
  return pages_->port();
}

}  // namespace cgx::daemon
