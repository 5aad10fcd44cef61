// Frames of operations that their runner has yet to begin. They wait in slabs that are reserved for
// received frames, so what a peer sends ahead takes no memory that is not charged.
//
// Owned by one runner.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"
#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/exchange/operations.h"

namespace cgx::scheduler {

class Stash {
 public:
  struct Frame {
    wire::FrameHeader header;
    Slab slab;  // empty for a header without payload

    std::span<const std::byte> payload() const {
      return slab ? slab.bytes().first(header.length) : std::span<const std::byte>{};
    }
  };

  Stash(Site& site, BufferPool& pool, OperationPort& port)
      : site_(site), pool_(pool), port_(port) {}

  // False: more than windows allow. A second one of the same bytes is let go.
  bool keep(const wire::FrameHeader& header, std::span<const std::byte> payload);
  // The oldest of which `is_it` is true, or nothing.
  template <class Predicate>
  std::optional<Frame> take(Predicate is_it) {
    const auto found = std::find_if(frames_.begin(), frames_.end(),
                                    [&](const Frame& frame) { return is_it(frame.header); });
    if (found == frames_.end()) return std::nullopt;
    std::optional<Frame> frame(std::move(*found));
    frames_.erase(found);
    return frame;
  }
  template <class Predicate>
  void drop(Predicate is_it) {
    std::erase_if(frames_, [&](const Frame& frame) { return is_it(frame.header); });
  }
  void clear() { frames_.clear(); }

 private:
  Site& site_;
  BufferPool& pool_;
  OperationPort& port_;
  std::vector<Frame> frames_;
};

}  // namespace cgx::scheduler
