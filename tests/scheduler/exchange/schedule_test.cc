// Schedules of all machines played against each other on paper, in random order: what holds for
// every collective.
#include "scheduler/exchange/schedule.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

namespace cgx::scheduler {
namespace {

struct Case {
  Collective collective;
  uint32_t machines;
  uint32_t rack_machines;
  uint32_t ahead;
  uint32_t parts;  // of each shard
  bool exact = true;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << collective_name(c.collective) << ", " << c.machines << " machines in racks of "
       << c.rack_machines << ", " << c.ahead << " ahead, " << c.parts << " parts a shard"
       << (c.exact ? "" : ", with loss");
}

Way way_of(const Case& c) {
  return {.collective = c.collective,
          .ahead = static_cast<uint16_t>(c.ahead),
          .rack_machines = c.rack_machines,
          .exact = c.exact};
}

// Of one raw tensor, as many parts a shard as the case says.
GroupLayout layout_of(const Case& c) {
  const uint32_t shards = Schedule::shards({.machines = c.machines, .way = way_of(c)});
  const PartLimits limits{.raw_bytes = 2048, .encoded_bytes = 2048};
  const TensorTable table = {{.name = "t", .elements = uint64_t{512} * c.parts * shards}};
  Group group;
  group.segments.push_back({0, CodecSpec{.codec = 0, .bucket = 512}});
  return GroupLayout::create(group, table, shards, limits);
}

// What machines would do, without a byte: a contribution is the number of its machine, a sum shows
// the order of its additions.
class Paper {
 public:
  Paper(const Case& c, bool late_sites, uint64_t seed)
      : layout_(layout_of(c)), late_(late_sites), random_(seed) {
    for (uint32_t k = 0; k < c.machines; ++k) {
      machines_.push_back({Schedule::create({k, c.machines, way_of(c)}, layout_)});
      Machine& machine = machines_.back();
      machine.parts.resize(layout_.parts());
      for (const Flow& flow : machine.schedule.flows()) {
        machine.next.push_back(flow.parts.first);
      }
    }
  }

  void play() {
    while (true) {
      std::vector<std::function<void()>> can;
      for (uint32_t k = 0; k < machines_.size(); ++k) collect(k, can);
      if (can.empty()) return;
      can[random_() % can.size()]();
    }
  }

  void expect_right() const {
    for (uint32_t k = 0; k < machines_.size(); ++k) {
      const Machine& machine = machines_[k];
      const FrameNeeds needs = frame_needs(machine.schedule, !late_);
      EXPECT_LE(machine.held_most, needs.received + needs.results) << "machine " << k;
      EXPECT_LE(machine.kept_most, needs.kept) << "machine " << k;
      EXPECT_LE(machine.unheard_most, needs.unheard) << "machine " << k;
      EXPECT_LE(machine.forwarded_most, needs.forwarded) << "machine " << k;
      for (uint32_t part = 0; part < layout_.parts(); ++part) {
        const PartPaper& paper = machine.parts[part];
        EXPECT_EQ(paper.done, machine.schedule.course(part).all())
            << "machine " << k << " is not done with part " << part;
        EXPECT_EQ(paper.written, 1) << "machine " << k << ", part " << part;
        EXPECT_EQ(paper.result, machines_[0].parts[part].result) << "machine " << k;
      }
    }
    for (const auto& [link, frames] : links_) EXPECT_TRUE(frames.empty()) << "frames are left";
    expect_every_machine_once();
  }

  const std::string& result(uint32_t part) const { return machines_[0].parts[part].result; }

 private:
  struct Frame {
    uint32_t part;
    uint8_t round;
    std::string value;
    uint64_t taken_in = 0;  // of its receiver's frames, when it was sent
  };
  struct Sent {
    std::pair<uint32_t, uint32_t> buffer;  // of which part, which; or frame, if forwarded
    bool forwarded = false;
    uint64_t number = 0;  // to this machine
    uint32_t to = 0;
  };
  struct PartPaper {
    uint32_t begun = 0, done = 0;
    std::map<uint32_t, std::string> frames, buffers;
    std::set<uint32_t> held;
    std::string result;
    int written = 0;
  };
  struct Machine {
    Schedule schedule;
    std::vector<PartPaper> parts = {};
    std::vector<uint32_t> next = {};
    uint32_t held = 0, held_most = 0, kept_most = 0, unheard_most = 0, forwarded_most = 0;
    std::vector<Sent> unheard = {};
  };

  void expect_every_machine_once() const {
    for (uint32_t k = 0; k < machines_.size(); ++k) {
      const std::string name = "m" + std::to_string(k) + " ";
      for (const PartPaper& part : machines_[0].parts) {
        const size_t found = part.result.find(name);
        ASSERT_NE(found, std::string::npos) << part.result;
        EXPECT_EQ(part.result.find(name, found + 1), std::string::npos) << part.result;
      }
    }
  }

  // All that machine k may do now.
  void collect(uint32_t k, std::vector<std::function<void()>>& can) {
    Machine& machine = machines_[k];
    const std::span<const Flow> flows = machine.schedule.flows();
    for (uint32_t f = 0; f < flows.size(); ++f) {
      const uint32_t next = machine.next[f];
      if (next < flows[f].parts.end() && next - lowest(machine, flows[f]) < flows[f].ahead) {
        can.push_back([this, k, f] { begin(k, f); });
      }
    }
    for (uint32_t from = 0; from < machines_.size(); ++from) {
      if (!links_[{from, k}].empty()) can.push_back([this, from, k] { deliver(from, k); });
    }
    for (uint32_t part = 0; late_ && part < machine.parts.size(); ++part) {
      const uint32_t asked = machine.parts[part].begun & ~machine.parts[part].done;
      for (uint32_t i = 0; i < 32; ++i) {
        const bool waits =
            asked >> i & 1 && machine.schedule.course(part).moves()[i].kind != MoveKind::kReceive;
        if (waits) can.push_back([this, k, part, i] { finish(k, part, i); });
      }
    }
  }

  static uint32_t lowest(const Machine& machine, const Flow& flow) {
    uint32_t part = flow.parts.first;
    while (part < flow.parts.end() &&
           machine.parts[part].done == machine.schedule.course(part).all()) {
      ++part;
    }
    return part;
  }

  void begin(uint32_t k, uint32_t flow) { ask(k, machines_[k].next[flow]++, 0); }

  void deliver(uint32_t from, uint32_t k) {
    std::deque<Frame>& link = links_[{from, k}];
    const Frame frame = link.front();
    link.pop_front();
    Machine& machine = machines_[k];
    ++taken_in_[{from, k}];
    std::erase_if(machine.unheard, [&](const Sent& sent) {
      return sent.to == from && sent.number <= frame.taken_in;
    });
    const Course& course = machine.schedule.course(frame.part);
    PartPaper& part = machine.parts[frame.part];
    const uint16_t index = course.frame_of(frame.round, from);
    ASSERT_NE(index, Course::kNone) << "nobody expects it";
    const uint32_t receive = course.receive_of(index);
    const Move& move = course.moves()[receive];
    EXPECT_EQ(move.after & ~part.done, 0u) << "it comes too early";
    ASSERT_TRUE(part.frames.emplace(index, frame.value).second) << "it comes twice";
    part.held.insert(index);
    const bool all = [&] {
      for (uint32_t i = 0; i < move.machines.size(); ++i) {
        if (!part.frames.contains(move.first_frame + i)) return false;
      }
      return true;
    }();
    if (all) {
      begin_if_next(k, frame.part, move.for_results);
      part.begun |= 1u << receive;
      part.done |= 1u << receive;
      follow(k, frame.part);
    }
    count(machine);
  }

  // A part that lacks nothing but its own share is begun with the frame in hand.
  void begin_if_next(uint32_t k, uint32_t part, bool for_results) {
    Machine& machine = machines_[k];
    const uint16_t flow = machine.schedule.flow_of(part);
    if (late_ || flow == Schedule::kNoFlow || !for_results || machine.next[flow] != part) return;
    const Flow& planned = machine.schedule.flows()[flow];
    if (part - lowest(machine, planned) < planned.ahead) begin(k, flow);
  }

  void follow(uint32_t k, uint32_t part) {
    const std::span<const Move> moves = machines_[k].schedule.course(part).moves();
    for (uint32_t i = 0; i < moves.size(); ++i) {
      PartPaper& paper = machines_[k].parts[part];
      const bool turn = !(paper.begun >> i & 1) && (moves[i].after & ~paper.done) == 0;
      if (turn && moves[i].after != 0 && moves[i].kind != MoveKind::kReceive) ask(k, part, i);
    }
  }

  void ask(uint32_t k, uint32_t part, uint32_t move) {
    machines_[k].parts[part].begun |= 1u << move;
    const MoveKind kind = machines_[k].schedule.course(part).moves()[move].kind;
    const bool sends = kind == MoveKind::kSend || kind == MoveKind::kForward;
    if (sends || !late_) finish(k, part, move);
  }

  void finish(uint32_t k, uint32_t part, uint32_t index) {
    Machine& machine = machines_[k];
    PartPaper& paper = machine.parts[part];
    const Move& move = machine.schedule.course(part).moves()[index];
    const std::string own = "m" + std::to_string(k) + " ";
    std::string sum = move.sources.empty() ? own : "(";
    for (const Source& source : move.sources) {
      sum += source.kind == Source::Kind::kOwnRanks ? own
             : source.kind == Source::Kind::kFrame  ? paper.frames.at(source.index)
                                                    : paper.buffers.at(source.index);
      const bool read = source.kind == Source::Kind::kFrame && move.kind != MoveKind::kForward;
      if (read) paper.held.erase(source.index);
    }
    if (!move.sources.empty()) sum += ")";
    switch (move.kind) {
      case MoveKind::kEncode:
        EXPECT_EQ(paper.written, 0) << "the input may be the output";
        paper.buffers[move.buffer] = own;
        break;
      case MoveKind::kReduce:
        EXPECT_EQ(paper.written, 0) << "the input may be the output";
        paper.buffers[move.buffer] = sum;
        if (move.results) write(paper, sum);
        break;
      case MoveKind::kDecode:
        write(paper, paper.frames.at(move.sources.front().index));
        break;
      case MoveKind::kCombine:
      case MoveKind::kLocalReduce:
        write(paper, sum);
        break;
      case MoveKind::kSend:
        for (const uint32_t to : move.machines) {
          links_[{k, to}].push_back(
              {part, move.round, paper.buffers.at(move.buffer), taken_in_[{to, k}]});
          machine.unheard.push_back({{part, move.buffer}, false, ++sent_[{k, to}], to});
        }
        break;
      case MoveKind::kForward:
        for (const uint32_t to : move.machines) {
          const uint16_t frame = move.sources.front().index;
          links_[{k, to}].push_back({part, move.round, paper.frames.at(frame), taken_in_[{to, k}]});
          machine.unheard.push_back({{part, frame}, true, ++sent_[{k, to}], to});
        }
        break;
      case MoveKind::kReceive:
        FAIL();
    }
    paper.done |= 1u << index;
    count(machine);
    follow(k, part);
  }

  static void write(PartPaper& paper, const std::string& result) {
    ++paper.written;
    paper.result = result;
  }

  // Frames that wait, own buffers that a later sum reads, and those that their receivers may not
  // have taken in, for all that this machine has heard.
  static void count(Machine& machine) {
    uint32_t held = 0, kept = 0;
    for (uint32_t part = 0; part < machine.parts.size(); ++part) {
      const PartPaper& paper = machine.parts[part];
      const Course& course = machine.schedule.course(part);
      held += static_cast<uint32_t>(paper.held.size());
      if (paper.done == course.all()) continue;
      for (const auto& [buffer, value] : paper.buffers) kept += course.keeps(buffer) ? 1 : 0;
    }
    std::set<std::pair<uint32_t, uint32_t>> unheard, forwarded;
    for (const Sent& sent : machine.unheard) {
      (sent.forwarded ? forwarded : unheard).insert(sent.buffer);
    }
    machine.forwarded_most =
        std::max(machine.forwarded_most, static_cast<uint32_t>(forwarded.size()));
    machine.unheard_most = std::max(machine.unheard_most, static_cast<uint32_t>(unheard.size()));
    machine.held_most = std::max(machine.held_most, held);
    machine.kept_most = std::max(machine.kept_most, kept);
  }

  GroupLayout layout_;
  bool late_;
  std::mt19937_64 random_;
  std::vector<Machine> machines_;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<Frame>> links_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sent_, taken_in_;  // frames, by link
};

std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (uint32_t machines = 1; machines <= 16; ++machines) {
    for (uint32_t ahead : {1u, 3u}) {
      for (uint32_t parts : {1u, machines <= 6 ? 7u : machines <= 9 ? 3u : 1u}) {
        cases.push_back({Collective::kScatter, machines, 0, ahead, parts});
        cases.push_back({Collective::kAllgather, machines, 0, ahead, parts});
        for (uint32_t rack = 2; rack < machines; ++rack) {
          if (machines % rack != 0) continue;
          cases.push_back({Collective::kTwoLevel, machines, rack, ahead, parts});
          cases.push_back({Collective::kTwoLevel, machines, rack, ahead, parts, false});
        }
      }
    }
  }
  return cases;
}

class EverySchedule : public ::testing::TestWithParam<Case> {};

// Each send has its receive, every output is written once, after all that reads it as an input, all
// machines add in the same order, nobody waits for ever, and nobody holds more than was reserved.
TEST_P(EverySchedule, MakesOneResultOfAllMachinesWithoutDeadlock) {
  const uint64_t orders = GetParam().machines <= 4 ? 12 : 2;
  for (uint64_t seed = 1; seed <= orders; ++seed) {
    for (bool late_sites : {false, true}) {
      Paper paper(GetParam(), late_sites, seed);
      paper.play();
      paper.expect_right();
      if (HasFailure()) FAIL() << "order " << seed << (late_sites ? ", late sites" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, EverySchedule, ::testing::ValuesIn(every_case()));

std::string sum_of(const Case& c, uint32_t part = 0) {
  Paper paper(c, false, 1);
  paper.play();
  return paper.result(part);
}

TEST(Schedule, AddsInTheOrderOfItsRow) {
  EXPECT_EQ(sum_of({Collective::kScatter, 3, 0, 1, 1}), "(m0 m1 m2 )");
  EXPECT_EQ(sum_of({Collective::kAllgather, 3, 0, 1, 1}), "(m0 m1 m2 )");
  EXPECT_EQ(sum_of({Collective::kTwoLevel, 6, 2, 1, 1}), "((m0 m1 )(m2 m3 )(m4 m5 ))");
  EXPECT_EQ(sum_of({Collective::kTwoLevel, 6, 3, 1, 1}), "((m0 m1 m2 )(m3 m4 m5 ))");
}

TEST(Schedule, AddsTheOwnRacksMachinesInThePlaceOfItsSumWhereSumsLose) {
  const Case c{Collective::kTwoLevel, 6, 2, 1, 1, false};
  EXPECT_EQ(sum_of(c, 0), "(m0 m1 (m2 m3 )(m4 m5 ))");
  EXPECT_EQ(sum_of(c, 3), "((m0 m1 )m2 m3 (m4 m5 ))");
  EXPECT_EQ(sum_of(c, 5), "((m0 m1 )(m2 m3 )m4 m5 )");
}

// Frames of parts between racks, each of the size of one machine's shard.
TEST(Schedule, SendsBetweenRacksAsManyTimesLessAsTheyHaveMachines) {
  const auto between = [](const Case& c) {
    double sent = 0;
    for (uint32_t k = 0; k < c.machines; ++k) {
      const GroupLayout layout = layout_of(c);
      const Schedule schedule = Schedule::create({k, c.machines, way_of(c)}, layout);
      for (const Schedule::Leg& leg : schedule.legs()) {
        for (const Move& move : leg.course.moves()) {
          if (move.kind != MoveKind::kSend && move.kind != MoveKind::kForward) continue;
          for (const uint32_t to : move.machines) {
            if (to / 4 != k / 4) sent += leg.parts.count / double(layout.parts());
          }
        }
      }
    }
    return sent;
  };
  EXPECT_DOUBLE_EQ(between({Collective::kScatter, 8, 0, 1, 1}), 8.0) << "4 a rack";
  EXPECT_DOUBLE_EQ(between({Collective::kTwoLevel, 8, 4, 1, 1, false}), 2.0);
  EXPECT_DOUBLE_EQ(between({Collective::kTwoLevel, 8, 4, 1, 1}), 2.0);
}

// Who sends a frame and who receives it say alike whether it has the codec of racks: frames that a
// machine of the same rack adds have.
TEST(Schedule, GivesTheRacksCodecToWhatIsAddedInTheRackAlone) {
  for (const Case& c : every_case()) {
    const GroupLayout layout = layout_of(c);
    std::vector<Schedule> schedules;
    for (uint32_t k = 0; k < c.machines; ++k) {
      schedules.push_back(Schedule::create({k, c.machines, way_of(c)}, layout));
    }
    const bool lossy_racks = c.collective == Collective::kTwoLevel && !c.exact;
    for (uint32_t k = 0; k < c.machines; ++k) {
      for (uint32_t part = 0; part < schedules[k].parts(); ++part) {
        for (const Move& move : schedules[k].course(part).moves()) {
          if (move.kind != MoveKind::kSend && move.kind != MoveKind::kForward) continue;
          EXPECT_EQ(move.in_rack, lossy_racks && move.round == 1) << ::testing::PrintToString(c);
          for (const uint32_t to : move.machines) {
            const Course& there = schedules[to].course(part);
            const uint16_t frame = there.frame_of(move.round, k);
            EXPECT_EQ(there.moves()[there.receive_of(frame)].in_rack, move.in_rack);
            for (const Move& sum : there.moves()) {
              for (const Source& source : sum.sources) {
                const bool reads = source.kind == Source::Kind::kFrame && source.index == frame;
                EXPECT_TRUE(!reads || source.in_rack == move.in_rack);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Schedule, SaysWhomAMachineHears) {
  const Case c{Collective::kTwoLevel, 6, 2, 1, 1};
  const Schedule schedule = Schedule::create({3, 6, way_of(c)}, layout_of(c));
  for (uint32_t machine : {1u, 2u, 5u}) EXPECT_TRUE(schedule.hears(machine)) << machine;
  for (uint32_t machine : {0u, 3u, 4u}) EXPECT_FALSE(schedule.hears(machine)) << machine;
}

TEST(Schedule, SaysForWhomOthersMayHaveWhatAMachineHasNot) {
  const Case racks{Collective::kTwoLevel, 6, 2, 1, 1};
  const Schedule schedule = Schedule::create({3, 6, way_of(racks)}, layout_of(racks));
  for (uint32_t machine = 0; machine < 6; ++machine) {
    EXPECT_EQ(schedule.passes_on_to(machine), machine == 2) << machine << ": the other of its rack";
  }
  Case lossy = racks;
  lossy.exact = false;
  const Schedule forwards = Schedule::create({3, 6, way_of(lossy)}, layout_of(lossy));
  for (uint32_t machine = 0; machine < 6; ++machine) {
    EXPECT_EQ(forwards.passes_on_to(machine), machine == 2) << machine << ": results of others";
  }
  for (const Collective row : {Collective::kScatter, Collective::kAllgather}) {
    const Case flat{row, 3, 0, 1, 1};
    const Schedule alone = Schedule::create({1, 3, way_of(flat)}, layout_of(flat));
    for (uint32_t machine = 0; machine < 3; ++machine) EXPECT_FALSE(alone.passes_on_to(machine));
  }
}

TEST(Schedule, OfTwoMachinesHoldsNoMoreThanAWindow) {
  const auto needs = [](Collective collective, uint32_t machines, bool consumes) {
    const Case c{collective, machines, 0, 8, 100};
    return frame_needs(Schedule::create({0, machines, way_of(c)}, layout_of(c)), consumes);
  };
  EXPECT_EQ(needs(Collective::kScatter, 2, true).received, 8u);
  EXPECT_EQ(needs(Collective::kScatter, 2, true).results, 0u);
  EXPECT_EQ(needs(Collective::kScatter, 3, false).results, 16u);
  EXPECT_EQ(needs(Collective::kAllgather, 2, true).received, 8u);
  EXPECT_EQ(needs(Collective::kAllgather, 2, false).received, 16u)
      << "a peer may be a window ahead of what was combined, not only of what was encoded";
  EXPECT_EQ(needs(Collective::kAllgather, 3, true).received, 32u);
  EXPECT_EQ(needs(Collective::kAllgather, 3, true).kept, 8u);
}

}  // namespace
}  // namespace cgx::scheduler
