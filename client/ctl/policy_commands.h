// cgxctl policy ...: see and change how gradients travel. Thread rule: main's thread.
#pragma once

#include "client/ctl/command.h"

namespace cgx::ctl {

void add_policy_commands(CLI::App& app, Options& options, const Environment& environment, Run& run);

}  // namespace cgx::ctl
