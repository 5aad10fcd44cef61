// A transport that is made when the first other machine is to be reached: a daemon that serves one
// machine opens no port. Thread rule: as any transport.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "daemon/base/unique_function.h"
#include "transport/transport.h"

namespace cgx::daemon {

class LateTransport final : public transport::Transport {
 public:
  using Make = UniqueFunction<Result<std::unique_ptr<transport::Transport>>()>;
  explicit LateTransport(Make make) : make_(std::move(make)) {}

  bool made() const { return made_ != nullptr; }
  Status make() {
    if (made()) return {};
    CGX_ASSIGN_OR_RETURN(made_, make_());
    if (lose_after_ms_) made_->lose_after(*lose_after_ms_);
    return {};
  }

  std::string_view name() const override { return made() ? made_->name() : "none yet"; }
  transport::Caps caps() const override { return made() ? made_->caps() : transport::Caps{}; }
  Result<transport::Endpoint> local_endpoint() override {
    CGX_RETURN_IF_ERROR(make());
    return made_->local_endpoint();
  }
  // Peers exist only once it is made.
  Result<transport::PeerId> connect(const transport::ConnectOptions& options) override {
    CGX_RETURN_IF_ERROR(make());
    return made_->connect(options);
  }
  void close(transport::PeerId peer) override { made_->close(peer); }
  Status send(transport::PeerId to, const transport::Frame& frame,
              transport::SendToken token) override {
    return made_->send(to, frame, token);
  }
  int progress() override { return made() ? made_->progress() : 0; }
  int event_fd() const override { return made() ? made_->event_fd() : -1; }
  bool arm() override { return !made() || made_->arm(); }
  Status fit() const override { return made() ? made_->fit() : Status(); }
  Totals totals() const override { return made() ? made_->totals() : Totals{}; }
  void lose_after(uint32_t ms) override {
    lose_after_ms_ = ms;
    if (made()) made_->lose_after(ms);
  }

 private:
  std::optional<uint32_t> lose_after_ms_;  // not what it is made with
  Make make_;
  std::unique_ptr<transport::Transport> made_;
};

}  // namespace cgx::daemon
