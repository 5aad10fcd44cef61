// For the rows of schedules.def (plan/way.h says what a row is).
#pragma once

#include "scheduler/exchange/schedule.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {

// Of a part whose sum another machine, perhaps of the same rack, makes: sent to it in round 1, and
// its result taken.
Course sent_and_taken_back(uint32_t owner, uint8_t result_round, bool in_rack = false);

}  // namespace cgx::scheduler
