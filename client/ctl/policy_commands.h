// cgxctl policy ...: see and change how gradients travel. Thread rule: main's thread.
#pragma once

#include "client/ctl/command.h"

namespace cgx::ctl {

void add_policy_commands(CLI::App& app, Options& options, const Environment& environment, Run& run);

// The policy of FILE, or the running one (and then nobody may change it meanwhile), with what --set
// says on top.
void add_change(CLI::App& command, Options& options);
int prepare_change(const Options& options, Caller& caller, v1::ChangePolicyRequest& request);
// Where the request may make something lossy, asks; then applies it, and says what comes of it.
int apply_request(const Options& options, Caller& caller, v1::ChangePolicyRequest& request);
void add_apply_options(CLI::App& command, Options& options);

}  // namespace cgx::ctl
