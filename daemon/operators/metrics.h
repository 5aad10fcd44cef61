// The daemon's figures in Prometheus' text format, made from one snapshot per scrape.
//
// Names: cgxd_ first, base units, _total on counters. Labels are bounded by what is alive: cgx_job
// (a scraper has a "job" of its own), uid, communicator, peer, machine; never a tensor or a pid.
// Thread rule: pure functions.
#pragma once

#include <string>

#include "daemon/operators/control_view.h"
#include "daemon/operators/tally.h"

namespace cgx::daemon {

std::string metrics_text(const Snapshot& snapshot, const Tally& tally, const DaemonFacts& facts,
                         uint64_t log_dropped);

}  // namespace cgx::daemon
