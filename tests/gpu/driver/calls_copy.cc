// Copies and fills. The device's threads use their own view of device memory, and host memory as it
// is.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/gpu/driver/functions.h"
#include "tests/gpu/driver/queue.h"

using namespace cgx::standin;

namespace {

// Bytes of a copy, and whether they may be host memory that nobody registered.
struct End {
  uintptr_t address;
  bool pageable;
};

bool resolve(const End& end, size_t bytes, Target& target) {
  target = find_target(end.address, bytes);
  if (target.kind != Target::Kind::kUnknown) return true;
  const std::lock_guard lock(process().mutex);
  // Past the end of an allocation is not host memory.
  const bool near = process().space.overlaps(end.address, bytes);
  target.at = reinterpret_cast<uint8_t*>(end.address);
  return end.pageable && !near && end.address != 0;
}

struct Piece {
  Target to, from;
  size_t bytes;
};

// To the end of what is mapped there.
size_t piece_at(uintptr_t address, size_t bytes) {
  const std::lock_guard lock(process().mutex);
  const Mapping* const mapping = process().space.find(address);
  return mapping == nullptr ? bytes : std::min(bytes, mapping->base + mapping->bytes - address);
}

// Mapped memory may lie side by side, as a pool's does, and a copy goes over several of them.
bool resolve(End to, End from, size_t bytes, std::vector<Piece>& pieces) {
  while (bytes > 0) {
    Piece piece;
    piece.bytes = std::min(piece_at(to.address, bytes), piece_at(from.address, bytes));
    if (!resolve(to, piece.bytes, piece.to) || !resolve(from, piece.bytes, piece.from))
      return false;
    if (!pieces.empty() &&
        (pieces.back().to.kind != piece.to.kind || pieces.back().from.kind != piece.from.kind)) {
      return false;
    }
    bytes -= piece.bytes;
    to.address += piece.bytes;
    from.address += piece.bytes;
    pieces.push_back(std::move(piece));
  }
  return true;
}

void accuse_pageable(Call call, size_t bytes) {
  accuse(std::string(name_of(call)) + ": " + std::to_string(bytes) +
         " bytes of host memory are not registered, so the copy waits for them");
}

// As drivers do: what is pageable is read before the call returns, or written before it does.
CUresult copy_on(const OwnedStream& owned, const Target& to, const Target& from, size_t bytes) {
  if (from.kind == Target::Kind::kUnknown) {
    auto staged = std::make_shared<std::vector<uint8_t>>(from.at, from.at + bytes);
    enqueue(owned, [to, staged] { std::memcpy(to.at, staged->data(), staged->size()); });
    return CUDA_SUCCESS;
  }
  const Point end = enqueue(owned, [to, from, bytes] { std::memmove(to.at, from.at, bytes); });
  if (to.kind == Target::Kind::kUnknown) end.wait();
  return to.kind == Target::Kind::kUnknown ? state_of(owned.context) : CUDA_SUCCESS;
}

// As drivers do: the call returns when the memory has been read, which may be long before it is
// there. Streams that do not wait for the default one see it half done.
void copy_pageable(const OwnedStream& owned, const Target& to, const uint8_t* from, size_t bytes,
                   uint64_t lag_us) {
  auto staged = std::make_shared<std::vector<uint8_t>>(from, from + bytes);
  enqueue(owned, [to, staged, lag_us] {
    std::this_thread::sleep_for(std::chrono::microseconds(lag_us));
    std::memcpy(to.at, staged->data(), staged->size());
  });
}

CUresult copy_async(Call call, End to, End from, size_t bytes, CUstream stream) {
  OwnedStream owned;
  std::vector<Piece> pieces;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  if (!resolve(to, from, bytes, pieces)) return CUDA_ERROR_INVALID_VALUE;
  const bool pageable = pieces.front().to.kind == Target::Kind::kUnknown ||
                        pieces.front().from.kind == Target::Kind::kUnknown;
  if (pageable) accuse_pageable(call, bytes);
  CUresult result = CUDA_SUCCESS;
  for (const Piece& each : pieces) {
    if (result == CUDA_SUCCESS) result = copy_on(owned, each.to, each.from, each.bytes);
  }
  return result;
}

CUresult copy_now(End to, End from, size_t bytes) {
  OwnedStream owned;
  std::vector<Piece> pieces;
  find_stream(nullptr, owned);
  if (bytes == 0) return CUDA_SUCCESS;
  if (!resolve(to, from, bytes, pieces)) return CUDA_ERROR_INVALID_VALUE;
  for (const Piece& each : pieces) {
    if (each.from.kind == Target::Kind::kUnknown) {
      copy_pageable(owned, each.to, each.from.at, each.bytes, process().settings.lag_us);
    } else {
      enqueue(owned, [each] { std::memmove(each.to.at, each.from.at, each.bytes); }).wait();
    }
  }
  return state_of(owned.context);
}

template <class Word>
CUresult fill(CUdeviceptr memory, Word value, size_t count, CUstream stream) {
  OwnedStream owned;
  if (!find_stream(stream, owned)) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0) return CUDA_SUCCESS;
  const Target to = find_target(memory, count * sizeof(Word));
  if (to.kind == Target::Kind::kUnknown || memory % sizeof(Word) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  enqueue(owned, [to, value, count] {
    for (size_t i = 0; i < count; ++i) std::memcpy(to.at + i * sizeof(Word), &value, sizeof(Word));
  });
  return CUDA_SUCCESS;
}

uintptr_t address_of(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

}  // namespace

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  CGX_ENTER(Call::cuMemcpyHtoD);
  return copy_now({to, false}, {address_of(from), true}, bytes);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  CGX_ENTER(Call::cuMemcpyDtoH);
  return copy_now({address_of(to), true}, {from, false}, bytes);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CGX_ENTER(Call::cuMemcpyAsync);
  return copy_async(Call::cuMemcpyAsync, {to, true}, {from, true}, bytes, stream);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  CGX_ENTER(Call::cuMemcpyHtoDAsync);
  const End source = {address_of(from), true};
  return copy_async(Call::cuMemcpyHtoDAsync, {to, false}, source, bytes, stream);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CGX_ENTER(Call::cuMemcpyDtoHAsync);
  const End target = {address_of(to), true};
  return copy_async(Call::cuMemcpyDtoHAsync, target, {from, false}, bytes, stream);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CGX_ENTER(Call::cuMemcpyDtoDAsync);
  return copy_async(Call::cuMemcpyDtoDAsync, {to, false}, {from, false}, bytes, stream);
}
CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t count, CUstream stream) {
  CGX_ENTER(Call::cuMemsetD8Async);
  return fill<unsigned char>(memory, value, count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr memory, unsigned value, size_t count, CUstream stream) {
  CGX_ENTER(Call::cuMemsetD32Async);
  return fill<unsigned>(memory, value, count, stream);
}
