// Where the buckets of one encoded range lie: all metadata first, then all codes, zeros up to 8
// bytes.
#pragma once

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/floats.h"

namespace cgx::kernels {
namespace {

// What vector code works on at a time: 64 values, four vectors of sixteen.
constexpr uint32_t kBlock = 64;

CGX_SHARED constexpr uint64_t blocks_of(uint64_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

CGX_SHARED constexpr uint64_t buckets_of(uint64_t elements, uint32_t bucket) {
  return (elements + bucket - 1) / bucket;
}

// Codecs with scales below buckets have metadata for every block, too.
template <class Codec>
CGX_SHARED constexpr uint32_t block_meta_bytes() {
  if constexpr (requires { Codec::kBlockMetaBytes; }) return Codec::kBlockMetaBytes;
  return 0;
}

template <class Codec>
class Range {
 public:
  CGX_SHARED Range(const CodecSpec& spec, uint64_t elements)
      : elements_(elements), bucket_(spec.bucket), buckets_(buckets_of(elements, spec.bucket)) {}

  CGX_SHARED uint64_t buckets() const { return buckets_; }
  CGX_SHARED uint64_t first(uint64_t b) const { return b * bucket_; }
  CGX_SHARED uint32_t count(uint64_t b) const {
    const uint64_t left = elements_ - first(b);
    return left < bucket_ ? static_cast<uint32_t>(left) : bucket_;
  }
  CGX_SHARED uint64_t meta(uint64_t b) const { return meta_before(b, first(b)); }
  CGX_SHARED uint64_t codes(uint64_t b) const {
    return codes_begin() + Codec::code_bytes(first(b));
  }
  CGX_SHARED uint64_t end() const { return codes_begin() + Codec::code_bytes(elements_); }
  CGX_SHARED uint64_t padded_end() const { return (end() + 7) & ~uint64_t{7}; }

 private:
  CGX_SHARED uint64_t codes_begin() const { return meta_before(buckets_, elements_); }
  CGX_SHARED static uint64_t meta_before(uint64_t buckets, uint64_t elements) {
    return Codec::kMetaBytes * buckets + block_meta_bytes<Codec>() * blocks_of(elements);
  }

  uint64_t elements_;
  uint32_t bucket_;
  uint64_t buckets_;
};

}  // namespace
}  // namespace cgx::kernels
