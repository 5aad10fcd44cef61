#include "tests/gpu/cases.h"

#include "kernels/cuda/cuda_lane.h"
#include "tests/gpu/device.h"

namespace cgx::gpu {
namespace {

using namespace kernels;

constexpr DType kTypes[] = {DType::kF32, DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kWideTypes[] = {DType::kF64, DType::kI8, DType::kU8, DType::kI32, DType::kI64};
constexpr uint32_t kSpecial[] = {
    0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345, 0x7f7fffff,
    0xff7fffff, 1,          0x807fffff, 0x00800000, 0x477ff000, 0x477fefff, 0xc77ff000, 0x477f8000,
    0x477f7fff, 0x7f7f8000, 0x7f7f7fff, 0x7e000000, 0x7dffffff, 0x3f800000, 0x33000000, 0x38800000};

std::byte* as_bytes(uint8_t* p) {
  return reinterpret_cast<std::byte*>(p);
}

}  // namespace

namespace {

// Few and many values, of all kinds; with feedback nothing is multiplied.
void add_sparse_specs(const CodecRow& row, std::vector<CodecSpec>& specs) {
  for (const float amount : {0.01f, 0.25f}) {
    for (uint8_t values = 0; values < 4; ++values) {
      CodecSpec spec{.codec = row.number, .bucket = kSparseBucket, .amount = amount};
      spec.values = static_cast<SparseValues>(values);
      specs.push_back(spec);
      spec.flags = CodecSpec::kFeedback;
      if (row.shared_draws) specs.push_back(spec);
    }
  }
}

}  // namespace

std::vector<CodecSpec> all_specs() {
  std::vector<CodecSpec> specs;
  for (const CodecRow& row : codecs()) {
    if (row.sparse) add_sparse_specs(row, specs);
    for (uint8_t bits = row.bits_min; bits <= row.bits_max; ++bits) {
      for (uint8_t flags = 0; flags < 16; ++flags) {
        const CodecSpec spec{.codec = row.number, .bits = bits, .flags = flags, .bucket = 512};
        const bool chosen = (flags & CodecSpec::kFeedback) == (row.implied & CodecSpec::kFeedback);
        if (chosen && validate(spec, DType::kF32).ok()) specs.push_back(spec);
      }
    }
  }
  return specs;
}

std::optional<DType> Planner::wide_type() {
  if (spec_.codec != 0 || !kDeviceTakesWide || pick(2) == 0) return {};
  return kWideTypes[pick(std::size(kWideTypes))];
}

Planner::Shape Planner::shape() {
  Shape shape{.spec = spec_, .dtype = wide_.value_or(kTypes[pick(4)])};
  if (!sparse()) {
    const size_t blocks = small_ ? pick(4) : pick(4) ? pick(8) : pick(64);
    shape.spec.bucket = 64 * static_cast<uint32_t>(1 + blocks);
  }
  const uint32_t bucket = shape.spec.bucket, most = sparse() ? 3 : 6;
  const size_t sizes[] = {pick(4),
                          62 + pick(4),
                          pick(200),
                          bucket - 1,
                          bucket,
                          bucket + 1,
                          2 * bucket,
                          bucket * (1 + pick(most - 2)),
                          pick(most * bucket)};
  shape.elements = sizes[pick(std::size(sizes))];
  shape.key = {random_(), pick(1000)};
  shape.residual_scale = pick(2) ? 1.0f : 0.75f;
  return shape;
}

size_t Planner::reserve_targets(DType dtype, size_t elements) {
  const size_t width = dtype_bytes(dtype);
  return image_.reserve(elements * width, pick(2) ? 0 : width * pick(9));
}

// Bit patterns, some of them of fp64's values without a number.
size_t Planner::random_bytes(size_t at, size_t elements, DType dtype) {
  const size_t width = dtype_bytes(dtype);
  for (size_t i = 0; i < elements; ++i) {
    uint64_t bits = random_();
    if (dtype == DType::kF64 && pick(100) == 0) bits |= 0x7ff0000000000000u;
    std::memcpy(image_.host() + at + width * i, &bits, width);
  }
  return at;
}

// Gradients, bit patterns, or special values mixed in.
size_t Planner::reserve_values(DType dtype, size_t elements) {
  // A sparse bucket is large, so that a few special values would leave no finite one.
  constexpr size_t kFinite[] = {2, 4, 5, 7};
  const size_t kind = sparse() && pick(5) ? kFinite[pick(4)] : pick(8);
  const size_t at = reserve_targets(dtype, elements), share = pick(4);
  const size_t rare = pick(2) ? 50 : 100'000;
  const float sigma = std::ldexp(1.0f, static_cast<int>(pick(2) ? pick(20) : pick(250)) - 125);
  std::normal_distribution<float> normal;
  uint8_t* bytes = image_.host() + at;
  if (!dtype_is_small_float(dtype)) return random_bytes(at, elements, dtype);
  for (size_t i = 0; i < elements; ++i) {
    float x = 4 * pick(4) < 4 * share && pick(2) ? 0.0f : sigma * normal(random_);
    if (kind == 0 || (kind == 1 && pick(rare) == 0)) {
      x = std::bit_cast<float>(kSpecial[pick(std::size(kSpecial))]);
    }
    if (kind == 2) x = 3.5f + 0.001f * x;
    if (kind == 4) x /= sigma;
    if (kind == 5) x = static_cast<float>(pick(7)) - 3.0f;  // many that are equal
    if (kind == 6) x = std::bit_cast<float>(kSpecial[std::size(kSpecial) - 1 - pick(17)]);
    uint32_t bits = std::bit_cast<uint32_t>(x);
    if (kind == 3) bits = static_cast<uint32_t>(random_());
    // As large as the type holds, so that sums of two are too large for it.
    if (kind == 7 && pick(rare) == 0) bits = dtype == DType::kF16 ? 0x7bff0000 : 0x7f7f0000;
    if (dtype == DType::kF32) {
      std::memcpy(bytes + 4 * i, &bits, 4);
    } else {  // as fp16 other values than meant, which does as well
      std::memcpy(bytes + 2 * i, reinterpret_cast<uint8_t*>(&bits) + 2, 2);
    }
  }
  return at;
}

size_t Planner::residual(size_t elements) {
  const size_t at = reserve_targets(DType::kF32, elements);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (size_t i = 0; i < elements; ++i) {
    const float x = normal(random_);
    std::memcpy(image_.host() + at + 4 * i, &x, 4);
  }
  return at;
}

std::vector<size_t> Planner::targets(const Shape& shape, size_t most,
                                     std::vector<Region>& outputs) {
  std::vector<size_t> offsets;
  for (size_t count = pick(most + 1); count > 0; --count) {
    offsets.push_back(reserve_targets(shape.dtype, shape.elements));
    outputs.push_back({offsets.back(), shape.elements * dtype_bytes(shape.dtype)});
  }
  return offsets;
}

size_t Planner::encoded_room(const Shape& shape, std::vector<Region>& outputs) {
  const size_t bytes = encoded_bytes(shape.spec, shape.dtype, shape.elements);
  outputs.push_back({image_.reserve(bytes, pick(2) ? 0 : pick(2) ? 8 : pick(18)), bytes});
  return outputs.back().offset;
}

Planner::Source Planner::source(const Shape& shape) {
  constexpr double kScales[] = {1.0, 1.0, 1.0 / 3, 0.5};
  Source source{.scale = kScales[pick(4)]};
  for (size_t count = pick(4) ? 1 + pick(3) : 0; count > 0; --count) {
    source.ranks.push_back(reserve_values(shape.dtype, shape.elements));
  }
  if (pick(2)) source.residual = residual(shape.elements);
  return source;
}

// What another machine would send.
Region Planner::encoded(const Shape& shape) {
  if (sparse() && pick(3) == 0) {
    const auto bytes = odd_sparse_range(shape.spec, shape.elements, shape.key, random_);
    const size_t at = image_.reserve(bytes.size(), pick(2) ? 0 : pick(18));
    std::copy(bytes.begin(), bytes.end(), image_.host() + at);
    return {at, bytes.size()};
  }
  std::vector<Region> region;
  encoded_room(shape, region);
  Place place(image_.host(), nullptr);
  const Source from = source(shape);
  EncodeJob job{.spec = shape.spec, .elements = shape.elements, .key = shape.key};
  job.source = view(place, shape, from);
  job.encoded = {as_bytes(place.at(region[0].offset)), region[0].bytes};
  RangeStats stats;
  region[0].bytes = scalar_ops.codec(shape.spec, shape.dtype).encode(job, Tuning(), stats);
  return region[0];
}

void Planner::damage(const Region& region) {
  for (size_t i = 0; region.bytes > 0 && i < 1 + pick(8); ++i) {
    // Where sparse entries say the most, half of the time.
    const size_t at =
        sparse() && pick(2) ? pick(std::min<size_t>(region.bytes, 24)) : pick(region.bytes);
    image_.host()[region.offset + at] = static_cast<uint8_t>(random_());
  }
}

std::vector<Planner::Part> Planner::parts(const Shape& shape, bool raw) {
  std::vector<Part> parts(pick(6));
  const size_t own = raw ? pick(6) : parts.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == own) {
      parts[i].kind = Contribution::Kind::kRaw;
      parts[i].raw = source(shape);
    } else if (pick(5)) {
      parts[i].kind = Contribution::Kind::kEncoded;
      parts[i].encoded = encoded(shape);
      if (pick(20) == 0) damage(parts[i].encoded);
    }
  }
  return parts;
}

RawView Planner::view(Place& place, const Shape& shape, const Source& source) {
  RawView view{.rank_count = static_cast<uint32_t>(source.ranks.size()), .dtype = shape.dtype};
  view.ranks = pointers(place, source.ranks);
  view.scale = source.scale;
  view.residual_scale = shape.residual_scale;
  if (source.residual) view.residual_in = reinterpret_cast<float*>(place.at(*source.residual));
  return view;
}

std::span<const Contribution> Planner::contributions(Place& place, const Shape& shape,
                                                     const std::vector<Part>& parts) {
  std::vector<Contribution> list(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    list[i].kind = parts[i].kind;
    list[i].raw = view(place, shape, parts[i].raw);
    list[i].encoded = {as_bytes(place.at(parts[i].encoded.offset)), parts[i].encoded.bytes};
  }
  return {place.put(list), list.size()};
}

void* const* Planner::pointers(Place& place, const std::vector<size_t>& offsets) {
  std::vector<void*> list;
  for (const size_t offset : offsets) list.push_back(place.at(offset));
  return place.put(list);
}

template <>
Planned<EncodeJob> Planner::plan() {
  const Shape s = shape();
  const Source from = source(s);
  Planned<EncodeJob> planned;
  const size_t room = encoded_room(s, planned.outputs);
  std::optional<size_t> residual_out;
  if (pick(2)) residual_out = residual(s.elements);
  const bool norms = pick(2);
  planned.job = [=](Place& place) {
    EncodeJob job{.spec = s.spec, .elements = s.elements, .key = s.key};
    job.source = view(place, s, from);
    job.encoded = {as_bytes(place.at(room)), encoded_bytes(s.spec, s.dtype, s.elements)};
    if (residual_out) job.residual_out = reinterpret_cast<float*>(place.at(*residual_out));
    job.norms = norms;
    return job;
  };
  return planned;
}

template <>
Planned<DecodeJob> Planner::plan() {
  const Shape s = shape();
  const Region from = encoded(s);
  if (pick(4) == 0) damage(from);
  Planned<DecodeJob> planned;
  const std::vector<size_t> to = targets(s, 3, planned.outputs);
  const size_t old = residual(s.elements), kept = residual(s.elements), feedback = pick(3);
  planned.outputs.push_back({kept, 4 * s.elements});
  planned.job = [=](Place& place) {
    DecodeJob job{.spec = s.spec, .elements = s.elements, .dtype = s.dtype};
    job.encoded = {as_bytes(place.at(from.offset)), from.bytes};
    job.targets = pointers(place, to);
    job.target_count = static_cast<uint32_t>(to.size());
    if (feedback == 2) job.residual_in = reinterpret_cast<float*>(place.at(old));
    if (feedback > 0) job.residual_out = reinterpret_cast<float*>(place.at(kept));
    job.residual_scale = s.residual_scale;
    return job;
  };
  return planned;
}

template <>
Planned<DecodeAddJob> Planner::plan() {
  Shape s = shape();
  s.dtype = DType::kF32;
  const Region from = encoded(s);
  if (pick(8) == 0) damage(from);
  Planned<DecodeAddJob> planned;
  const size_t sum = reserve_values(DType::kF32, s.elements);
  planned.outputs.push_back({sum, 4 * s.elements});
  planned.job = [=](Place& place) {
    DecodeAddJob job{.spec = s.spec, .elements = s.elements};
    job.encoded = {as_bytes(place.at(from.offset)), from.bytes};
    job.sum = reinterpret_cast<float*>(place.at(sum));
    return job;
  };
  return planned;
}

template <>
Planned<ReduceJob> Planner::plan() {
  const Shape s = shape();
  const std::vector<Part> from = parts(s, true);
  Planned<ReduceJob> planned;
  const size_t room = encoded_room(s, planned.outputs);
  std::vector<size_t> to = targets(s, 2, planned.outputs);
  for (const Part& part : from) {
    if (part.kind != Contribution::Kind::kRaw || pick(2)) continue;
    to = part.raw.ranks;  // in place
    for (const size_t rank : to) {
      planned.outputs.push_back({rank, s.elements * dtype_bytes(s.dtype)});
    }
  }
  const size_t old = residual(s.elements), next = residual(s.elements), feedback = pick(3);
  planned.outputs.push_back({next, 4 * s.elements});
  const bool norms = pick(2);
  planned.job = [=](Place& place) {
    ReduceJob job{.spec = s.spec, .elements = s.elements, .dtype = s.dtype, .key = s.key};
    job.contributions = contributions(place, s, from);
    job.encoded = {as_bytes(place.at(room)), encoded_bytes(s.spec, s.dtype, s.elements)};
    job.targets = pointers(place, to);
    job.target_count = static_cast<uint32_t>(to.size());
    if (feedback == 2) job.residual_in = reinterpret_cast<float*>(place.at(old));
    if (feedback > 0) job.residual_out = reinterpret_cast<float*>(place.at(next));
    job.residual_scale = s.residual_scale;
    job.norms = norms;
    return job;
  };
  return planned;
}

template <>
Planned<CombineJob> Planner::plan() {
  const Shape s = shape();
  const std::vector<Part> from = parts(s, false);
  Planned<CombineJob> planned;
  const std::vector<size_t> to = targets(s, 2, planned.outputs);
  const size_t old = residual(s.elements), kept = residual(s.elements), feedback = pick(3);
  planned.outputs.push_back({kept, 4 * s.elements});
  planned.job = [=](Place& place) {
    CombineJob job{.spec = s.spec, .elements = s.elements, .dtype = s.dtype};
    job.contributions = contributions(place, s, from);
    job.targets = pointers(place, to);
    job.target_count = static_cast<uint32_t>(to.size());
    if (feedback == 2) job.residual_in = reinterpret_cast<float*>(place.at(old));
    if (feedback > 0) job.residual_out = reinterpret_cast<float*>(place.at(kept));
    job.residual_scale = s.residual_scale;
    return job;
  };
  return planned;
}

}  // namespace cgx::gpu
