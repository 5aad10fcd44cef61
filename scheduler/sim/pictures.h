// The lanes of runs as pictures: a Chrome trace (chrome://tracing, ui.perfetto.dev) and an SVG.
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>

#include "scheduler/sim/run.h"

namespace cgx::scheduler::sim {

std::string chrome_trace(std::span<const Run> runs, const TensorTable& table);
// One panel for each run, on one scale of time.
std::string svg_picture(std::span<const Run> runs, const Model& model, const std::string& title);

}  // namespace cgx::scheduler::sim
