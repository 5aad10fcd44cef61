// Two levels: machines that follow each other form racks of equal size. The i-th machine of each
// rack adds its rack's contributions to what it is there for, in machine order; these machines
// exchange their racks' sums, in rack order, and each sends the result to its rack. Between racks a
// machine sends only sums.
//
//   without loss  shard i belongs to the i-th machine of every rack. All of them get all racks'
//                 sums and add them: ((m0 + m1 + ...) + (mL + ...)) + ...
//   with loss     shard k belongs to machine k. It adds the other racks' sums and, in the place of
//                 its own rack's, that rack's contributions: no sum is encoded for itself. It
//                 encodes the result once; its like in the other racks send that on, byte for byte.
//                 So every machine encodes every value once, and has one error of it to keep.
//                 What goes to the own rack's adder may have a codec of its own (`in_rack`); sums
//                 and results have the segment's.
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

Course of_shard_of_all_racks(const Racks& racks) {
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

// What the rack adds, in machine order.
std::vector<Course::Bytes> of_own_rack(const Racks& racks, Course& course) {
  const Course::Frames near = course.receive(1, racks.neighbours(), /*after=*/0, /*in_rack=*/true);
  std::vector<Course::Bytes> sources(racks.size, Course::own_ranks());
  for (uint32_t hop = 1; hop < racks.size; ++hop) {
    sources[(racks.index + hop) % racks.size] = near.of(hop - 1);
  }
  return sources;
}

Course of_own_shard(const Racks& racks) {
  Course course;
  const std::vector<Course::Bytes> near = of_own_rack(racks, course);
  const Course::Frames far = course.receive(2, racks.twins());
  std::vector<Course::Bytes> sources;
  for (uint32_t rack = 0; rack < racks.count; ++rack) {
    if (rack == racks.own) {
      sources.insert(sources.end(), near.begin(), near.end());
    } else {
      sources.push_back(far.of((rack + racks.count - racks.own) % racks.count - 1));
    }
  }
  std::vector<uint32_t> all = racks.twins();
  const std::vector<uint32_t> neighbours = racks.neighbours();
  const Course::Bytes sum = course.reduce(sources, /*results=*/true);
  all.insert(all.end(), neighbours.begin(), neighbours.end());
  course.send(3, all, sum);
  return course;
}

Course of_shard_of_twin(const Racks& racks, uint32_t owner) {
  Course course;
  const Course::Bytes sum = course.reduce(of_own_rack(racks, course), /*results=*/false);
  const uint32_t sent = course.send(2, {owner}, sum);
  const Course::Bytes result = course.receive(3, {owner}, sent).of(0);
  course.forward(4, racks.neighbours(), result);
  course.decode(result);
  return course;
}

uint32_t two_level_ahead(uint32_t machines, const Group&) {
  return scatter_parts(machines);
}

uint32_t two_level_shards(const Setting& setting) {
  return setting.way.exact ? setting.way.rack_machines : setting.machines;
}

Status two_level_check(const Way& way, const Group& group, uint32_t machines) {
  const uint32_t rack = way.rack_machines;
  if (rack < 2 || rack >= machines || machines % rack != 0) {
    return invalid_argument("collective two_level needs rack_machines that divides " +
                            std::to_string(machines) + " machines into racks of two or more, not " +
                            std::to_string(rack));
  }
  if (machines_vote(group)) {
    return invalid_argument(
        "collective two_level where every machine has one vote (signsgd): a "
        "rack's sum would be one, too");
  }
  if (!way.exact || travels_raw(group)) return {};
  return invalid_argument("collective two_level of a group that travels without loss, with " +
                          kernels::to_string(group.segments.front().spec));
}

void make_exact(const Setting& setting, const GroupLayout& layout, Schedule& schedule) {
  const Racks racks(setting);
  schedule.add(of_shard_of_all_racks(racks), layout.shard(racks.index));
  for (const uint32_t owner : racks.neighbours()) {
    schedule.add(sent_and_taken_back(owner, 3), layout.shard(owner % racks.size),
                 setting.way.ahead);
  }
}

void two_level_make(const Setting& setting, const GroupLayout& layout, Schedule& schedule) {
  if (setting.way.exact) return make_exact(setting, layout, schedule);
  const Racks racks(setting);
  schedule.add(of_own_shard(racks), layout.shard(setting.machine));
  for (const uint32_t owner : racks.twins()) {
    schedule.add(of_shard_of_twin(racks, owner), layout.shard(owner));
  }
  for (const uint32_t near : racks.neighbours()) {
    for (uint32_t rack = 0; rack < racks.count; ++rack) {
      const uint32_t owner = racks.machine(rack, near % racks.size);
      const uint8_t round = owner == near ? 3 : 4;
      schedule.add(sent_and_taken_back(near, round, /*in_rack=*/true), layout.shard(owner),
                   setting.way.ahead);
    }
  }
}

}  // namespace

const CollectiveRow kCollective_two_level{.ahead = two_level_ahead,
                                          .check = two_level_check,
                                          .in_racks = true,
                                          .shards = two_level_shards,
                                          .make = two_level_make};

}  // namespace cgx::scheduler
