// What a lane does beyond codecs: the choice of an instance, and local reduction.
#include "kernels/lanes/lane.h"

#include "kernels/lanes/wide.h"

namespace cgx::kernels {
namespace {

const CodecOps& codec_of(const CodecSpec& spec, DType dtype) {
  if (const CodecOps* wide = wide_codec(dtype)) return *wide;
  switch (spec.codec) {
#define X(stem, number, ...) \
  case number:               \
    return CGX_ON_LANE(stem)(spec);
#include "kernels/codecs.def"
#undef X
  }
  return CGX_ON_LANE(Raw)(spec);
}

void local_reduce(const LocalReduceJob& job, [[maybe_unused]] const Tuning& tuning) {
  if (wide_local_reduce(job)) return;
#if defined(CGX_LANE_IS_SCALAR)
  scalar_local_reduce(job);
#else
  vector_local_reduce<LaneVector>(job, tuning);
#endif
}

#if defined(CGX_LANE_IS_SCALAR)
constexpr bool kTunes = false;
#else
constexpr bool kTunes = true;
#endif

}  // namespace

const LaneOps CGX_ON_LANE(ops) = {codec_of, local_reduce, kTunes};

}  // namespace cgx::kernels
