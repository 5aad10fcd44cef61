// The memory of one test case, twice: in this process and on the device, byte for byte the same
// until an operation has run on each, and compared whole afterwards.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "tests/gpu/device.h"

namespace cgx::gpu {

class Image {
 public:
  static constexpr size_t kCapacity = 128 << 20, kGuard = 64;

  Image() : host_(static_cast<uint8_t*>(std::aligned_alloc(kGuard, kCapacity)), std::free) {
    device_ = static_cast<uint8_t*>(device_allocate(kCapacity));
  }
  ~Image() { device_free(device_); }
  Image(const Image&) = delete;

  void clear() {
    std::memset(host_.get(), 0xa5, used_);
    used_ = 0;
  }
  // Room for `bytes`, `shift` behind a 64-byte border, with something around that nobody may touch.
  size_t reserve(size_t bytes, size_t shift) {
    const size_t at = used_ + kGuard + shift;
    used_ = (at + bytes + 2 * kGuard - 1) / kGuard * kGuard;
    if (used_ > kCapacity) {
      std::fprintf(stderr, "a case needs more than %zu bytes\n", kCapacity);
      std::exit(2);
    }
    std::memset(host_.get() + at - kGuard - shift, 0xa5, used_ - (at - kGuard - shift));
    return at;
  }
  uint8_t* host() { return host_.get(); }
  uint8_t* device() { return device_; }
  size_t used() const { return used_; }

  void upload() { copy_to_device(device_, host_.get(), used_); }
  std::vector<uint8_t> download() const {
    std::vector<uint8_t> bytes(used_);
    copy_from_device(bytes.data(), device_, used_);
    return bytes;
  }

 private:
  std::unique_ptr<uint8_t, void (*)(void*)> host_;
  uint8_t* device_;
  size_t used_ = 0;
};

// One of the two places, and the tables of pointers into it.
class Place {
 public:
  static constexpr size_t kCapacity = 1 << 20;

  Place(uint8_t* data, uint8_t* tables_at) : data_(data), tables_at_(tables_at) {
    tables_.reserve(kCapacity);
    if (tables_at_ == nullptr) tables_at_ = tables_.data();
  }
  Place(const Place&) = delete;

  uint8_t* at(size_t offset) const { return data_ + offset; }
  template <class T>
  T* put(const std::vector<T>& values) {
    const size_t offset = (tables_.size() + 15) / 16 * 16, bytes = values.size() * sizeof(T);
    if (offset + bytes > kCapacity) std::abort();
    tables_.resize(offset + bytes);
    if (bytes > 0) std::memcpy(tables_.data() + offset, values.data(), bytes);
    return reinterpret_cast<T*>(tables_at_ + offset);
  }
  std::span<const uint8_t> tables() const { return tables_; }

 private:
  uint8_t *data_, *tables_at_;
  std::vector<uint8_t> tables_;
};

}  // namespace cgx::gpu
