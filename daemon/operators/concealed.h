// What may be shown to somebody nobody knows: figures, without the names that users gave.
// Thread rule: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/communicator/snapshot.h"

namespace cgx::daemon {

// Names of jobs and communicators become numbers made from them, the same on every machine and in
// every run; of failures only the kind is left; processes and tensors' names go.
void conceal(scheduler::Snapshot& snapshot);

std::string concealed_job(std::string_view name);
std::string concealed_communicator(std::string_view name);

}  // namespace cgx::daemon
