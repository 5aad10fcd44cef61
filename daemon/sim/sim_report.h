// What cgxsim prints. Thread rule: pure functions.
#pragma once

#include <span>
#include <string>

#include "daemon/sim/sim_options.h"
#include "scheduler/sim/published.h"

namespace cgx::daemon {

std::string scene_text(const SimOptions& options, const scheduler::sim::Scene& scene);
std::string runs_text(std::span<const scheduler::sim::Run> runs);
std::string runs_json(const SimOptions& options, std::span<const scheduler::sim::Run> runs);
std::string validation_text(const scheduler::sim::Validation& validation);
std::string validation_json(const scheduler::sim::Validation& validation);

}  // namespace cgx::daemon
