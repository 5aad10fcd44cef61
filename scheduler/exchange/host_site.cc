#include "scheduler/exchange/host_site.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/floats.h"

namespace cgx::scheduler {
namespace {

// Fresh memory costs as much as much arithmetic, a page at a time: it is touched before it is used.
class HostResidual final : public SiteResidual {
 public:
  static std::shared_ptr<SiteResidual> make(uint64_t elements) {
    auto residual = std::make_shared<HostResidual>(elements);
    return residual->memory_ == MAP_FAILED ? nullptr : residual;
  }
  explicit HostResidual(uint64_t elements)
      : bytes_((elements * sizeof(float) + kPage - 1) / kPage * kPage + kPage) {
    memory_ = mmap(nullptr, 2 * bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;
    if (bytes_ >= kHugePage) (void)madvise(memory_, 2 * bytes_, MADV_HUGEPAGE);  // a wish
  }
  ~HostResidual() override {
    if (memory_ != MAP_FAILED) munmap(memory_, 2 * bytes_);
  }
  HostResidual(const HostResidual&) = delete;
  HostResidual& operator=(const HostResidual&) = delete;

  uint64_t touch() override {
    const uint64_t begin = touched_;
    auto* const memory = static_cast<volatile std::byte*>(memory_);
    const uint64_t end = std::min(begin + kHugePage, 2 * bytes_);
    for (; touched_ < end; touched_ += kPage) memory[touched_] = std::byte{0};
    return touched_ - begin;
  }
  float* slot(uint32_t index) const {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory_) + index * bytes_);
  }

 private:
  static constexpr uint64_t kPage = 4096, kHugePage = 2 << 20;
  uint64_t bytes_;  // of a slot
  void* memory_;
  uint64_t touched_ = 0;
};

bool is_aligned(const std::byte* values) {
  return reinterpret_cast<uintptr_t>(values) % alignof(float) == 0;
}

struct ResidualSlots {  // null where there is none to read, or to write
  const float* confirmed = nullptr;
  float* tentative = nullptr;
};

class HostOperation final : public SiteOperation {
 public:
  HostOperation(const OperationSetup& setup, const kernels::Lane& lane, const ArenaTable& arenas,
                const SlabStore& slabs, uint32_t piece, HostScratch& scratch)
      : lane_(lane), arenas_(arenas), slabs_(slabs), piece_(piece), scratch_(scratch) {
    begin_again(setup);
  }

  bool reusable() const override { return true; }
  void begin_again(const OperationSetup& setup) override {
    setup_ = &setup;
    norms_.assign(setup.norms && setup.machines > 1 ? setup.segments.size() : 0, {});
    losses_.assign(setup.strengths && setup.machines > 1 ? setup.segments.size() : 0, {});
  }

  std::optional<SiteAnswer> ask(Ticket ticket, const SiteJob& job) override {
    (void)ticket;
    SiteAnswer answer;
    answer.status = run(job, answer);
    return answer;
  }
  const std::vector<Norms>& norms() const override { return norms_; }
  const std::vector<LossSample>& losses() const override { return losses_; }

 private:
  Status run(const SiteJob& job, SiteAnswer& answer) {
    kernels::restore_float_mode();
    switch (job.kind) {
      case SiteJobKind::kEncode:
        return encode(job, answer);
      case SiteJobKind::kDecode:
        return decode(job);
      case SiteJobKind::kReduce:
        return reduce(job, answer);
      case SiteJobKind::kCombine:
        return combine(job, answer);
      case SiteJobKind::kLocalReduce:
        return local_reduce(job);
      case SiteJobKind::kKeep:
        return keep(job);
      case SiteJobKind::kHash:
        return hash(job, answer);
    }
    return internal_error("no such job of a site");
  }

  Status encode(const SiteJob& job, SiteAnswer& answer) {
    const std::span<std::byte> out = slabs_.bytes(job.into).subspan(job.offset);
    for (const Slice& slice : slices(job)) {
      if (!job.presence->test(slice.segment)) continue;
      measure_losses(slice);
      const ResidualSlots residual = residual_of(slice);
      const uint64_t range = slice.range(job.in_rack);
      const kernels::EncodeJob task{.spec = setup_->planned(slice).codec(job.in_rack),
                                    .source = raw_view(slice),
                                    .elements = slice.elements,
                                    .key = draw_key(*setup_, slice, kFirstEncoding, job.in_rack),
                                    .residual_out = residual.tentative,
                                    .encoded = out.subspan(answer.bytes, range),
                                    .norms = wants_norms(slice, job.in_rack)};
      kernels::RangeStats stats;
      const uint64_t used = lane_.encode(task, stats);
      note(slice, stats, answer);
      answer.bytes += static_cast<uint32_t>(pad_range(out.subspan(answer.bytes), used));
    }
    return {};
  }

  Status decode(const SiteJob& job) {
    std::span<const std::byte> rest = bytes_of(job.frame);
    kernels::RangeStats stats;
    for (const Slice& slice : slices(job)) {
      if (!job.presence->test(slice.segment)) continue;
      auto task = job_into<kernels::DecodeJob>(slice);
      CGX_ASSIGN_OR_RETURN(task.encoded,
                           take_range(setup_->planned(slice), setup_->dtype(slice), slice, rest));
      CGX_RETURN_IF_ERROR(lane_.decode(task, stats));
    }
    return {};
  }

  Status reduce(const SiteJob& job, SiteAnswer& answer) {
    const std::span<std::byte> out = slabs_.bytes(job.into).subspan(job.offset);
    open(job.from);
    for (const Slice& slice : slices(job)) {
      if (!job.presence->test(slice.segment)) continue;
      CGX_RETURN_IF_ERROR(take_contributions(job.from, slice));
      auto task = job_into<kernels::ReduceJob>(slice);
      if (!job.results) task.target_count = 0, task.dtype = sum_dtype(task.dtype);
      task.contributions = scratch_.contributions;
      task.key = draw_key(*setup_, slice, kSecondEncoding);
      task.encoded = out.subspan(answer.bytes, slice.range_bytes);
      task.norms = wants_norms(slice);
      kernels::RangeStats stats;
      CGX_ASSIGN_OR_RETURN(const uint64_t used, lane_.reduce(task, stats));
      note(slice, stats, answer);
      answer.bytes += static_cast<uint32_t>(pad_range(out.subspan(answer.bytes), used));
    }
    return {};
  }

  Status combine(const SiteJob& job, SiteAnswer& answer) {
    open(job.from);
    for (const Slice& slice : slices(job)) {
      if (!job.presence->test(slice.segment)) continue;
      CGX_RETURN_IF_ERROR(take_contributions(job.from, slice));
      auto task = job_into<kernels::CombineJob>(slice);
      task.contributions = scratch_.contributions;
      kernels::RangeStats stats;
      CGX_RETURN_IF_ERROR(lane_.combine(task, stats));
      note(slice, stats, answer);
    }
    return {};
  }

  Status local_reduce(const SiteJob& job) {
    for (const Slice& slice : slices(job)) {
      if (!job.presence->test(slice.segment)) continue;
      lane_.local_reduce({.source = raw_view(slice),
                          .elements = slice.elements,
                          .targets = targets(slice),
                          .target_count = target_count(slice),
                          .residual_out = residual_of(slice).tentative,
                          .bucket = std::min(setup_->planned(slice).spec.bucket, kBucketMax)});
    }
    return {};
  }

  Status keep(const SiteJob& job) {
    const LocalSegment& segment = setup_->segments[job.segment];
    const ResidualSlots slots = slots_of(segment);
    const float* const from = slots.confirmed + job.first;
    std::transform(
        from, from + job.count, slots.tentative + job.first,
        [scale = segment.residual_scale](float kept) { return kernels::rescaled(kept, scale); });
    return {};
  }

  Status hash(const SiteJob& job, SiteAnswer& answer) {
    const std::byte* const result = arenas_.address(setup_->segments[job.segment].outputs.front());
    answer.hash = wire::checksum({result + job.first, job.count});
    return {};
  }

  std::span<const Slice> slices(const SiteJob& job) const {
    return setup_->layout->slices(setup_->layout->part(job.part));
  }
  std::span<const std::byte> bytes_of(const FrameBytes& frame) const {
    if (frame.length == 0) return {};
    if (frame.live != nullptr) return {frame.live, frame.length};
    return slabs_.bytes(frame.slab).subspan(frame.offset, frame.length);
  }
  bool wants_norms(const Slice& slice, bool in_rack = false) const {
    return !norms_.empty() && setup_->planned(slice).codec(in_rack).codec != 0;
  }
  uint32_t target_count(const Slice& slice) const {
    return static_cast<uint32_t>(setup_->segments[slice.segment].outputs.size());
  }

  static ResidualSlots slots_of(const LocalSegment& segment) {
    if (segment.residual == nullptr) return {};
    const auto& residual = static_cast<const HostResidual&>(*segment.residual);
    return {residual.slot(segment.confirmed),
            segment.drains ? nullptr : residual.slot(1 - segment.confirmed)};
  }
  ResidualSlots residual_of(const Slice& slice) const {
    ResidualSlots slots = slots_of(setup_->segments[slice.segment]);
    if (slots.confirmed != nullptr) slots.confirmed += slice.first_element;
    if (slots.tentative != nullptr) slots.tentative += slice.first_element;
    return slots;
  }

  // Each contribution from its first range on.
  void open(std::span<const SiteContribution> from) {
    scratch_.contributions.resize(from.size());
    scratch_.values.resize(from.size());
    scratch_.rest.clear();
    for (const SiteContribution& each : from) scratch_.rest.push_back(bytes_of(each.frame));
  }
  Status take_contributions(std::span<const SiteContribution> from, const Slice& slice) {
    decoded_ = setup_->decoded == nullptr ? std::span<float>() : setup_->decoded->piece(piece_);
    for (uint32_t k = 0; k < from.size(); ++k) {
      kernels::Contribution& contribution = scratch_.contributions[k];
      contribution = {};
      if (from[k].own_ranks) {
        measure_losses(slice);
        contribution = {.kind = kernels::Contribution::Kind::kRaw, .raw = raw_view(slice)};
        continue;
      }
      if (from[k].presence == nullptr || !from[k].presence->test(slice.segment)) continue;
      contribution.kind = kernels::Contribution::Kind::kEncoded;
      CGX_ASSIGN_OR_RETURN(contribution.encoded,
                           take_range(setup_->planned(slice), setup_->dtype(slice), slice,
                                      scratch_.rest[k], from[k].in_rack));
      if (from[k].in_rack && setup_->planned(slice).rack_spec) {
        CGX_RETURN_IF_ERROR(make_raw(slice, k));
      }
    }
    return {};
  }

  // A reduction decodes what it adds with the codec that it encodes the sum with. What came with
  // the rack's is added as what it is worth: the bits are those of adding it decoded.
  Status make_raw(const Slice& slice, uint32_t k) {
    kernels::Contribution& contribution = scratch_.contributions[k];
    const std::span<const std::byte> encoded = contribution.encoded;
    scratch_.values[k] = encoded.data();
    const CodecSpec& spec = *setup_->planned(slice).rack_spec;
    const bool values = spec.codec == 0 && is_aligned(encoded.data());
    if (!values) CGX_RETURN_IF_ERROR(decode_contribution(spec, slice.elements, k));
    contribution = {.kind = kernels::Contribution::Kind::kRaw,
                    .raw = {.ranks = &scratch_.values[k], .rank_count = 1}};
    return {};
  }

  Status decode_contribution(const CodecSpec& spec, uint64_t elements, uint32_t k) {
    void* const target = decoded_.data();
    CGX_ASSERT(elements <= decoded_.size());
    decoded_ = decoded_.subspan(align_range(elements * sizeof(float)) / sizeof(float));
    scratch_.values[k] = target;
    kernels::DecodeJob task{.spec = spec, .encoded = scratch_.contributions[k].encoded};
    task.elements = elements;
    task.targets = &target;
    task.target_count = 1;
    kernels::RangeStats stats;
    return lane_.decode(task, stats);
  }

  // Where a slice's result and its residual go, for any job that has both.
  template <class Job>
  Job job_into(const Slice& slice) {
    Job job{.spec = setup_->planned(slice).spec};
    job.elements = slice.elements;
    job.dtype = setup_->dtype(slice);
    job.targets = targets(slice);
    job.target_count = target_count(slice);
    const ResidualSlots residual = residual_of(slice);
    if (residual.tentative == nullptr) return job;
    job.residual_in = residual.confirmed;
    job.residual_out = residual.tentative;
    job.residual_scale = setup_->segments[slice.segment].residual_scale;
    return job;
  }

  kernels::RawView raw_view(const Slice& slice) {
    const LocalSegment& segment = setup_->segments[slice.segment];
    const DType dtype = setup_->dtype(slice);
    const uint64_t offset = slice.first_element * dtype_bytes(dtype);
    scratch_.inputs.clear();
    for (const Place& input : segment.inputs)
      scratch_.inputs.push_back(arenas_.address(input) + offset);
    return {.ranks = scratch_.inputs.data(),
            .rank_count = static_cast<uint32_t>(scratch_.inputs.size()),
            .dtype = dtype,
            .scale = segment.scale,
            .residual_in = residual_of(slice).confirmed,
            .residual_scale = segment.residual_scale};
  }

  void* const* targets(const Slice& slice) {
    const uint64_t offset = slice.first_element * dtype_bytes(setup_->dtype(slice));
    scratch_.targets.clear();
    for (const Place& output : setup_->segments[slice.segment].outputs) {
      scratch_.targets.push_back(arenas_.address(output) + offset);
    }
    return scratch_.targets.data();
  }

  void note(const Slice& slice, const kernels::RangeStats& stats, SiteAnswer& answer) {
    answer.nonfinite_buckets += stats.nonfinite_buckets;
    answer.saturated += stats.saturated;
    if (norms_.empty()) return;
    norms_[slice.segment].intended_sq += stats.intended_sq;
    norms_[slice.segment].sent_sq += stats.sent_sq;
  }

  // The own ranks' values of a slice are all looked at in one place: where they are encoded, or
  // added without being.
  void measure_losses(const Slice& slice) {
    const LocalSegment& segment = setup_->segments[slice.segment];
    if (losses_.empty() || !segment.measured || segment.inputs.empty()) return;
    const std::vector<CodecSpec>& strengths = *setup_->strengths;
    const LossPieces pieces = loss_pieces(strengths, slice.elements);
    LossSample sample;
    for (uint64_t i = 0; i < pieces.count; ++i) {
      Slice part = slice;
      part.first_element += pieces.first(slice.elements, i);
      part.elements = pieces.elements;
      sample += loss_of(part, strengths);
    }
    losses_[slice.segment] += sample.of_all(slice.elements);
  }

  LossSample loss_of(const Slice& slice, const std::vector<CodecSpec>& strengths) {
    LossSample sample{.values = static_cast<double>(slice.elements)};
    scratch_.lost.resize(slice.elements);
    for (size_t i = 0; i < strengths.size(); ++i) {
      const kernels::RangeStats stats = lose(slice, strengths[i], raw_view(slice));
      if (stats.nonfinite_buckets > 0) return {.nonfinite = static_cast<double>(slice.elements)};
      sample.intended = stats.intended_sq;
      sample.lost[i] = squares_of(scratch_.lost);
    }
    kernels::RawView gradient = raw_view(slice);
    if (gradient.residual_in == nullptr) return sample;
    const std::span<const float> kept(gradient.residual_in, slice.elements);
    const double scale = gradient.residual_scale;
    sample.residual = squares_of(kept) * scale * scale;
    gradient.residual_in = nullptr;
    sample.gradient = lose(slice, strengths.front(), gradient).intended_sq;
    return sample;
  }

  // What the codec does not send, into the scratch.
  kernels::RangeStats lose(const Slice& slice, const CodecSpec& spec,
                           const kernels::RawView& source) {
    scratch_.encoded.resize(kernels::encoded_bytes(spec, setup_->dtype(slice), slice.elements));
    kernels::RangeStats stats;
    (void)lane_.encode({.spec = spec,
                        .source = source,
                        .elements = slice.elements,
                        .key = {setup_->step, slice.first_element},
                        .residual_out = scratch_.lost.data(),
                        .encoded = scratch_.encoded,
                        .norms = true},
                       stats);
    return stats;
  }

  static double squares_of(std::span<const float> values) {
    return std::transform_reduce(values.begin(), values.end(), 0.0, std::plus<>(), [](float value) {
      return static_cast<double>(value) * static_cast<double>(value);
    });
  }

  const OperationSetup* setup_ = nullptr;
  const kernels::Lane& lane_;
  const ArenaTable& arenas_;
  const SlabStore& slabs_;
  const uint32_t piece_;
  HostScratch& scratch_;
  std::span<float> decoded_;  // what is left of the memory for a slice
  std::vector<Norms> norms_;
  std::vector<LossSample> losses_;
};

}  // namespace

std::unique_ptr<SiteOperation> HostSite::begin(const OperationSetup& setup) {
  return std::make_unique<HostOperation>(setup, lane_, arenas_, slabs_, piece_, scratch_);
}

ResidualMaker HostSite::residual_maker() const {
  return [](uint64_t elements) -> Result<std::shared_ptr<SiteResidual>> {
    std::shared_ptr<SiteResidual> made = HostResidual::make(elements);
    if (made == nullptr) return resource_exhausted("this machine has no memory for them");
    return made;
  };
}

}  // namespace cgx::scheduler
