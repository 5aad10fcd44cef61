// What has to hold of a policy before anybody looks a codec of it up. Policies come from peers and
// from files of plans, too, and say anything there. A pure function.
#pragma once

#include "proto/wire/status.h"
#include "scheduler/plan/policy.h"

namespace cgx::scheduler {

constexpr size_t kMenuMax = 64;  // a search weighs each codec for each tensor

// Every codec is one of this daemon's, with parameters that it has, and whoever sets ceilings can
// work from them. An error names the key, its value and what is allowed.
Status check_sound(const Policy& policy);

}  // namespace cgx::scheduler
