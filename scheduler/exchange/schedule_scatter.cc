// Scatter (scatter-reduce-allgather): shard k belongs to machine k. Everybody sends its
// contribution to shard k to machine k, which adds them in machine order, encodes the sum once and
// sends it to everybody.
#include "scheduler/exchange/schedules.h"

namespace cgx::scheduler {
namespace {

Course of_own_shard(const Setting& setting) {
  Course course;
  const std::vector<uint32_t> others = setting.others();
  const Course::Frames parts = course.receive(1, others);
  std::vector<Course::Bytes> sources(setting.machines, Course::own_ranks());
  for (uint32_t i = 0; i < others.size(); ++i) sources[others[i]] = parts.of(i);
  const Course::Bytes sum = course.reduce(sources, /*results=*/true);
  course.send(2, others, sum);
  return course;
}

uint32_t scatter_ahead(uint32_t machines, const Group& group) {
  return travels_raw(group) ? raw_scatter_parts(machines) : scatter_parts(machines);
}

uint32_t scatter_shards(const Setting& setting) {
  return setting.machines;
}

void scatter_make(const Setting& setting, const GroupLayout& layout, Schedule& schedule) {
  schedule.add(of_own_shard(setting), layout.shard(setting.machine));
  for (const uint32_t owner : setting.others()) {
    schedule.add(sent_and_taken_back(owner, 2), layout.shard(owner), setting.way.ahead);
  }
}

}  // namespace

const CollectiveRow kCollective_scatter{
    .ahead = scatter_ahead, .shards = scatter_shards, .make = scatter_make};

}  // namespace cgx::scheduler
