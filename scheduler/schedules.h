// The rows of schedules.def: each writes the courses of one machine's parts into a schedule.
#pragma once

#include "scheduler/schedule.h"

namespace cgx::scheduler {

#define X(name, text, help) \
  void make_##text(const Setting& setting, const GroupLayout& layout, Schedule& schedule);
#include "scheduler/schedules.def"
#undef X

}  // namespace cgx::scheduler
