// Random jobs for tables of segments: all operations, types, sizes, alignments and special values.
#pragma once

#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "kernels/codec.h"
#include "kernels/ops.h"
#include "tests/gpu/image.h"

namespace cgx::gpu {

using kernels::CodecRow;
using kernels::Contribution;

// Every codec at every strength with every option that has kernels.
std::vector<CodecSpec> all_specs();

// A range of a sparse codec, most entries valid, in forms and with padding of no encoder of ours.
std::vector<uint8_t> odd_sparse_range(const CodecSpec& spec, size_t elements,
                                      const kernels::DrawKey& key, std::mt19937_64& random);

// A part of the image that an operation writes.
struct Region {
  size_t offset, bytes;
};

// One segment to be: the job as it looks in either place, and what it writes.
template <class Job>
struct Planned {
  std::function<Job(Place&)> job;
  std::vector<Region> outputs;
};

// What all segments of a table share, and the randomness of one table.
class Planner {
 public:
  Planner(Image& image, const CodecSpec& spec, uint64_t seed)
      : image_(image), spec_(spec), random_(seed), wide_(wide_type()), small_(pick(2) == 0) {}

  template <class Job>
  Planned<Job> plan();
  size_t pick(size_t n) { return random_() % n; }
  size_t segments_max() const { return sparse() ? 3 : 5; }

 private:
  // The draws of one segment.
  struct Shape {
    CodecSpec spec;
    DType dtype;
    size_t elements;
    kernels::DrawKey key;
    float residual_scale;
  };
  struct Source {
    std::vector<size_t> ranks;
    std::optional<size_t> residual;
    double scale;
  };
  struct Part {
    Contribution::Kind kind = Contribution::Kind::kAbsent;
    Source raw;
    Region encoded{};
  };

  bool sparse() const { return spec_.bucket == kSparseBucket; }
  std::optional<DType> wide_type();  // of fp64 and integers, which a table has one of
  Shape shape();
  size_t reserve_values(DType dtype, size_t elements);  // filled
  size_t random_bytes(size_t at, size_t elements, DType dtype);
  size_t reserve_targets(DType dtype, size_t elements);
  std::vector<size_t> targets(const Shape& shape, size_t most, std::vector<Region>& outputs);
  size_t residual(size_t elements);
  size_t encoded_room(const Shape& shape, std::vector<Region>& outputs);
  Region encoded(const Shape& shape);
  void damage(const Region& region);
  Source source(const Shape& shape);
  std::vector<Part> parts(const Shape& shape, bool raw);

  static kernels::RawView view(Place& place, const Shape& shape, const Source& source);
  static std::span<const Contribution> contributions(Place& place, const Shape& shape,
                                                     const std::vector<Part>& parts);
  static void* const* pointers(Place& place, const std::vector<size_t>& offsets);

  Image& image_;
  CodecSpec spec_;
  std::mt19937_64 random_;
  const std::optional<DType> wide_;
  const bool small_;  // all buckets are: tables that kernels take another way
};

}  // namespace cgx::gpu
