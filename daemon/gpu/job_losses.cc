// Losses, measured on pieces of the gradients: each is encoded with every strength into scratch
// memory, and what that leaves over is encoded as it is, for its norm. The job's own launches come
// behind on its stream, and find the scratch memory free.
#include <algorithm>
#include <new>

#include "daemon/gpu/job_runner.h"

namespace cgx::daemon::gpu {

namespace cuda = kernels::cuda;
using kernels::RawView;
using scheduler::LossSample;

namespace {

constexpr uint64_t kTablesMax = 2 * scheduler::kStrengthsMax + 2;
constexpr uint64_t kBucketsMax = kLossValuesMax / kBucketMin + kLossPiecesMax;
static_assert(kTablesMax * (kLossPiecesMax * sizeof(cuda::Segment<kernels::EncodeJob>) +
                            kBucketsMax * sizeof(cuda::Norms)) <=
              kTableBytes / 4 * 3);

}  // namespace

Status JobRunner::tabulate_losses(const Job& job, Pending& pending) {
  Losses& losses = pending.losses;
  for (uint32_t i = 0; i < job.slices.size(); ++i) {
    CGX_RETURN_IF_ERROR(choose_pieces(job, i, losses));
  }
  if (losses.pieces.empty()) return {};
  const Stream& stream = streams_[pending.stream];
  for (const CodecSpec& spec : job.strengths) {
    CGX_RETURN_IF_ERROR(tabulate_strength(job, spec, losses, stream));
  }
  CGX_RETURN_IF_ERROR(tabulate_residuals(losses, stream));
  scratch_.used = 0;
  return {};
}

Status JobRunner::choose_pieces(const Job& job, uint32_t slice, Losses& losses) {
  const SliceHead& head = job.slices[slice].head;
  const scheduler::LossPieces pieces{head.loss_pieces, head.loss_elements};
  if (pieces.count == 0) return {};
  if (pieces.elements == 0 || pieces.elements > head.elements ||
      losses.pieces.size() + pieces.count > kLossPiecesMax || !dtype_is_small_float(head.dtype)) {
    return internal_error("losses of more than there is");
  }
  for (uint64_t i = 0; i < pieces.count; ++i) {
    const uint64_t first = pieces.first(head.elements, i);
    LossPiece piece{.slice = slice, .of_elements = head.elements, .elements = pieces.elements};
    piece.draw_bucket = head.first_element + first;
    CGX_ASSIGN_OR_RETURN(piece.source, raw_view(job.slices[slice], first));
    piece.encoded_bytes = piece.elements * sizeof(float);
    for (const CodecSpec& spec : job.strengths) {
      piece.encoded_bytes =
          std::max(piece.encoded_bytes, kernels::encoded_bytes(spec, head.dtype, piece.elements));
    }
    CGX_ASSIGN_OR_RETURN(piece.encoded, scratch(piece.encoded_bytes));
    CGX_ASSIGN_OR_RETURN(std::byte* const lost, scratch(piece.elements * sizeof(float)));
    piece.lost = reinterpret_cast<float*>(lost);
    losses.pieces.push_back(piece);
  }
  return {};
}

Result<JobRunner::Encodes*> JobRunner::encode_pieces(
    const Losses& losses, const Stream& stream,
    const std::function<kernels::EncodeJob(const LossPiece&)>& job_of) {
  const size_t count = losses.pieces.size();
  CGX_ASSIGN_OR_RETURN(Encodes* const made, table<Encodes>(count));
  for (size_t i = 0; i < count; ++i) {
    const LossPiece& piece = losses.pieces[i];
    new (&made[i]) Encodes{};
    kernels::EncodeJob& job = made[i].job;
    job = job_of(piece);
    job.elements = piece.elements;
    job.encoded = {piece.encoded,
                   kernels::encoded_bytes(job.spec, job.source.dtype, piece.elements)};
    job.norms = true;
  }
  CGX_RETURN_IF_ERROR(add_launch(stream, std::span(made, count), /*norms=*/true));
  return made;
}

// What is lost is a residual beside no gradient: the raw codec takes its norm.
Status JobRunner::tabulate_strength(const Job& job, const CodecSpec& spec, Losses& losses,
                                    const Stream& stream) {
  const auto strength = [&](const LossPiece& piece) {
    kernels::EncodeJob made;
    made.spec = spec;
    made.source = piece.source;
    made.key = {job.head.step, piece.draw_bucket};
    made.residual_out = piece.lost;
    return made;
  };
  const auto lost = [](const LossPiece& piece) {
    kernels::EncodeJob made;
    made.source.residual_in = piece.lost;
    return made;
  };
  CGX_ASSIGN_OR_RETURN(losses.sent.emplace_back(), encode_pieces(losses, stream, strength));
  CGX_ASSIGN_OR_RETURN(losses.lost.emplace_back(), encode_pieces(losses, stream, lost));
  return {};
}

Status JobRunner::tabulate_residuals(Losses& losses, const Stream& stream) {
  const auto has_one = [](const LossPiece& piece) { return piece.source.residual_in != nullptr; };
  if (std::none_of(losses.pieces.begin(), losses.pieces.end(), has_one)) return {};
  const auto gradient = [](const LossPiece& piece) {
    kernels::EncodeJob made;
    made.source = piece.source;
    made.source.residual_in = nullptr;
    return made;
  };
  const auto residual = [](const LossPiece& piece) {
    kernels::EncodeJob made;
    made.source = piece.source;
    made.source.rank_count = 0;
    return made;
  };
  CGX_ASSIGN_OR_RETURN(losses.gradients, encode_pieces(losses, stream, gradient));
  CGX_ASSIGN_OR_RETURN(losses.residuals, encode_pieces(losses, stream, residual));
  return {};
}

LossSample JobRunner::loss_of(const Losses& losses, size_t piece) {
  const auto elements = static_cast<double>(losses.pieces[piece].elements);
  LossSample sample{.values = elements};
  for (size_t i = 0; i < losses.sent.size(); ++i) {
    const cuda::Outcome& sent = losses.sent[i][piece].outcome;
    if (sent.nonfinite_buckets > 0) return {.nonfinite = elements};
    sample.intended = sent.intended_sq;
    sample.lost[i] = losses.lost[i][piece].outcome.intended_sq;
  }
  if (losses.pieces[piece].source.residual_in == nullptr) return sample;
  sample.gradient = losses.gradients[piece].outcome.intended_sq;
  sample.residual = losses.residuals[piece].outcome.intended_sq;
  return sample;
}

std::vector<LossSample> JobRunner::losses_of(const Losses& losses, uint32_t slices) {
  if (losses.pieces.empty()) return {};
  std::vector<LossSample> samples(slices);
  for (size_t i = 0; i < losses.pieces.size(); ++i) {
    const LossPiece& piece = losses.pieces[i];
    LossSample& sample = samples[piece.slice];
    sample += loss_of(losses, i);
    const bool last = i + 1 == losses.pieces.size() || losses.pieces[i + 1].slice != piece.slice;
    if (last) sample = sample.of_all(piece.of_elements);
  }
  return samples;
}

}  // namespace cgx::daemon::gpu
