// The daemon's log: one line per event on standard error, as text or JSON.
//
// Lines are written by a thread of their own: a blocked reader never holds up a caller. Bounded: at
// most kLogQueueLines wait and a line has at most kLogLineBytes; what does not fit is dropped and
// counted. Thread rule: write() from anywhere; create and destroy on one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "proto/wire/status.h"

namespace cgx::daemon {

constexpr size_t kLogQueueLines = 8192;
constexpr size_t kLogLineBytes = 4096;  // one pipe write that cannot be torn

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
enum class LogFormat : uint8_t { kText, kJson };
Result<LogLevel> parse_log_level(std::string_view text);  // the words of config.proto
Result<LogFormat> parse_log_format(std::string_view text);

struct LogField {
  LogField(std::string_view field_key, std::string_view text) : key(field_key), value(text) {}
  LogField(std::string_view field_key, uint64_t number)
      : key(field_key), value(std::to_string(number)), is_number(true) {}

  std::string_view key;
  std::string value;
  bool is_number = false;
};

struct LogSettings {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  int fd = 2;
};

class Log {
 public:
  explicit Log(const LogSettings& settings);
  ~Log();  // writes what is queued; a reader that does not read costs at most a moment

  // log.write(LogLevel::kWarning, "rank is late", {{"job", job}, {"rank", 3}});
  void write(LogLevel level, std::string_view message,
             std::initializer_list<LogField> fields = {}) {
    write(level, message, std::span(fields.begin(), fields.size()));
  }
  void write(LogLevel level, std::string_view message, std::span<const LogField> fields);
  // Whatever the level: who changed what, and who ended the daemon.
  void record(std::string_view message, std::initializer_list<LogField> fields);
  bool enabled(LogLevel level) const { return level >= level_.load(); }
  void set_level(LogLevel level) { level_.store(level); }
  uint64_t dropped() const;  // lines, since the start

 private:
  class Pipeline;  // keeps spdlog out of this header
  const LogSettings settings_;
  std::atomic<LogLevel> level_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace cgx::daemon
