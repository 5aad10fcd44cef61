#include "tests/sim/player_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

namespace cgx::sim {

bool names(const std::string& text, const std::string& what) {
  const auto digit = [&](size_t at) {
    return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]));
  };
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    const bool number = std::isdigit(static_cast<unsigned char>(what.back()));
    if (!number || !digit(at + what.size())) return true;
  }
  if (what.rfind("rank ", 0) != 0) return false;
  for (size_t at = text.find("rank"); at != std::string::npos; at = text.find("rank", at + 1)) {
    size_t from = at + 4;
    from += from < text.size() && text[from] == 's';
    while (from < text.size() && text[from] == ' ' && digit(from + 1)) {
      size_t end = ++from;
      while (digit(end)) ++end;
      if ("rank " + text.substr(from, end - from) == what) return true;
      from = end + (end < text.size() && text[end] == ',');
    }
  }
  return false;
}

std::string rank_name(uint32_t rank) {
  return "rank " + std::to_string(rank);
}

bool code_exists(std::string_view name, StatusCode* code) {
  for (uint16_t number = 1; number < 100; ++number) {
    if (status_name(static_cast<StatusCode>(number)) != name) continue;
    *code = static_cast<StatusCode>(number);
    return true;
  }
  return false;
}

void fill(Bytes& bytes, DType dtype, uint64_t seed, bool nonfinite) {
  const uint64_t width = dtype_bytes(dtype);
  uint64_t state = seed;
  for (uint64_t i = 0; i * width < bytes.size(); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto x = static_cast<uint32_t>(state >> 32);
    const bool odd = nonfinite && x % 1021 == 7;
    const bool nan = (x >> 20) % 2 == 0;
    std::byte* const at = bytes.data() + i * width;
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    const float number = (static_cast<float>(x & 0xffff) - 32767.5f) / 4096.0f;
    switch (dtype) {
      case DType::kF32:
        put(!odd ? number : nan ? NAN : INFINITY);
        break;
      case DType::kF64:
        put(!odd ? double{number} : nan ? double{NAN} : double{INFINITY});
        break;
      case DType::kF16:
        put(odd ? uint16_t(nan ? 0x7e00 : 0x7c00)
                : uint16_t((x & 0x8000) | ((10 + (x >> 16) % 8) << 10) | (x & 0x3ff)));
        break;
      case DType::kBF16:
        put(odd ? uint16_t(nan ? 0x7fc0 : 0x7f80)
                : uint16_t((x & 0x8000) | ((120 + (x >> 16) % 8) << 7) | (x & 0x7f)));
        break;
      case DType::kI8:
      case DType::kU8:
        put(static_cast<uint8_t>(x));
        break;
      case DType::kI32:
        put(static_cast<int32_t>(x % 100'000) - 50'000);
        break;
      case DType::kI64:
        put(static_cast<int64_t>(x) - 1'000'000);
        break;
    }
  }
}

bool same_values(DType dtype, const Bytes& a, const Bytes& b, size_t* where) {
  if (a.size() != b.size()) return *where = std::min(a.size(), b.size()), false;
  if (a == b) return true;
  const uint64_t width = dtype_bytes(dtype);
  const auto value = [&](const std::byte* at) -> double {
    if (dtype == DType::kF32) {
      float x;
      std::memcpy(&x, at, 4);
      return x;
    }
    if (dtype == DType::kF64) {
      double x;
      std::memcpy(&x, at, 8);
      return x;
    }
    uint16_t x;
    std::memcpy(&x, at, 2);
    const bool half = dtype == DType::kF16;
    const bool is_nan = half ? (x & 0x7fff) > 0x7c00 : (x & 0x7fff) > 0x7f80;
    return is_nan ? NAN : (x & 0x7fff) == 0 ? 0.0 : double(x);
  };
  const bool floating = dtype_is_small_float(dtype) || dtype == DType::kF64;
  for (size_t i = 0; i < a.size(); i += width) {
    if (std::memcmp(a.data() + i, b.data() + i, width) == 0) continue;
    *where = i / width;
    if (!floating) return false;
    const double x = value(a.data() + i), y = value(b.data() + i);
    if (!(x == y || (std::isnan(x) && std::isnan(y)))) return false;
  }
  return true;
}

}  // namespace cgx::sim
