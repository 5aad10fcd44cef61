// cgxctl plan ...: what runs, what was tried, and tensors whose codec somebody fixes by name.
// Thread rule: main's thread.
#pragma once

#include "client/ctl/command.h"

namespace cgx::ctl {

void add_plan_commands(CLI::App& app, Options& options, const Environment& environment, Run& run);

}  // namespace cgx::ctl
