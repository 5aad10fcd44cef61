// Modules, functions, launches.
#include <algorithm>
#include <cstring>

#include "tests/gpu/driver/functions.h"
#include "tests/gpu/driver/kernels.h"
#include "tests/gpu/driver/queue.h"

using namespace cgx::standin;

namespace {

constexpr int kSharedMax = 227 << 10, kSharedOfMultiprocessor = 228 << 10, kReserved = 1 << 10;
constexpr int kThreadsMax = 1024, kThreadsOfMultiprocessor = 2048, kBlocksOfMultiprocessor = 32;

Function& function_of(CUfunction handle) {
  return *reinterpret_cast<Function*>(handle);
}

std::shared_ptr<Module> find_module(CUmodule handle) {
  const std::lock_guard lock(process().mutex);
  const auto found = process().modules.find(handle);
  return found == process().modules.end() ? nullptr : found->second;
}

// The parameters as they are at the launch.
class Parameters {
 public:
  Parameters(const Twin& twin, void** values) {
    for (size_t i = 0; i < twin.parameter_count; ++i) {
      const auto* const from = static_cast<const uint8_t*>(values[i]);
      const size_t words = (twin.parameter_bytes[i] + 15) / 16;
      copies_.emplace_back(words);
      std::memcpy(copies_.back().data(), from, twin.parameter_bytes[i]);
    }
    for (auto& copy : copies_) pointers_.push_back(copy.data());
  }
  void* const* data() const { return pointers_.data(); }

 private:
  struct alignas(16) Line {
    uint8_t bytes[16];
  };
  std::vector<std::vector<Line>> copies_;
  std::vector<void*> pointers_;
};

bool fits(const Function& function, const Launch& launch) {
  const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  return threads > 0 && blocks > 0 && threads <= kThreadsMax && launch.grid[0] <= INT32_MAX &&
         launch.grid[1] <= UINT16_MAX && launch.grid[2] <= UINT16_MAX &&
         launch.shared_bytes <= static_cast<uint32_t>(function.shared_bytes_max);
}

bool faults_now(Process& p) {
  const std::lock_guard lock(p.mutex);
  return p.settings.faulting > 0 && --p.settings.faulting == 0;
}

void run(const Twin& twin, Launch launch, const Parameters& parameters, Context* context) {
  launch.parameters = parameters.data();
  if (!faults_now(process()) && run_twin(twin, launch)) return;
  unsigned fine = CUDA_SUCCESS;
  context->error.compare_exchange_strong(fine, CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  CGX_ENTER(Call::cuModuleLoadData);
  drain(current_context());  // as a driver may
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string copy = copy_image(image);
  if (copy.empty()) return CUDA_ERROR_INVALID_IMAGE;
  const auto made = std::make_shared<Module>(Module{std::move(copy), {}});
  *module = reinterpret_cast<CUmodule>(made.get());
  const std::lock_guard lock(process().mutex);
  process().modules[*module] = made;
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  CGX_ENTER(Call::cuModuleUnload);
  drain(current_context());
  const std::lock_guard lock(process().mutex);
  return process().modules.erase(module) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  CGX_ENTER(Call::cuModuleGetFunction);
  const std::shared_ptr<Module> module = find_module(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!has_kernel(module->image, name)) return CUDA_ERROR_NOT_FOUND;
  const Twin* const twin = find_twin(name);
  if (twin == nullptr) {
    accuse("the kernel " + std::string(name) + " has no twin");
    return CUDA_ERROR_NOT_FOUND;
  }
  const std::lock_guard lock(process().mutex);
  std::unique_ptr<Function>& known = module->functions[name];
  if (known == nullptr) known = std::make_unique<Function>(Function{twin});
  *function = reinterpret_cast<CUfunction>(known.get());
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  CGX_ENTER(Call::cuFuncGetAttribute);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = kThreadsMax;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function_of(function).shared_bytes_max;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  CGX_ENTER(Call::cuFuncSetAttribute);
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      value > kSharedMax) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  function_of(function).shared_bytes_max = value;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                     int block_threads, size_t shared_bytes) {
  CGX_ENTER(Call::cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = 0;
  const bool too_much = shared_bytes > static_cast<size_t>(function_of(function).shared_bytes_max);
  if (block_threads > kThreadsMax || too_much) return CUDA_SUCCESS;
  const int by_memory = kSharedOfMultiprocessor / (static_cast<int>(shared_bytes) + kReserved);
  *blocks =
      std::min({kThreadsOfMultiprocessor / block_threads, by_memory, kBlocksOfMultiprocessor});
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  CGX_ENTER(Call::cuLaunchKernel);
  OwnedStream owned;
  if (!find_stream(stream, owned) || handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Function& function = function_of(handle);
  const Launch launch = {
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr};
  const bool lacks_values = parameters == nullptr && function.twin->parameter_count > 0;
  if (lacks_values || extra != nullptr || !fits(function, launch)) return CUDA_ERROR_INVALID_VALUE;
  const auto copies = std::make_shared<Parameters>(*function.twin, parameters);
  const Twin* const twin = function.twin;
  Context* const context = owned.context;
  enqueue(owned, [twin, launch, copies, context] { run(*twin, launch, *copies, context); });
  return CUDA_SUCCESS;
}
