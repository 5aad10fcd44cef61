// Work on streams, in the order that CUDA promises.
#pragma once

#include <functional>
#include <vector>

#include "tests/gpu/driver/process.h"

namespace cgx::standin {

// The stream behind a handle, the default one behind null; false for anything else.
bool find_stream(CUstream handle, OwnedStream& found);

// Behind what is enqueued on the stream and `after`; on the default stream behind all streams that
// wait for it, and before what comes on them. Work of a context that has failed is skipped.
Point enqueue(const OwnedStream& owned, std::function<void()> work, std::vector<Point> after = {});

// Until everything that the context's streams hold is done.
void drain(Context* context);

// OK, or what the context has met meanwhile.
CUresult state_of(Context* context);

}  // namespace cgx::standin
