#include "kernels/cuda/driver_lane.h"

#include <algorithm>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/skeleton.h"
#include "kernels/cuda/sparse_table.h"

namespace cgx::kernels::cuda {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kSharedBytes = 48 * 1024;  // what every device gives a block without asking
constexpr uint32_t kNormsThreads = 64;

// What a row of kernels.def says: whose image its kernels are in, the middle of their names, and
// the memory that a team needs. Blocks work on sparse buckets, whose entries may have to be found;
// quantizers have kernels for small buckets.
struct Kernel {
  const char *family = nullptr, *stem = nullptr;
  uint32_t (*team_bytes)(uint32_t bucket) = nullptr;
  bool sparse = false, finds = false, small = false;
};
template <class Type>
constexpr Kernel kKernel = {};
template <class Type>
uint32_t team_bytes(uint32_t bucket) {
  if constexpr (kIsWide<Type> || kIsSparse<Type>) {
    return 16;  // it needs none, but a launch has some
  } else {
    return scratch_bytes<Type>(bucket);
  }
}
// F rows have the kernels.
template <class Type>
constexpr bool finds() {
  if constexpr (kIsSparse<Type>) return !Type::kDrawn;
  return false;
}
#define ROW(stem, family, type, small)                                                \
  template <>                                                                         \
  constexpr Kernel kKernel<type> = {#family,         #stem,         team_bytes<type>, \
                                    kIsSparse<type>, finds<type>(), small};
#define X(stem, family, type) ROW(stem, family, type, false)
#define Q(stem, family, type) ROW(stem, family, type, true)
#include "kernels/cuda/kernels.def"
#undef X
#undef ROW

template <class Codec>
struct KernelFor {
  static constexpr Kernel kOps = kKernel<typename KernelOf<Codec>::Type>;
};

Kernel kernel_of(const CodecSpec& spec) {
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return stem##Family::ops<KernelFor>(spec);
#include "kernels/codecs.def"
#undef X
  }
  return {};
}

Kernel kernel_of(const CodecSpec& spec, DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return kernel_of(spec);
    case DType::kF64:
      return kKernel<WideKernel<double>>;
    case DType::kI8:
    case DType::kU8:
      return kKernel<WideKernel<uint8_t>>;
    case DType::kI32:
      return kKernel<WideKernel<uint32_t>>;
    case DType::kI64:
      return kKernel<WideKernel<uint64_t>>;
  }
  return {};
}

// Jobs with a key encode, and may ask for norms.
template <class Job>
constexpr bool kEncodes = requires(Job job) {
  job.key;
};

template <class Job>
std::string described(const char* words, const Table<Job>& table) {
  return std::string(words) + " of " + std::to_string(table.count) + " segments with " +
         to_string(table.spec);
}

}  // namespace

Result<std::unique_ptr<DriverLane>> DriverLane::create(const device::Driver& driver,
                                                       device::CUdevice device, ImageOf image_of,
                                                       Loading loading) {
  std::unique_ptr<DriverLane> lane(new DriverLane(driver, std::move(image_of), std::move(loading)));
  CGX_RETURN_IF_ERROR(lane->describe(device));
  return lane;
}

DriverLane::~DriverLane() {
  for (const auto& [family, module] : modules_) driver_.cuModuleUnload(module);
}

bool DriverLane::has_kernels(const CodecSpec& spec) {
  return kernel_of(spec).stem != nullptr;
}

Status DriverLane::load(const CodecSpec& spec, DType dtype) {
  const Kernel kernel = kernel_of(spec, dtype);
  return kernel.family == nullptr ? Status() : load(kernel.family);
}

Status DriverLane::describe(device::CUdevice device) {
  const struct {
    device::CUdevice_attribute attribute;
    uint32_t* to;
  } kAsked[] = {{device::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &device_.multiprocessors},
                {device::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                 &device_.threads_per_multiprocessor},
                {device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
                 &device_.shared_bytes_per_multiprocessor}};
  device_.ordinal = device;
  for (const auto& asked : kAsked) {
    int value = 0;
    CGX_RETURN_IF_ERROR(driver_.check(driver_.cuDeviceGetAttribute(&value, asked.attribute, device),
                                      "asking for an attribute of GPU " + std::to_string(device)));
    *asked.to = static_cast<uint32_t>(value);
  }
  return {};
}

Result<device::CUmodule> DriverLane::module_of(const std::string& family) {
  const auto known = modules_.find(family);
  if (known != modules_.end()) return known->second;
  const void* const image = image_of_(family);
  if (image == nullptr) {
    return Status(StatusCode::kUNIMPLEMENTED, "this build has no kernels of " + family);
  }
  device::CUmodule module = nullptr;
  loading_(true);
  const device::CUresult loaded = driver_.cuModuleLoadData(&module, image);
  loading_(false);
  CGX_RETURN_IF_ERROR(driver_.check(loaded, "loading the kernels of " + family));
  modules_[family] = module;
  return module;
}

Result<device::CUfunction> DriverLane::function_of(const std::string& family,
                                                   const std::string& name) {
  const std::string key = family + "/" + name;
  const auto known = functions_.find(key);
  if (known != functions_.end()) return known->second;
  CGX_ASSIGN_OR_RETURN(const device::CUmodule module, module_of(family));
  device::CUfunction function = nullptr;
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuModuleGetFunction(&function, module, name.c_str()),
                                    "finding the kernel " + name));
  functions_[key] = function;
  return function;
}

// As many blocks as fit on the device at once; their teams take buckets in turn.
Result<DriverLane::Shape> DriverLane::shape_of(device::CUfunction function, uint32_t lanes,
                                               uint32_t team_bytes, uint64_t buckets) {
  const uint32_t warp_bytes = kWarp / lanes * team_bytes;
  const uint32_t warps = std::clamp(kSharedBytes / warp_bytes, 1u, kDenseLanes / kWarp);
  const uint32_t threads = warps * kWarp, shared_bytes = warps * warp_bytes;
  const uint32_t teams = threads / lanes;
  const auto [known, fresh] = resident_.try_emplace({function, team_bytes}, 0);
  int& resident = known->second;
  if (fresh) {
    CGX_RETURN_IF_ERROR(
        driver_.check(driver_.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                          &resident, function, static_cast<int>(threads), shared_bytes),
                      "asking how many blocks fit"));
  }
  const uint64_t wanted = (buckets + teams - 1) / teams;
  const uint64_t most = uint64_t{device_.multiprocessors} * std::max(resident, 1);
  return Shape{static_cast<uint32_t>(std::min(wanted, most)), threads, shared_bytes};
}

Status DriverLane::launch(const std::string& family, const std::string& name, const Shape& shape,
                          std::span<void*> parameters, device::CUstream stream,
                          const std::string& what) {
  CGX_ASSIGN_OR_RETURN(const device::CUfunction function, function_of(family, name));
  return driver_.check(
      driver_.cuLaunchKernel(function, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes,
                             stream, parameters.data(), nullptr),
      what);
}

template <class Job>
Status DriverLane::run(const char* operation, const char* words, const Table<Job>& table,
                       device::CUstream stream) {
  if (table.count == 0 || table.buckets == 0) return {};
  const Kernel kernel = kernel_of(table.spec, table.dtype);
  if (kernel.stem == nullptr) {
    return {StatusCode::kUNIMPLEMENTED, to_string(table.spec) + " has no kernels for CUDA"};
  }
  if (kernel.sparse) {
    return run_sparse(kernel.family, kernel.stem, kernel.finds, operation, words, table, stream);
  }
  const uint32_t lanes = kernel.small ? lanes_for(table.bucket_max) : kLanes;
  const char* const small = lanes < kLanes ? "_small_" : "_";
  const std::string name = std::string("cgx_") + kernel.stem + small + operation;
  CGX_ASSIGN_OR_RETURN(const device::CUfunction function, function_of(kernel.family, name));
  uint32_t team_bytes = kernel.team_bytes(table.bucket_max);
  if (lanes < kLanes) team_bytes = small_stride(team_bytes);
  CGX_ASSIGN_OR_RETURN(const Shape shape, shape_of(function, lanes, team_bytes, table.buckets));
  void* parameters[] = {const_cast<Table<Job>*>(&table), &team_bytes};
  return launch(kernel.family, name, shape, parameters, stream, described(words, table));
}

// Entries are found before they are read, and moved together after they were written.
template <class Job>
Status DriverLane::run_sparse(const std::string& family, const std::string& stem, bool finds,
                              const char* operation, const char* words, const Table<Job>& table,
                              device::CUstream stream) {
  const std::string what = described(words, table);
  if (table.work.memory == nullptr) return internal_error(what + " without work memory");
  uint32_t unused = 0;
  void* parameters[] = {const_cast<Table<Job>*>(&table), &unused};
  const uint64_t ranges = uint64_t{table.count} * table.work.parts_max;
  if (kReads<Job> && finds && ranges > 0) {
    const auto blocks = static_cast<uint32_t>((ranges + kFindLanes - 1) / kFindLanes);
    CGX_RETURN_IF_ERROR(launch(family, "cgx_" + stem + "_find_" + operation,
                               {blocks, kFindLanes, 0}, parameters, stream, what));
  }
  CGX_RETURN_IF_ERROR(launch(family, "cgx_" + stem + "_" + operation,
                             {table.work.teams, kSparseLanes, 0}, parameters, stream, what));
  if (!kWrites<Job>) return {};
  const uint64_t resident = uint64_t{device_.multiprocessors} *
                            std::max(1u, device_.threads_per_multiprocessor / kPackLanes);
  const auto blocks = static_cast<uint32_t>(std::min(table.buckets, resident));
  return launch(family, std::string("cgx_pack_") + operation, {blocks, kPackLanes, 0}, parameters,
                stream, what);
}

template <class Job>
Status DriverLane::add_norms(const char* operation, const Table<Job>& table,
                             device::CUstream stream) {
  const Kernel kernel = kernel_of(table.spec, table.dtype);
  if (table.norms == nullptr || table.count == 0 || kernel.family == nullptr) return {};
  void* parameters[] = {const_cast<Table<Job>*>(&table)};
  const uint32_t blocks = (table.count + kNormsThreads - 1) / kNormsThreads;
  return launch(kernel.family, std::string("cgx_norms_") + operation, {blocks, kNormsThreads, 0},
                parameters, stream, described("adding norms", table));
}

#define X(name, job, words)                                                   \
  Status DriverLane::name(const Table<job>& table, device::CUstream stream) { \
    CGX_RETURN_IF_ERROR(run(#name, words, table, stream));                    \
    return kEncodes<job> ? add_norms(#name, table, stream) : Status();        \
  }
#include "kernels/cuda/operations.def"
#undef X

}  // namespace cgx::kernels::cuda
