// How fast links are at least. Whoever gets a part sends back what became of it, in a later round:
// both frames crossed the link while the answer was waited for, so their bytes took no longer than
// that. Arithmetic there and queues make a link look slower than it is, never faster.
//
// A sample of the frames: what lies between two that share a place is forgotten. Owned by one
// communicator.
#pragma once

#include <array>
#include <cstdint>

#include "proto/wire/frame.h"

namespace cgx::scheduler {

class AnswerMeter {
 public:
  // A frame of a step, to or from `machine`, with that many bytes in all.
  void sent(uint32_t machine, const wire::FrameHeader& header, uint64_t bytes, uint64_t now_ns);
  void received(uint32_t machine, const wire::FrameHeader& header, uint64_t bytes, uint64_t now_ns);

  // Of the answers since it was asked last, the quickest; 0: none came.
  double take_ns_per_byte();

 private:
  struct Asked {
    uint64_t step = 0, sent_ns = 0, bytes = 0;  // 0 bytes: nothing
    uint32_t machine = 0, group = 0, part = 0;
    uint8_t round = 0;
  };
  Asked& place_of(uint32_t machine, const wire::FrameHeader& header);

  std::array<Asked, 64> asked_;
  double least_ns_per_byte_ = 0;
};

}  // namespace cgx::scheduler
