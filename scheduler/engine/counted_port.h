// A session's port that counts what its rank was told. Owned by the engine.
#pragma once

#include "scheduler/ports.h"

namespace cgx::scheduler {

class CountedPort final : public SessionPort {
 public:
  explicit CountedPort(SessionPort& port) : port_(port) {}

  void complete(cgx_completion_record record, std::string_view text) override {
    ++completions_;
    port_.complete(record, text);
  }
  void reply(uint32_t request, const wire::Reply& reply) override { port_.reply(request, reply); }
  uint64_t completions() const { return completions_; }

 private:
  SessionPort& port_;
  uint64_t completions_ = 0;
};

}  // namespace cgx::scheduler
