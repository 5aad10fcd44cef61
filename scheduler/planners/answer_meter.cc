#include "scheduler/planners/answer_meter.h"

#include <utility>

namespace cgx::scheduler {

// Parts of a group follow each other, so those that wait for answers rarely share a place.
AnswerMeter::Asked& AnswerMeter::place_of(uint32_t machine, const wire::FrameHeader& header) {
  return asked_[(header.part + 7 * header.group + 29 * machine) % asked_.size()];
}

void AnswerMeter::sent(uint32_t machine, const wire::FrameHeader& header, uint64_t bytes,
                       uint64_t now_ns) {
  place_of(machine, header) = {.step = header.step,
                               .sent_ns = now_ns,
                               .bytes = bytes,
                               .machine = machine,
                               .group = header.group,
                               .part = header.part,
                               .round = header.round};
}

void AnswerMeter::received(uint32_t machine, const wire::FrameHeader& header, uint64_t bytes,
                           uint64_t now_ns) {
  Asked& asked = place_of(machine, header);
  const bool answers = asked.bytes != 0 && asked.machine == machine && asked.step == header.step &&
                       asked.group == header.group && asked.part == header.part &&
                       asked.round < header.round;
  if (!answers) return;
  const auto waited_ns = static_cast<double>(now_ns - asked.sent_ns);
  const double ns_per_byte = waited_ns / static_cast<double>(asked.bytes + bytes);
  asked.bytes = 0;
  if (least_ns_per_byte_ == 0 || ns_per_byte < least_ns_per_byte_) least_ns_per_byte_ = ns_per_byte;
}

double AnswerMeter::take_ns_per_byte() {
  return std::exchange(least_ns_per_byte_, 0);
}

}  // namespace cgx::scheduler
