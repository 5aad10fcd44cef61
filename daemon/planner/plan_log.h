// The file in which a daemon keeps the plans of the communicators it coordinates (--record-plans),
// and reads those it is to repeat (--replay-plans).
//
// Thread rule: read on main's thread before any other exists; then the data agent's, which writes a
// line whenever a plan takes force. A line that cannot be written is said once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/wire/unique_fd.h"
#include "scheduler/engine/engine.h"

namespace cgx::daemon {

class PlanFile final : public scheduler::PlanLog {
 public:
  // Begins a new history, in PATH.1, PATH.2 ... where files of these names are there: a daemon that
  // is started again with the same words loses no record, and serves.
  static Result<std::unique_ptr<PlanFile>> create(const std::string& path,
                                                  scheduler::EventSink& events);
  static Result<std::shared_ptr<const std::vector<scheduler::PlanEntry>>> read(
      const std::string& path);

  void took_force(const scheduler::PlanEntry& entry) override;
  void looked_at(const scheduler::PlanRemark& remark) override;

 private:
  PlanFile(std::string path, UniqueFd file, scheduler::EventSink& events)
      : path_(std::move(path)), file_(std::move(file)), events_(events) {}
  Status write(std::string_view line);
  void record(const std::string& line);

  std::string path_;
  UniqueFd file_;
  uint64_t bytes_ = 0;  // of whole lines
  scheduler::EventSink& events_;
};

}  // namespace cgx::daemon
