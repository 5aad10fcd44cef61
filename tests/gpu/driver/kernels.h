// Modules and functions: an image says which kernels there are, a twin of the same name runs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu/driver/process.h"
#include "tests/gpu/driver/twin.h"

namespace cgx::standin {

constexpr int kStaticSharedMax = 48 << 10;  // what a block has without asking

struct Function {
  const Twin* twin;
  int shared_bytes_max = kStaticSharedMax;
};

// What cuModuleLoadData was given: text of PTX, a fatbin or a cubin.
struct Module {
  std::string image;
  std::map<std::string, std::unique_ptr<Function>, std::less<>> functions;
};

// Copies the image; empty where it is none that drivers take.
std::string copy_image(const void* image);
// Whether the image has a kernel of that name: an .entry of PTX, or the name in machine code.
bool has_kernel(const std::string& image, std::string_view name);

// Twins of the library that was named, and those that tests have added. Null where there is none.
const Twin* find_twin(std::string_view name);
void add_twins(const Twin* twins, size_t count);

// The twin on this thread, with device memory open to it. False if it left its memory.
bool run_twin(const Twin& twin, const Launch& launch);

}  // namespace cgx::standin
