// The rows of schedules.def: each writes the courses of one machine's parts into a schedule.
#pragma once

#include "scheduler/exchange/schedule.h"

namespace cgx::scheduler {

#define X(name, text, help) \
  void make_##text(const Setting& setting, const GroupLayout& layout, Schedule& schedule);
#include "scheduler/plan/schedules.def"
#undef X

// Of a part whose sum another machine makes: sent to it in round 1, and its result taken.
Course sent_and_taken_back(uint32_t owner, uint8_t result_round);

}  // namespace cgx::scheduler
