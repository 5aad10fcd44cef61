// proto/device/ against NVIDIA's cuda.h: names of symbols, parameters, layouts, numbers. Skipped
// where there is none.
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "proto/device/driver_types.h"

// Ours, before cuda.h defines macros of the same names.
namespace cgx::device {
namespace {

template <class F>
struct Ours {
  std::string_view function, library;
  using Function = F;
};
#define X(name, symbol, feature, parameters) \
  [[maybe_unused]] constexpr Ours<CUresult(*) parameters> our_##name = {#name, #symbol};
#include "proto/device/driver.def"
#undef X
[[maybe_unused]] constexpr uint64_t kNumbers[] = {
#define X(name, number, status, text) name,
#include "proto/device/errors.def"
#undef X
#define X(name, value) name,
#include "proto/device/constants.def"
#undef X
};

}  // namespace
}  // namespace cgx::device

#if __has_include(<cuda.h>)
#include <cuda.h>

// Not within the namespaces of ours: names below are cuda.h's.
namespace {

template <class T>
concept Complete = requires {
  sizeof(T);
};

// Whether a call that passes an A does what a function expects that takes a B.
template <class A, class B>
constexpr bool same_parameter() {
  if constexpr (std::is_pointer_v<A> != std::is_pointer_v<B>) {
    return false;
  } else if constexpr (std::is_pointer_v<A>) {
    using InA = std::remove_cv_t<std::remove_pointer_t<A>>;
    using InB = std::remove_cv_t<std::remove_pointer_t<B>>;
    if constexpr (std::is_function_v<InA> || std::is_void_v<InA> || std::is_void_v<InB>) {
      return std::is_same_v<InA, InB>;
    } else if constexpr (Complete<InA> && Complete<InB>) {
      return same_parameter<InA, InB>();
    } else {
      return !Complete<InA> && !Complete<InB>;  // handles
    }
  } else {
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) &&
           std::is_class_v<A> == std::is_class_v<B> &&
           std::is_floating_point_v<A> == std::is_floating_point_v<B>;
  }
}

template <class... A, class... B>
constexpr bool same_function(cgx::device::CUresult (*)(A...), CUresult (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) {
    return (same_parameter<A, B>() && ...);
  } else {
    return false;
  }
}

#define TEXT_OF(text) #text
#define EXPANDED(name) TEXT_OF(name)

// Parameters that never changed: the old symbol works with older drivers.
bool kept(std::string_view name) {
  return name == "cuEventElapsedTime";
}

#define X(name, symbol, feature, parameters)                                                 \
  TEST(CudaHeader, HasTheFunction_##name) {                                                  \
    const auto& ours = cgx::device::our_##name;                                              \
    using Function = std::remove_cvref_t<decltype(ours)>::Function;                          \
    EXPECT_TRUE(kept(ours.function) || ours.library == EXPANDED(name)) << EXPANDED(name);    \
    constexpr bool kSame = same_function(Function(), static_cast<decltype(&name)>(nullptr)); \
    EXPECT_TRUE(kSame);                                                                      \
  }
#include "proto/device/driver.def"
#undef X

TEST(CudaHeader, HasTheSameNumbers) {
  size_t row = 0;
#define X(name, number, status, text) \
  EXPECT_EQ(cgx::device::kNumbers[row++], static_cast<uint64_t>(name)) << #name;
#include "proto/device/errors.def"
#undef X
#define X(name, value) \
  EXPECT_EQ(cgx::device::kNumbers[row++], static_cast<uint64_t>(name)) << #name;
#include "proto/device/constants.def"
#undef X
}

TEST(CudaHeader, LaysStructuresOutAlike) {
  EXPECT_EQ(offsetof(cgx::device::CUmemAllocationProp, location),
            offsetof(CUmemAllocationProp, location));
  EXPECT_EQ(offsetof(cgx::device::CUmemAllocationProp, requestedHandleTypes),
            offsetof(CUmemAllocationProp, requestedHandleTypes));
  EXPECT_EQ(offsetof(cgx::device::CUmemAllocationProp, allocFlags.usage),
            offsetof(CUmemAllocationProp, allocFlags.usage));
  EXPECT_EQ(offsetof(cgx::device::CUmemAccessDesc, flags), offsetof(CUmemAccessDesc, flags));
  EXPECT_EQ(offsetof(cgx::device::CUmemLocation, id), offsetof(CUmemLocation, id));
}

}  // namespace
#else
TEST(CudaHeader, IsCompared) {
  GTEST_SKIP() << "skipped: there is no cuda.h (CUDA Toolkit) to compare with";
}
#endif
