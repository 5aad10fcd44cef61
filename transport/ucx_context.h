// UCX's context and worker for one endpoint, configured by us alone. Internal to transport/ucx*.
//
// Thread rule: as the transport that owns it.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "transport/ucx.h"

namespace cgx::transport {

// What a segment carries beyond the payload: our tag and the caller's header, UCX's own headers.
constexpr uint32_t kUcxHeaderBytesMax = 512;
constexpr uint32_t kUcxSegmentSpare = 1024;

struct UcxContext {
  struct ReleaseContext {
    void operator()(ucp_context_h context) const { ucp_cleanup(context); }
  };
  struct ReleaseWorker {
    void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
  };
  template <typename Handle, typename Release>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Release>;

  Owned<ucp_context_h, ReleaseContext> context;
  Owned<ucp_worker_h, ReleaseWorker> worker;  // after context: goes first
  int event_fd = -1;                          // belongs to the worker
};

Result<UcxContext> make_ucx_context(const UcxOptions& options);

// "ucx/2;lib=1.13;tls=tcp;frame=262144": what both sides of a link must agree on.
std::string ucx_settings(const UcxOptions& options);
// OK, or MISMATCH naming the setting and both values.
Status compare_ucx_settings(const std::string& ours, const std::string& theirs);

// OK if every lane of `endpoint` uses one of `options.transports`.
Status check_ucx_lanes(const UcxOptions& options, ucp_ep_h endpoint);

std::string ucx_variable();  // name of a UCX_* variable in the environment; empty: none
bool ucx_handles_signals();  // prepare_process() has not run

}  // namespace cgx::transport
