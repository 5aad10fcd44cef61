// What the loader let UCX do to this process, undone. UCX's constructors run before main: they read
// UCX_* variables and ucx.conf files and install handlers for error signals and SIGHUP.
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/ucx.h"
#include "transport/ucx_context.h"

extern "C" char** environ;  // POSIX has no header for it

namespace cgx::transport {
namespace {

constexpr unsigned kTakesErrors =
    1u << UCS_HANDLE_ERROR_BACKTRACE | 1u << UCS_HANDLE_ERROR_FREEZE | 1u << UCS_HANDLE_ERROR_DEBUG;

void give_back_signals() {
  if (ucs_global_opts.handle_errors & kTakesErrors) {
    for (unsigned i = 0; i < ucs_global_opts.error_signals.count; ++i) {
      ucs_debug_disable_signal(ucs_global_opts.error_signals.signals[i]);
    }
  }
  if (ucs_global_opts.debug_signo > 0) {
    ucs_debug_disable_signal(static_cast<int>(ucs_global_opts.debug_signo));
  }
}

}  // namespace

std::string ucx_variable() {
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("UCX_")) return std::string(text.substr(0, text.find('=')));
  }
  return {};
}

bool ucx_handles_signals() {
  return (ucs_global_opts.handle_errors & kTakesErrors) || ucs_global_opts.debug_signo > 0;
}

void prepare_process() {
  give_back_signals();
  for (std::string name = ucx_variable(); !name.empty(); name = ucx_variable()) {
    ::unsetenv(name.c_str());
  }
  // The options again, as if the library had been loaded without those variables.
  ucs_global_opts_release();
  ucs_global_opts_cleanup();
  ucs_global_opts_init();
  (void)ucs_global_opts_set_value("HANDLE_ERRORS", "none");
  (void)ucs_global_opts_set_value("DEBUG_SIGNO", "0");
  (void)ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
}

}  // namespace cgx::transport
