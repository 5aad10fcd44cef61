#include "tests/gpu/driver/queue.h"

namespace cgx::standin {
namespace {

constexpr uintptr_t kLegacy = 1, kPerThread = 2;  // null is the former, too

void add(std::vector<Point>& points, Point point) {
  if (!point.passed()) points.push_back(std::move(point));
}

}  // namespace

bool find_stream(CUstream handle, OwnedStream& found) {
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  Context* const context = current_context();
  if (reinterpret_cast<uintptr_t>(handle) <= kLegacy) {
    found = {context->legacy, context};
    return true;
  }
  if (reinterpret_cast<uintptr_t>(handle) == kPerThread) {
    found = {p.stream_of_thread(context), context};
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
  if (owned.stream->captured()) return {};
  const std::lock_guard lock(p.mutex);
  if (owned.stream == context->legacy) {
    for (const auto& other : p.streams_of(context)) {
      if (other->waits_for_default()) add(after, other->last());
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
    for (const auto& other : p.streams_of(context)) points.push_back(other->last());
    for (const auto& stream : p.closing) points.push_back(stream->last());
  }
  for (const Point& point : points) point.wait();
}

CUresult state_of(Context* context) {
  if (process().ledger->lost(context->device)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  return static_cast<CUresult>(context->error.load());
}

}  // namespace cgx::standin
