// Writer and Reader: the only way variable-sized messages are put into bytes and read back.
//
// Little endian, no padding. A Reader never reads past its span: after the first short read it is
// failed, every later value is zero or empty, and ok() tells. Strings and lists carry a u32 length
// that is checked against what is left before anything is allocated.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace cgx::wire {

static_assert(std::endian::native == std::endian::little, "big endian hosts need byte swaps here");

class Writer {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { append(std::as_bytes(std::span(&value, 1))); }
  void append(std::span<const std::byte> bytes);  // without a length
  void put_bytes(std::span<const std::byte> bytes) {
    put<uint32_t>(static_cast<uint32_t>(bytes.size()));
    append(bytes);
  }
  void put_string(std::string_view text) { put_bytes(std::as_bytes(std::span(text))); }

  std::vector<std::byte> take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T> T get() {
    T value{};
    if (!take(sizeof(T))) return value;
    std::memcpy(static_cast<void*>(&value), taken_.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> get_bytes() {
    const auto length = get<uint32_t>();
    return take(length) ? taken_ : std::span<const std::byte>{};
  }
  std::string get_string() {
    const auto bytes = get_bytes();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // A list length that cannot exceed what is left at `element_bytes_min` each.
  uint32_t get_count(size_t element_bytes_min) {
    const auto count = get<uint32_t>();
    if (count * static_cast<uint64_t>(element_bytes_min) > rest_.size()) fail();
    return ok_ ? count : 0;
  }

  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }  // everything read, nothing left over

 private:
  bool take(size_t count) {
    if (!ok_ || count > rest_.size()) {
      fail();
      return false;
    }
    taken_ = rest_.first(count);
    rest_ = rest_.subspan(count);
    return true;
  }
  void fail() {
    ok_ = false;
    rest_ = {};
  }

  std::span<const std::byte> rest_;
  std::span<const std::byte> taken_;
  bool ok_ = true;
};

}  // namespace cgx::wire
