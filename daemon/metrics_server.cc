#include "daemon/metrics_server.h"

#include <httplib.h>

#include <chrono>
#include <thread>

#include "config/text.h"
#include "daemon/clock.h"
#include "daemon/concealed.h"
#include "daemon/metrics.h"
#include "daemon/status_json.h"
#include "daemon/watch.h"

namespace cgx::daemon {
namespace {

constexpr int kThreads = 2;
constexpr int kReadTimeoutSeconds = 2;
// Its own files and figures; nothing from elsewhere, nothing within the HTML.
constexpr const char kPageMay[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:";

Moments now() {
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  const auto unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(unix_time).count();
  return {monotonic_ns(), static_cast<uint64_t>(unix_ns)};
}

// httplib's default also sets SO_REUSEPORT: a second daemon would silently share the port.
void reuse_address_only(socket_t socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

}  // namespace

class MetricsServer::Http {
 public:
  Http(const MetricsOptions& options, OperatorPort& port)
      : options_(options), port_(port), watch_(port, options.job_names) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_socket_options(reuse_address_only);
    server_.set_read_timeout(kReadTimeoutSeconds);
    server_.set_write_timeout(kReadTimeoutSeconds);
    server_.set_keep_alive_timeout(kReadTimeoutSeconds);
    server_.set_payload_max_length(4096);
    server_.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (response.status == 400) options_.on_junk();
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      answer(response, "text/plain; version=0.0.4; charset=utf-8",
             [this](const Snapshot& snapshot) {
               return watch_.look([&](const Tally& tally, const auto&...) {
                 return metrics_text(snapshot, tally, options_.facts, options_.log_dropped());
               });
             });
    });
    server_.Get("/healthz", [this](const httplib::Request&, httplib::Response& response) {
      answer(response, "text/plain", [](const Snapshot&) { return std::string("ok\n"); });
    });
    server_.Get("/status.json", [this](const httplib::Request&, httplib::Response& response) {
      answer(response, "application/json", [this](const Snapshot& snapshot) {
        return status_json(snapshot, watch_, options_.facts, now());
      });
    });
    server_.Get(R"(/[\w.]*)", [](const httplib::Request& request, httplib::Response& response) {
      const PageFile* const file = page_file(request.path);
      if (file == nullptr) {
        response.status = 404;
        return;
      }
      response.set_header("Content-Security-Policy", kPageMay);
      response.set_content(file->content.data(), file->content.size(), file->type);
    });
  }
  ~Http() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    const bool any = options_.port == 0;
    const int bound =
        any ? server_.bind_to_any_port(options_.address)
            : (server_.bind_to_port(options_.address, options_.port) ? options_.port : -1);
    if (bound < 0) {
      return {StatusCode::kUNAVAILABLE, "metrics.port: cannot listen on " + options_.address + ":" +
                                            std::to_string(options_.port)};
    }
    bound_port_ = static_cast<uint16_t>(bound);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before the loop runs would be lost. Bounded: the thread only has to be scheduled.
    while (!server_.is_running()) std::this_thread::yield();
    return {};
  }
  uint16_t port() const { return bound_port_; }

 private:
  template <typename Print>
  void answer(httplib::Response& response, const char* type, const Print& print) {
    Result<Snapshot> snapshot = port_.snapshot(options_.snapshot_timeout_ns);
    if (snapshot.ok() && !options_.job_names) conceal(*snapshot);
    if (snapshot.ok()) {
      response.set_content(print(*snapshot), type);
    } else {
      response.status = 503;
      response.set_content(config::plain_text(snapshot.status().to_string()) + "\n", "text/plain");
    }
  }

  const MetricsOptions options_;
  OperatorPort& port_;
  Watch watch_;
  uint16_t bound_port_ = 0;
  httplib::Server server_;
  std::thread thread_;
};

Result<std::unique_ptr<MetricsServer>> MetricsServer::create(const MetricsOptions& options,
                                                             OperatorPort& port) {
  CGX_ASSERT(options.log_dropped && options.on_junk);
  auto http = std::make_unique<Http>(options, port);
  CGX_RETURN_IF_ERROR(http->start());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(http)));
}

MetricsServer::MetricsServer(std::unique_ptr<Http> http) : http_(std::move(http)) {}
MetricsServer::~MetricsServer() = default;

uint16_t MetricsServer::port() const {
  return http_->port();
}

}  // namespace cgx::daemon
