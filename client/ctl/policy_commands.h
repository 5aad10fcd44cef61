// cgxctl policy ...: see and change how gradients travel. Thread rule: main's thread.
#pragma once

#include "client/ctl/command.h"

namespace cgx::ctl {

void add_policy_commands(CLI::App& app, Options& options, const Environment& environment, Run& run);

// Where the request may make something lossy, asks; then applies it, and says what comes of it.
int apply_request(const Options& options, Caller& caller, v1::ChangePolicyRequest& request);
void add_apply_options(CLI::App& command, Options& options);

}  // namespace cgx::ctl
