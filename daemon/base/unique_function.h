// A call to be made later by another agent. Move-only, so it can carry descriptors and mappings.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace cgx::daemon {

template <typename Signature>
class UniqueFunction;

template <typename R, typename... Args>
class UniqueFunction<R(Args...)> {
 public:
  UniqueFunction() = default;
  template <typename F>
  requires(!std::is_same_v<std::decay_t<F>, UniqueFunction>)
      UniqueFunction(F function)  // NOLINT: implicit like std::function
      : call_(std::make_unique<Holder<F>>(std::move(function))) {}

  R operator()(Args... args) { return call_->run(std::forward<Args>(args)...); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  struct Call {
    virtual ~Call() = default;
    virtual R run(Args... args) = 0;
  };
  template <typename F>
  struct Holder final : Call {
    explicit Holder(F held) : function(std::move(held)) {}
    R run(Args... args) override { return function(std::forward<Args>(args)...); }
    F function;
  };
  std::unique_ptr<Call> call_;
};

}  // namespace cgx::daemon
