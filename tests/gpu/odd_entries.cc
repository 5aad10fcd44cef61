// Sparse ranges as no encoder of ours writes them: valid ones in any form, with anything for
// padding, and ones with a single thing wrong.
#include <cstring>

#include "kernels/codecs/sparse.h"
#include "tests/gpu/cases.h"

namespace cgx::gpu {
namespace {

using namespace kernels;

enum Fault {
  kLaterIndex,
  kSameIndex,
  kMoreCounted,
  kFewerCounted,
  kLonger,
  kFlag,
  kForm,
  kKey,
  kBadValue,
  kFaults
};

class OddEntry {
 public:
  OddEntry(const CodecSpec& spec, uint32_t n, std::mt19937_64& random)
      : spec_(spec),
        n_(n),
        random_(random),
        fault_(pick(2) ? static_cast<size_t>(kFaults) : pick(kFaults)) {}

  // topk and threshold: any form.
  std::vector<uint8_t> listed(uint32_t most) {
    const uint32_t wanted = 1 + pick(pick(2) ? most : std::min(most, 40u));
    for (uint32_t e = 0; e < n_ && index_.size() < wanted; ++e) {
      if (pick(n_ - e) < wanted - index_.size()) index_.push_back(e);
    }
    header_.form = static_cast<IndexForm>(1 + pick(3));
    const bool last = header_.form == IndexForm::kBitmap || pick(2);
    if (fault_ == kLaterIndex && last) index_.back() = n_ + pick(8);
    if (fault_ == kLaterIndex && pick(2)) index_[pick(index_.size())] += 1 + pick(pick(2) ? 3 : n_);
    if (fault_ == kSameIndex) {
      const size_t i = pick(index_.size());
      index_[i] = index_[i == 0 ? 0 : i - 1];
    }
    put_indices();
    return finish(static_cast<uint32_t>(index_.size()));
  }
  std::vector<uint8_t> drawn(uint32_t count, uint64_t key) {
    header_.form = IndexForm::kDrawn;
    if (fault_ == kKey) ++key;
    bytes_.resize(sizeof(key));
    std::memcpy(bytes_.data(), &key, sizeof(key));
    return finish(count);
  }

 private:
  size_t pick(size_t n) { return random_() % n; }
  void put(uint32_t byte) { bytes_.push_back(static_cast<uint8_t>(byte)); }
  void pad() {
    while (bytes_.size() % 8 != 0) put(pick(256));
  }

  void put_indices() {
    if (header_.form == IndexForm::kBitmap) bytes_.resize(bitmap_bytes(n_) + 8);
    uint32_t next = 0;
    for (const uint32_t index : index_) {
      if (header_.form == IndexForm::kList) {
        put(index), put(index >> 8);
      } else if (header_.form == IndexForm::kBitmap) {
        bytes_[std::min<size_t>(index / 8, bytes_.size() - 1)] |= 1u << index % 8;
      } else {
        uint32_t gap = index - std::min(next, index);
        for (; gap >= kGapMore; gap -= kGapMore) put(kGapMore);
        put(gap);
        next = index + 1;
      }
    }
    if (header_.form == IndexForm::kBitmap) bytes_.resize(bitmap_bytes(n_));
    pad();
  }

  // Numbers, or units and offsets before codes; the rest is random.
  void put_values(uint32_t count) {
    const size_t from = bytes_.size();
    bytes_.resize(from + value_bytes(spec_.values, count));
    for (size_t i = from; i < bytes_.size(); ++i) bytes_[i] = static_cast<uint8_t>(pick(256));
    uint8_t* values = bytes_.data() + from;
    const bool halves = spec_.values == SparseValues::kF16;
    const bool levels = !halves && spec_.values != SparseValues::kF32;
    const size_t numbers = levels ? 2 * buckets_of(count, kValueBucket) : count;
    const size_t bad = fault_ == kBadValue ? pick(numbers) : numbers;
    for (size_t i = 0; i < numbers; ++i) {
      float x = static_cast<float>(1 + pick(9));
      if (pick(2) && (!levels || i % 2 == 0)) x = -x;  // a negative unit: zero-exact
      if (i == bad) x = float_of(pick(2) ? kInfBits : kNanBits);
      const uint16_t half = to_half(x);
      if (halves) std::memcpy(values + 2 * i, &half, sizeof(half));
      if (!halves) std::memcpy(values + 4 * i, &x, sizeof(x));
    }
  }

  std::vector<uint8_t> finish(uint32_t count) {
    put_values(count);
    if (fault_ == kLonger) bytes_.resize(bytes_.size() + 8 * (1 + pick(2)));
    header_.bytes = static_cast<uint32_t>(kSparseHeaderBytes + bytes_.size());
    header_.count =
        static_cast<uint16_t>(count + (fault_ == kMoreCounted) - (fault_ == kFewerCounted));
    if (fault_ == kFlag) header_.flags = static_cast<uint8_t>(1 + pick(2));
    if (fault_ == kForm) header_.form = static_cast<IndexForm>(pick(6));
    std::vector<uint8_t> entry(header_.bytes);
    std::memcpy(entry.data(), &header_, sizeof(header_));
    std::memcpy(entry.data() + sizeof(header_), bytes_.data(), bytes_.size());
    return entry;
  }

  const CodecSpec& spec_;
  const uint32_t n_;
  std::mt19937_64& random_;
  const size_t fault_;
  SparseHeader header_;
  std::vector<uint32_t> index_;
  std::vector<uint8_t> bytes_;  // behind the header
};

template <class Codec>
std::vector<uint8_t> odd_entry(const CodecSpec& spec, uint32_t n, uint64_t key,
                               std::mt19937_64& random) {
  OddEntry entry(spec, n, random);
  const uint32_t most = Codec::want(spec, n).most;
  if constexpr (Codec::kDrawn) {
    return entry.drawn(most, key);
  } else {
    return entry.listed(most);
  }
}

template <class Codec>
std::vector<uint8_t> odd_range(const CodecSpec& spec, size_t elements, const DrawKey& key,
                               std::mt19937_64& random) {
  std::vector<uint8_t> range;
  for (size_t first = 0; first < elements; first += kSparseBucket) {
    const size_t left = elements - first;
    const uint32_t n = static_cast<uint32_t>(std::min<size_t>(left, kSparseBucket));
    const uint64_t own = bucket_key(key.stream, key.first_bucket + first / kSparseBucket);
    const std::vector<uint8_t> entry = odd_entry<Codec>(spec, n, own, random);
    range.insert(range.end(), entry.begin(), entry.end());
  }
  return range;
}

}  // namespace

std::vector<uint8_t> odd_sparse_range(const CodecSpec& spec, size_t elements,
                                      const kernels::DrawKey& key, std::mt19937_64& random) {
  const CodecRow& row = *find_codec(spec.codec);
  if (row.shared_draws) return odd_range<RandomK>(spec, elements, key, random);
  return row.strength == Strength::kShare ? odd_range<TopK>(spec, elements, key, random)
                                          : odd_range<Threshold>(spec, elements, key, random);
}

}  // namespace cgx::gpu
