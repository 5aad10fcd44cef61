// Memory of a plan for values that jobs decode before they add them: what came within a rack with a
// codec of its own. There is a piece for each job that the site may compute at the same time. Made
// with the plan, on any thread, with its pages; whoever computes allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "proto/wire/status.h"

namespace cgx::scheduler {

class DecodedMemory {
 public:
  DecodedMemory() = default;
  static Result<DecodedMemory> make(uint32_t pieces, uint64_t floats_each) {
    DecodedMemory made;
    const uint64_t floats = pieces * floats_each;
    if (floats == 0) return made;
    made.values_.reset(new (std::nothrow) float[floats]());
    if (made.values_ == nullptr) {
      return resource_exhausted("this machine has no " + std::to_string(floats * sizeof(float)) +
                                " bytes for values that are decoded before they are added");
    }
    made.floats_each_ = floats_each;
    made.pieces_ = pieces;
    return made;
  }

  std::span<float> piece(uint32_t number) const {
    if (number >= pieces_) return {};
    return {values_.get() + number * floats_each_, floats_each_};
  }
  bool empty() const { return pieces_ == 0; }

 private:
  std::unique_ptr<float[]> values_;
  uint64_t floats_each_ = 0;
  uint32_t pieces_ = 0;
};

}  // namespace cgx::scheduler
