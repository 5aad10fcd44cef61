#include "tests/gpu/driver/queue.h"

namespace cgx::standin {
namespace {

constexpr uintptr_t kDefaultStreams = 2;  // null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD

void add(std::vector<Point>& points, Point point) {
  if (!point.passed()) points.push_back(std::move(point));
}

}  // namespace

bool find_stream(CUstream handle, OwnedStream& found) {
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  if (reinterpret_cast<uintptr_t>(handle) <= kDefaultStreams) {
    found = {current_context()->legacy, current_context()};
    return true;
  }
  const auto known = p.streams.find(handle);
  if (known == p.streams.end()) return false;
  found = known->second;
  return true;
}

Point enqueue(const OwnedStream& owned, std::function<void()> work, std::vector<Point> after) {
  Process& p = process();
  Context* const context = owned.context;
  const std::lock_guard lock(p.mutex);
  if (owned.stream == context->legacy) {
    for (const auto& [handle, other] : p.streams) {
      if (other.context == context && other.stream->waits_for_default()) {
        add(after, other.stream->last());
      }
    }
  } else if (owned.stream->waits_for_default()) {
    add(after, context->legacy->last());
  }
  const auto unless_failed = [context, work = std::move(work)] {
    if (state_of(context) == CUDA_SUCCESS) work();
  };
  return owned.stream->push(unless_failed, std::move(after));
}

void drain(Context* context) {
  Process& p = process();
  std::vector<Point> points;
  {
    const std::lock_guard lock(p.mutex);
    points.push_back(context->legacy->last());
    for (const auto& [handle, other] : p.streams) {
      if (other.context == context) points.push_back(other.stream->last());
    }
    for (const auto& stream : p.closing) points.push_back(stream->last());
  }
  for (const Point& point : points) point.wait();
}

CUresult state_of(Context* context) {
  if (process().ledger->lost(context->device)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  return static_cast<CUresult>(context->error.load());
}

}  // namespace cgx::standin
