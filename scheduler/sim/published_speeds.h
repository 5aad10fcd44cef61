// Published speeds of one model uncompressed, with 8 bits and with 4: the third is predicted from
// the other two. A step is computation, which takes what it takes, and an exchange that takes as
// long as its bits are wide.
#pragma once

#include <vector>

#include "scheduler/sim/lines.h"
#include "scheduler/sim/published.h"

namespace cgx::scheduler::sim {

class PublishedSpeeds {
 public:
  // speeds NAME PLAIN EIGHT FOUR; what is predicted of it, for people.
  Result<std::string> add(const Line& line);
  // median ID TOLERANCE: of the errors of all lines so far.
  Result<PublishedRow> median(const Line& line) const;

 private:
  std::vector<double> errors_;  // in percent
};

}  // namespace cgx::scheduler::sim
