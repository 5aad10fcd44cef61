// Which codecs keep training sound: what diverges is refused, what is doubtful warned of. The
// limits are measured (README.md "Sound combinations"); tests/kernels/feedback_test.cc holds them.
#include "kernels/codec.h"
#include "kernels/codecs/codec_refusal.h"

namespace cgx::kernels {
namespace {

// A quantizer of few levels. Feedback converges only if what is not sent is smaller than what was
// intended.
Status check_levels(const CodecRow& row, const CodecSpec& spec, const char*& doubt) {
  if (spec.feedback() && (spec.flags & CodecSpec::kL2Norm)) {
    // A level is norm / s, and a typical value norm / sqrt(bucket): below half a level nothing of a
    // bucket is ever sent.
    const uint32_t levels = (1u << (spec.bits - 1)) - 1;
    if (4 * levels * levels < spec.bucket) {
      return refuse(row, "norm=l2",
                    "with feedback diverges at " + std::to_string(spec.bits) +
                        " bits in buckets of " + std::to_string(spec.bucket) +
                        "; use norm=max, more bits or smaller buckets");
    }
  }
  if (spec.feedback() && spec.bits == 1) {
    return refuse(row, "feedback", "diverges at 1 bit; use at least 2 bits");
  }
  if (spec.feedback() && spec.bits == 2 && row.name == std::string_view("natural")) {
    return refuse(row, "feedback", "keeps back many times the gradient at 2 bits; use 3 bits");
  }
  if (spec.feedback() && spec.bits == 2 && spec.stochastic()) {
    return refuse(row, "stochastic",
                  "with feedback diverges at 2 bits; drop one of them or use 3 bits");
  }
  if (spec.feedback() && spec.bits == 2) {
    doubt = "at 2 bits a residual of about the gradient's size is kept back; 3 bits are safer";
  } else if (spec.feedback() && spec.stochastic()) {
    doubt = "nearest rounding leaves a smaller residual when feedback is on";
  } else if (spec.stochastic() && spec.bits < 3) {
    doubt = "stochastic rounding below 3 bits adds noise larger than the gradient";
  } else if (!spec.feedback() && !spec.stochastic() && spec.bits < 4) {
    doubt = "nearest rounding without feedback is biased; add stochastic or feedback";
  }
  return {};
}

}  // namespace

Status check_policy(const CodecSpec& spec, std::string* warning) {
  CGX_RETURN_IF_ERROR(validate(spec, DType::kF32));
  const CodecRow& row = *find_codec(spec.codec);
  const char* doubt = nullptr;
  if (row.strength == Strength::kBits) {
    CGX_RETURN_IF_ERROR(check_levels(row, spec, doubt));
  } else if (row.gathers && row.has(CodecSpec::kFeedback) && !spec.feedback()) {
    doubt = "what is not sent is lost; add feedback";
  } else if (row.shared_draws && !spec.feedback() && spec.amount < 0.2f) {
    doubt =
        "without feedback the noise is 1 / share times the gradient's square; a share of 0.25, or "
        "topk with feedback, trains better";
  } else if (row.name == std::string_view("signsgd")) {
    doubt =
        "votes are biased and even numbers of machines often tie; efsign,feedback trains better";
  }
  if (doubt != nullptr && warning != nullptr) *warning = to_string(spec) + ": " + doubt;
  return {};
}

}  // namespace cgx::kernels
