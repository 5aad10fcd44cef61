// Two levels: machines that follow each other form racks of equal size; shard i belongs to the i-th
// machine of every rack. A rack adds its machines' contributions to shard i, in machine order, on
// that machine; the i-th machines of all racks exchange their racks' sums and add them in rack
// order; then each sends the result to its rack. Between racks a machine sends only its shard's
// sum.
//
// The order of additions is ((m0 + m1 + ...) + (mL + ...)) + ..., on all machines. Without loss
// only: who keeps which error of a rack's sum is not settled.
#include "scheduler/exchange/schedules.h"

namespace cgx::scheduler {
namespace {

struct Racks {
  explicit Racks(const Setting& setting)
      : size(setting.way.rack_machines),
        count(setting.machines / size),
        own(setting.machine / size),
        index(setting.machine % size) {}

  uint32_t machine(uint32_t rack, uint32_t at) const { return rack * size + at; }
  std::vector<uint32_t> neighbours() const {  // of the own rack, beginning with the next one
    std::vector<uint32_t> machines;
    for (uint32_t hop = 1; hop < size; ++hop) {
      machines.push_back(machine(own, (index + hop) % size));
    }
    return machines;
  }
  std::vector<uint32_t> twins() const {  // at the same index of the other racks
    std::vector<uint32_t> machines;
    for (uint32_t hop = 1; hop < count; ++hop) {
      machines.push_back(machine((own + hop) % count, index));
    }
    return machines;
  }

  uint32_t size, count, own, index;
};

Course of_own_shard(const Racks& racks) {
  Course course;
  const Course::Frames near = course.receive(1, racks.neighbours());
  std::vector<Course::Bytes> of_rack(racks.size, Course::own_ranks());
  for (uint32_t hop = 1; hop < racks.size; ++hop) {
    of_rack[(racks.index + hop) % racks.size] = near.of(hop - 1);
  }
  const Course::Bytes rack_sum = course.reduce(of_rack, /*results=*/false);
  course.send(2, racks.twins(), rack_sum);
  const Course::Frames far = course.receive(2, racks.twins());
  std::vector<Course::Bytes> of_all(racks.count, rack_sum);
  for (uint32_t hop = 1; hop < racks.count; ++hop) {
    of_all[(racks.own + hop) % racks.count] = far.of(hop - 1);
  }
  const Course::Bytes sum = course.reduce(of_all, /*results=*/true);
  course.send(3, racks.neighbours(), sum);
  return course;
}

uint32_t two_level_ahead(uint32_t machines, const Group&) {
  return scatter_parts(machines);
}

uint32_t two_level_shards(const Setting& setting) {
  return setting.way.rack_machines;
}

Status two_level_check(const Way& way, const Group& group, uint32_t machines) {
  const uint32_t rack = way.rack_machines;
  if (rack < 2 || rack >= machines || machines % rack != 0) {
    return invalid_argument("collective two_level needs rack_machines that divides " +
                            std::to_string(machines) + " machines into racks of two or more, not " +
                            std::to_string(rack));
  }
  for (const Segment& segment : group.segments) {
    if (segment.spec.codec == 0) continue;
    return invalid_argument("collective two_level travels without loss only, not with " +
                            kernels::to_string(segment.spec));
  }
  return {};
}

void two_level_make(const Setting& setting, const GroupLayout& layout, Schedule& schedule) {
  const Racks racks(setting);
  schedule.add(of_own_shard(racks), layout.shard(racks.index));
  for (const uint32_t owner : racks.neighbours()) {
    schedule.add(sent_and_taken_back(owner, 3), layout.shard(owner % racks.size),
                 setting.way.ahead);
  }
}

}  // namespace

const CollectiveRow kCollective_two_level{.ahead = two_level_ahead,
                                          .check = two_level_check,
                                          .in_racks = true,
                                          .shards = two_level_shards,
                                          .make = two_level_make};

}  // namespace cgx::scheduler
