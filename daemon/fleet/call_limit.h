// A question to another daemon that ends in time, by our own clock: what waits for one of gRPC's
// deadlines sleeps until a moment of the wall clock, and sleeps on where that is set back.
// Thread rule: blocks the thread that asks.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "proto/wire/mutex.h"

namespace cgx::daemon {

class LimitedCall {
 public:
  // start(context, answered): the stub's asynchronous call; answered comes once.
  template <typename Start>
  grpc::Status run(std::chrono::nanoseconds limit, Start start) {
    const auto end = std::chrono::steady_clock::now() + limit;
    start(&context_, std::function<void(grpc::Status)>(
                         [this](grpc::Status status) { take(std::move(status)); }));
    if (!answered_by(end)) context_.TryCancel();
    const MutexLock lock(mutex_);
    while (!answer_) answered_.wait(mutex_);
    return *answer_;
  }

 private:
  void take(grpc::Status status) {
    const MutexLock lock(mutex_);
    answer_ = std::move(status);
    answered_.notify_all();
  }
  bool answered_by(std::chrono::steady_clock::time_point end) {
    const MutexLock lock(mutex_);
    while (!answer_ && answered_.wait_until(mutex_, end)) {
    }
    return answer_.has_value();
  }

  grpc::ClientContext context_;
  Mutex mutex_;
  Condition answered_;
  std::optional<grpc::Status> answer_ CGX_GUARDED_BY(mutex_);
};

}  // namespace cgx::daemon
