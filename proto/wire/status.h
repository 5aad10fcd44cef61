// Status and Result: how every lower layer reports failure. Plain values, no exceptions.
//
// The first function that knows the cause words the message: what, which object, which limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace cgx {

enum class StatusCode : uint16_t {
#define X(name, number, meaning) k##name = number,
#include "proto/wire/status_codes.def"
#undef X
};

// "STEP_OPEN"; "UNKNOWN" for a number outside the list (it may come from a newer peer).
std::string_view status_name(StatusCode code);
std::string_view status_meaning(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOK; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string to_string() const;

  friend bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.message_ == b.message_;
  }

 private:
  StatusCode code_ = StatusCode::kOK;
  std::string message_;
};

// Named factories for the codes lower layers use most.
Status invalid_argument(std::string message);
Status resource_exhausted(std::string message);
Status protocol_error(std::string message);
Status internal_error(std::string message);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : state_(std::move(status)) {}

  bool ok() const { return state_.index() == 0; }
  const Status& status() const {
    static const Status kOk;
    return ok() ? kOk : std::get<1>(state_);
  }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::variant<T, Status> state_;
};

#define CGX_CONCAT_INNER(a, b) a##b
#define CGX_CONCAT(a, b) CGX_CONCAT_INNER(a, b)
#define CGX_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                   \
    if (::cgx::Status cgx_status_ = (expression); !cgx_status_.ok()) return cgx_status_; \
  } while (0)
#define CGX_ASSIGN_OR_RETURN(declaration, expression) \
  CGX_ASSIGN_OR_RETURN_INNER(CGX_CONCAT(cgx_result_, __LINE__), declaration, expression)
#define CGX_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.status();                         \
  declaration = std::move(result).value()

// Bugs assert, in release too. Never on input from a client, a peer or a file.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
#define CGX_ASSERT(expression) \
  ((expression) ? void(0) : ::cgx::assertion_failed(#expression, __FILE__, __LINE__))

}  // namespace cgx
