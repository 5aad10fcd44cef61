// cgxctl doctor: what would keep a job from running, before there is one. Thread rule: main's
// thread.
#pragma once

#include "client/ctl/command.h"

namespace cgx::ctl {

void add_doctor(CLI::App& app, Options& options, const Environment& environment, Run& run);

// What a daemon that did not start, or one line of --check-config, says: "mesh.listen: ..." has a
// key, others have none.
v1::Finding finding_of(const std::string& machine, const std::string& line);

}  // namespace cgx::ctl
