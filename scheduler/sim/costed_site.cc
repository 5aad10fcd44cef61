#include "scheduler/sim/costed_site.h"

#include <algorithm>

#include "kernels/codec.h"

namespace cgx::scheduler::sim {
namespace {

struct Counts {  // of a job's values
  double encodes = 0, decodes = 0;
  double rack_decodes = 0;  // of what came with the codec of racks
};

// The local ranks' own values are read where they are encoded or added.
Counts counts_of(const SiteJob& job) {
  const auto frames_of = [&](bool in_rack) {
    return static_cast<double>(std::count_if(
        job.from.begin(), job.from.end(),
        [&](const SiteContribution& from) { return !from.own_ranks && from.in_rack == in_rack; }));
  };
  const double frames = frames_of(false), rack_frames = frames_of(true);
  switch (job.kind) {
    case SiteJobKind::kEncode:
      return {.encodes = 1};
    case SiteJobKind::kDecode:
      return {.decodes = 1};
    case SiteJobKind::kReduce:
      return {.encodes = 1, .decodes = frames + (job.results ? 1 : 0), .rack_decodes = rack_frames};
    case SiteJobKind::kCombine:
      return {.decodes = frames, .rack_decodes = rack_frames};
    case SiteJobKind::kLocalReduce:  // one rank's values stay where they are
    case SiteJobKind::kKeep:
    case SiteJobKind::kHash:
      break;
  }
  return {};
}

// What its presence says is there, as long as a codec of fixed size makes it.
uint64_t encoded_bytes(const OperationSetup& setup, const SiteJob& job) {
  uint64_t bytes = 0;
  for (const Slice& slice : setup.layout->slices(setup.layout->part(job.part))) {
    if (job.presence->test(slice.segment)) bytes += slice.encoded(job.in_rack);
  }
  return bytes;
}

class NoResidual final : public SiteResidual {};

}  // namespace

const CodecCurves& JobPrices::curves_of(const CodecSpec& spec) {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const CodecCurves& one) { return one.spec == spec; });
  if (found != known_.end()) return *found;
  const Result<CodecCurves> curves = costs_.curves_of(spec);
  CGX_ASSERT(curves.ok());  // CostedSite::takes()
  return known_.emplace_back(*curves);
}

double JobPrices::of(const OperationSetup& setup, const SiteJob& job) {
  if (job.kind == SiteJobKind::kKeep) {
    return costs_.copy_ns_per_byte * 4 * static_cast<double>(job.count);
  }
  if (job.kind == SiteJobKind::kHash) {
    return costs_.copy_ns_per_byte * static_cast<double>(job.count);
  }
  const Counts counts = counts_of(job);
  double price_ns = 0;
  for (const Slice& slice : setup.layout->slices(setup.layout->part(job.part))) {
    if (!job.presence->test(slice.segment)) continue;
    const Segment& planned = setup.planned(slice);
    const double bytes = 4 * static_cast<double>(slice.elements);  // sums run in fp32
    price_ns += counts.encodes * curves_of(planned.codec(job.in_rack)).encode.ns(bytes);
    price_ns += counts.decodes * curves_of(planned.spec).decode.ns(bytes);
    if (counts.rack_decodes == 0) continue;
    price_ns += counts.rack_decodes * (curves_of(planned.codec(true)).decode.ns(bytes) +
                                       costs_.rack_pass_ns(planned.rack_spec, bytes));
  }
  return price_ns;
}

class CostedSite::Work final : public SiteOperation {
 public:
  Work(CostedSite& site, const OperationSetup& setup) : site_(site) { begin_again(setup); }

  bool reusable() const override { return true; }
  void begin_again(const OperationSetup& setup) override {
    setup_ = &setup;
    norms_.assign(setup.norms && setup.machines > 1 ? setup.segments.size() : 0, {});
    losses_.assign(setup.strengths && setup.machines > 1 ? setup.segments.size() : 0, {});
    site_.lane_.add({site_.prices_.of_operation(setup), setup.group_index, {}},
                    site_.clock_.now_ns());
  }
  std::optional<SiteAnswer> ask(Ticket ticket, const SiteJob& job) override {
    site_.take(*setup_, ticket, job);
    return std::nullopt;
  }
  const std::vector<Norms>& norms() const override { return norms_; }
  const std::vector<LossSample>& losses() const override { return losses_; }

 private:
  CostedSite& site_;
  const OperationSetup* setup_ = nullptr;
  std::vector<Norms> norms_;
  std::vector<LossSample> losses_;
};

std::unique_ptr<SiteOperation> CostedSite::begin(const OperationSetup& setup) {
  return std::make_unique<Work>(*this, setup);
}

void CostedSite::take(const OperationSetup& setup, Ticket ticket, const SiteJob& job) {
  SiteAnswer answer;
  const bool makes = job.kind == SiteJobKind::kEncode || job.kind == SiteJobKind::kReduce;
  if (makes) answer.bytes = static_cast<uint32_t>(encoded_bytes(setup, job));
  lane_.add({prices_.of(setup, job), setup.group_index,
             [this, ticket, answer] { done_.emplace_back(ticket, answer); }},
            clock_.now_ns());
}

ResidualMaker CostedSite::residual_maker() const {
  return [](uint64_t) -> Result<std::shared_ptr<SiteResidual>> {
    return std::shared_ptr<SiteResidual>(std::make_shared<NoResidual>());
  };
}

Status CostedSite::takes(const CodecSpec& spec, DType dtype) const {
  (void)dtype;
  if (kernels::find_codec(spec.codec)->variable_size) {
    return {StatusCode::kUNIMPLEMENTED, "codec " + kernels::to_string(spec) +
                                            " sends as much as values make it, and here are none"};
  }
  return prices_.knows(spec);
}

int CostedSite::poll(SiteEvents& events, uint64_t now_ns) {
  (void)now_ns;
  const std::vector<std::pair<Ticket, SiteAnswer>> done = std::exchange(done_, {});
  for (const auto& [ticket, answer] : done) events.site_answered(ticket, answer);
  return static_cast<int>(done.size());
}

uint64_t CostedSite::next_answer_ns() const {
  return done_.empty() ? UINT64_MAX : clock_.now_ns();
}

}  // namespace cgx::scheduler::sim
