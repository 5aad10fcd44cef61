// Allgather: everybody encodes its whole contribution once and sends it to everybody, who adds all
// of them, its own bytes included, in machine order. One trip and one loss instead of two, and no
// second encoding.
#include "scheduler/exchange/schedules.h"

namespace cgx::scheduler {

void make_allgather(const Setting& setting, const GroupLayout& layout, Schedule& schedule) {
  Course course;
  const std::vector<uint32_t> others = setting.others();
  const Course::Bytes own = course.encode();
  course.send(1, others, own);
  const Course::Frames parts = course.receive(1, others);
  std::vector<Course::Bytes> sources(setting.machines, own);
  for (uint32_t i = 0; i < others.size(); ++i) sources[others[i]] = parts.of(i);
  course.combine(sources);
  schedule.add(std::move(course), layout.shard(0), setting.way.ahead);
}

}  // namespace cgx::scheduler
