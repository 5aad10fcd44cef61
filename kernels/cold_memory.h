// Memory that is in no cache, for whoever times what a lane does with gradients: a trainer on
// another core has just written them.
#pragma once

#include <span>

namespace cgx::kernels {

struct alignas(64) Line {
  float values[16];
};

bool flushes();  // this processor can be told to forget a line
// Nothing where the processor cannot.
void flush_lines(std::span<const Line> lines);

}  // namespace cgx::kernels
