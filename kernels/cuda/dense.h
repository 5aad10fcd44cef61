// All codecs whose kernels take buckets by warps: what rows of kernels.def name.
#pragma once

#include "kernels/codecs/fp8.h"
#include "kernels/cuda/casts.h"
#include "kernels/cuda/maxmin.h"
#include "kernels/cuda/natural.h"
#include "kernels/cuda/sign.h"
#include "kernels/cuda/symmetric.h"
#include "kernels/cuda/wide.h"
