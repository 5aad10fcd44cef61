// Allgather: everybody encodes its whole contribution once and sends it to everybody, who adds all
// of them, its own bytes included, in machine order. One trip and one loss instead of two, and no
// second encoding.
#include "scheduler/exchange/schedules.h"

namespace cgx::scheduler {
namespace {

uint32_t allgather_ahead(uint32_t machines, const Group&) {
  return gather_parts(machines);
}

uint32_t allgather_shards(const Setting&) {
  return 1;
}

void allgather_make(const Setting& setting, const GroupLayout& layout, Schedule& schedule) {
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

}  // namespace

const CollectiveRow kCollective_allgather{
    .ahead = allgather_ahead, .shards = allgather_shards, .make = allgather_make};

}  // namespace cgx::scheduler
