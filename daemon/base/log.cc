#include "daemon/base/log.h"

#include <poll.h>
#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <atomic>

#include "config/text.h"

namespace cgx::daemon {
namespace {

// Text: 2026-11-21T02:48:32.123Z warning rank is late job=a rank=3
// JSON: {"time":"2026-11-21T02:48:32.123Z","level":"warning","message":"rank is
// late","job":"a",...}
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%eZ %l %v";
constexpr const char* kJsonPattern =
    R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":%v})";

constexpr int kBlockedWaitMs = 100;  // for the first line a reader does not take

// Writes whole lines and never blocks for long: while the reader does not read, or where there is
// no room, lines are dropped. Behind one that was cut the next begins a new line.
class FdSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FdSink(int fd) : fd_(fd) {}
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    if (torn_) line.push_back('\n');
    formatter_->format(message, line);
    pollfd ready{fd_, POLLOUT, 0};
    const bool writable = ::poll(&ready, 1, blocked_ ? 0 : kBlockedWaitMs) == 1;
    blocked_ = !writable;
    const ssize_t taken = writable ? ::write(fd_, line.data(), line.size()) : 0;
    if (taken > 0) torn_ = line[static_cast<size_t>(taken) - 1] != '\n';
    if (taken != static_cast<ssize_t>(line.size())) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  void flush_() override {}

 private:
  const int fd_;
  bool blocked_ = false;
  bool torn_ = false;  // what was written last is not the end of a line
  std::atomic<uint64_t> dropped_{0};
};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::string text_payload(std::string_view message, std::span<const LogField> fields) {
  std::string out = config::plain_text(message);
  for (const LogField& field : fields) {
    const std::string value = config::plain_text(field.value);
    const bool quote = value.empty() || value.find_first_of(" \"=") != std::string::npos;
    out.append(" ").append(field.key).append("=");
    out += quote ? config::json_quoted(value) : value;
  }
  return out;
}

// The rest of the object after `"message":`.
std::string json_payload(std::string_view message, std::span<const LogField> fields) {
  std::string out = config::json_quoted(config::plain_text(message));
  for (const LogField& field : fields) {
    out += "," + config::json_quoted(field.key) + ":";
    out += field.is_number ? field.value : config::json_quoted(config::plain_text(field.value));
  }
  return out;
}

// A line that is too long loses its fields, then the end of its message.
std::string payload(LogFormat format, std::string_view message, std::span<const LogField> fields) {
  constexpr size_t kRoom = kLogLineBytes - 128;  // time, level, braces
  const auto print = format == LogFormat::kText ? text_payload : json_payload;
  std::string out = print(message, fields);
  if (out.size() > kRoom) out = print(std::string(message.substr(0, kRoom / 8)) + "...", {});
  return out;
}

}  // namespace

class Log::Pipeline {
 public:
  explicit Pipeline(const LogSettings& settings)
      : sink_(std::make_shared<FdSink>(settings.fd)),
        pool_(std::make_shared<spdlog::details::thread_pool>(kLogQueueLines, 1)),
        logger_(std::make_shared<spdlog::async_logger>(
            "cgxd", sink_, pool_, spdlog::async_overflow_policy::overrun_oldest)) {
    logger_->set_level(spdlog::level::trace);
    logger_->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        settings.format == LogFormat::kText ? kTextPattern : kJsonPattern,
        spdlog::pattern_time_type::utc));
  }

  void write(LogLevel level, const std::string& text) {
    logger_->log(to_spdlog(level), spdlog::string_view_t(text));
  }
  uint64_t dropped() const { return sink_->dropped() + pool_->overrun_counter(); }

 private:
  std::shared_ptr<FdSink> sink_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
};

Result<LogLevel> parse_log_level(std::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  return invalid_argument("no log level " + std::string(text));
}

Result<LogFormat> parse_log_format(std::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return invalid_argument("no log format " + std::string(text));
}

Log::Log(const LogSettings& settings)
    : settings_(settings),
      level_(settings.level),
      pipeline_(std::make_unique<Pipeline>(settings)) {}
Log::~Log() = default;

void Log::write(LogLevel level, std::string_view message, std::span<const LogField> fields) {
  if (enabled(level)) pipeline_->write(level, payload(settings_.format, message, fields));
}

void Log::record(std::string_view message, std::initializer_list<LogField> fields) {
  pipeline_->write(LogLevel::kInfo,
                   payload(settings_.format, message, std::span(fields.begin(), fields.size())));
}

uint64_t Log::dropped() const {
  return pipeline_->dropped();
}

}  // namespace cgx::daemon
