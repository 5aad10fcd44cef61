// Memory for the tables of launches, which kernels read and write: pinned, given out in order and
// taken back in order. Thread rule: the worker's main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "proto/device/driver.h"

namespace cgx::daemon::gpu {

class TableRing {
 public:
  static Result<std::unique_ptr<TableRing>> create(const device::Driver& driver, uint64_t bytes) {
    std::unique_ptr<TableRing> ring(new TableRing(driver, bytes));
    void* memory = nullptr;
    constexpr unsigned kFlags =
        device::CU_MEMHOSTALLOC_PORTABLE | device::CU_MEMHOSTALLOC_DEVICEMAP;
    CGX_RETURN_IF_ERROR(
        driver.check(driver.cuMemHostAlloc(&memory, bytes, kFlags), "pinned memory for tables"));
    ring->host_ = static_cast<std::byte*>(memory);
    device::CUdeviceptr address = 0;
    CGX_RETURN_IF_ERROR(driver.check(driver.cuMemHostGetDevicePointer(&address, memory, 0),
                                     "the device's address of tables"));
    ring->device_ = reinterpret_cast<std::byte*>(address);
    return ring;
  }
  ~TableRing() {
    if (host_ != nullptr) driver_.cuMemFreeHost(host_);
  }
  TableRing(const TableRing&) = delete;

  // Null: no room before older ones are given back, or never.
  template <class T>
  T* take(uint64_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    const uint64_t bytes = (count * sizeof(T) + kUnit - 1) / kUnit * kUnit;
    const uint64_t to_end = bytes_ - tail_ % bytes_;
    const uint64_t skipped = bytes > to_end ? to_end : 0;
    if (tail_ + skipped + bytes - head_ > bytes_) return nullptr;
    tail_ += skipped + bytes;
    return reinterpret_cast<T*>(host_ + (tail_ - bytes) % bytes_);
  }
  template <class T>
  T* on_device(T* host) const {
    return reinterpret_cast<T*>(device_ + (reinterpret_cast<std::byte*>(host) - host_));
  }
  uint64_t mark() const { return tail_; }
  void give_back(uint64_t mark) { head_ = mark; }  // all that was taken before it was `mark`
  void take_back(uint64_t mark) { tail_ = mark; }  // all that was taken since

 private:
  static constexpr uint64_t kUnit = 16;
  TableRing(const device::Driver& driver, uint64_t bytes) : driver_(driver), bytes_(bytes) {}

  const device::Driver& driver_;
  const uint64_t bytes_;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  uint64_t head_ = 0, tail_ = 0;
};

}  // namespace cgx::daemon::gpu
