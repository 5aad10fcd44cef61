// A host function that plays a kernel: looked up by the kernel's name, called on the thread of the
// launch's stream.
//
// A library of twins (`kernels=PATH`) exports cgx_standin_twins; a test may add its own
// (control.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::standin {

struct Launch {
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  void* const* parameters;  // copies, as the launch saw them
};

struct Twin {
  const char* name;
  void (*run)(const Launch& launch);
  const uint32_t* parameter_bytes;
  size_t parameter_count;
};

struct Twins {
  const Twin* first;
  size_t count;
};
using TwinsOf = Twins (*)();
constexpr const char* kTwinsSymbol = "cgx_standin_twins";

}  // namespace cgx::standin
