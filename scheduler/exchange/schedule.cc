#include "scheduler/exchange/schedule.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "proto/wire/status.h"
#include "scheduler/exchange/schedules.h"
#include "scheduler/plan/way.h"

namespace cgx::scheduler {

Move& Course::add(MoveKind kind) {
  CGX_ASSERT(moves_.size() < 32);
  moves_.push_back({.kind = kind});
  return moves_.back();
}

void Course::take(Move& move, std::span<const Bytes> from) {
  for (const Bytes& each : from) {
    move.sources.push_back(each.source);
    move.after |= each.after;
    if (each.source.kind == Source::Kind::kBuffer) kept_ |= 1u << each.source.index;
  }
}

Course::Bytes Course::encode(bool in_rack) {
  Move& move = add(MoveKind::kEncode);
  move.in_rack = in_rack;
  move.buffer = static_cast<uint8_t>(buffers_++);
  return {{Source::Kind::kBuffer, move.buffer, in_rack}, 1u << (moves_.size() - 1)};
}

// What this machine adds was sent to all that add the same: nothing of it is the own ranks'.
void Course::share(Move& sum) {
  for (const Source& source : sum.sources) {
    if (source.kind == Source::Kind::kOwnRanks) return;
  }
  sum.shared = true;
  for (uint32_t i = 0; i < moves_.size(); ++i) {
    if (moves_[i].kind == MoveKind::kReceive && sum.after >> i & 1) moves_[i].shared = true;
  }
}

Course::Bytes Course::reduce(std::span<const Bytes> from, bool results) {
  Move& move = add(MoveKind::kReduce);
  take(move, from);
  move.results = results;
  if (results) share(move);
  move.buffer = static_cast<uint8_t>(buffers_++);
  return {{Source::Kind::kBuffer, move.buffer}, 1u << (moves_.size() - 1)};
}

uint32_t Course::send(uint8_t round, std::vector<uint32_t> machines, const Bytes& what) {
  Move& move = add(MoveKind::kSend);
  move.round = round;
  move.machines = std::move(machines);
  move.buffer = static_cast<uint8_t>(what.source.index);
  move.in_rack = what.source.in_rack;
  move.after = what.after;
  return 1u << (moves_.size() - 1);
}

Course::Frames Course::receive(uint8_t round, std::vector<uint32_t> machines, uint32_t after,
                               bool in_rack) {
  Move& move = add(MoveKind::kReceive);
  move.in_rack = in_rack;
  move.round = round;
  move.machines = std::move(machines);
  move.after = after;
  move.first_frame = static_cast<uint16_t>(frames_);
  frames_ += static_cast<uint32_t>(move.machines.size());
  return {static_cast<uint32_t>(moves_.size() - 1), move.first_frame, in_rack};
}

// Others may have the result already: it goes on even if this machine begins nothing more.
void Course::forward(uint8_t round, std::vector<uint32_t> machines, const Bytes& frame) {
  Move& move = add(MoveKind::kForward);
  move.round = round;
  move.machines = std::move(machines);
  move.sources.push_back(frame.source);
  move.after = frame.after;
  CGX_ASSERT(moves_[receive_of(frame.source.index)].machines.size() == 1);
}

void Course::combine(std::span<const Bytes> from) {
  take(add(MoveKind::kCombine), from);
  const uint32_t after = moves_.back().after;
  for (uint32_t i = 0; i < moves_.size(); ++i) {
    if (moves_[i].kind == MoveKind::kReceive && after >> i & 1) moves_[i].for_results = true;
  }
}

void Course::decode(const Bytes& frame) {
  take(add(MoveKind::kDecode), std::span(&frame, 1));
  Move& received = moves_[receive_of(frame.source.index)];
  received.decoded = received.for_results = true;
}

void Course::local_reduce() {
  add(MoveKind::kLocalReduce);
}

uint16_t Course::frame_of(uint8_t round, uint32_t machine) const {
  for (const Move& move : moves_) {
    if (move.kind != MoveKind::kReceive || move.round != round) continue;
    const auto found = std::find(move.machines.begin(), move.machines.end(), machine);
    if (found == move.machines.end()) continue;
    return static_cast<uint16_t>(move.first_frame + (found - move.machines.begin()));
  }
  return kNone;
}

uint32_t Course::receive_of(uint16_t frame) const {
  for (uint32_t i = 0; i < moves_.size(); ++i) {
    const Move& move = moves_[i];
    const bool there = move.kind == MoveKind::kReceive && frame >= move.first_frame &&
                       frame < move.first_frame + move.machines.size();
    if (there) return i;
  }
  CGX_ASSERT(false);
  return 0;
}

uint32_t Course::kept_buffers() const {
  return static_cast<uint32_t>(std::popcount(kept_));
}

Course sent_and_taken_back(uint32_t owner, uint8_t result_round, bool in_rack) {
  Course course;
  const uint32_t sent = course.send(1, {owner}, course.encode(in_rack));
  course.decode(course.receive(result_round, {owner}, sent).of(0));
  return course;
}

std::vector<uint32_t> Setting::others() const {
  std::vector<uint32_t> others;
  for (uint32_t hop = 1; hop < machines; ++hop) others.push_back((machine + hop) % machines);
  return others;
}

uint32_t Schedule::shards(const Setting& setting) {
  return row_of(setting.way.collective).shards(setting);
}

Schedule Schedule::create(const Setting& setting, const GroupLayout& layout) {
  Schedule schedule;
  schedule.setting_ = setting;
  if (setting.machines == 1) {
    Course alone;
    alone.local_reduce();
    schedule.add(std::move(alone), {0, layout.parts()}, layout.parts());
  } else {
    row_of(setting.way.collective).make(setting, layout, schedule);
  }
  schedule.close(layout.parts());
  return schedule;
}

void Schedule::add(Course course, PartRange parts, uint32_t ahead) {
  const uint16_t flow = ahead == 0 ? kNoFlow : static_cast<uint16_t>(flows_.size());
  if (ahead != 0) flows_.push_back({parts, ahead});
  courses_.push_back({std::move(course), parts, flow});
}

void Schedule::close(uint32_t parts) {
  course_of_.resize(parts);
  for (uint16_t i = 0; i < courses_.size(); ++i) {
    const Leg& leg = courses_[i];
    std::fill_n(course_of_.begin() + leg.parts.first, leg.parts.count, i);
    for (const Move& move : leg.course.moves()) {
      sources_max_ = std::max(sources_max_, static_cast<uint32_t>(move.sources.size()));
      rounds_ = std::max<uint32_t>(rounds_, move.round);
    }
  }
  first_frame_.push_back(0);
  first_buffer_.push_back(0);
  for (uint32_t part = 0; part < parts; ++part) {
    first_frame_.push_back(first_frame_.back() + course(part).frames());
    first_buffer_.push_back(first_buffer_.back() + course(part).buffers());
  }
}

bool Schedule::passes_on_to(uint32_t machine) const {
  for (const Leg& leg : courses_) {
    const std::span<const Move> moves = leg.course.moves();
    const auto goes_to = [machine](const Move& move) {
      const auto& to = move.machines;
      return std::find(to.begin(), to.end(), machine) != to.end();
    };
    for (const Move& sum : moves) {
      if (sum.kind == MoveKind::kForward && goes_to(sum)) return true;
      if (!sum.shared || sum.kind != MoveKind::kReduce) continue;
      for (const Move& move : moves) {
        const bool sends = move.kind == MoveKind::kSend && move.buffer == sum.buffer;
        if (sends && goes_to(move)) return true;
      }
    }
  }
  return false;
}

bool Schedule::hears(uint32_t machine) const {
  for (const Leg& leg : courses_) {
    for (const Move& move : leg.course.moves()) {
      const auto& from = move.machines;
      if (move.kind == MoveKind::kReceive &&
          std::find(from.begin(), from.end(), machine) != from.end()) {
        return true;
      }
    }
  }
  return false;
}

namespace {

// The same list, as a rule: of thousands, looking up each would take milliseconds.
bool all_among(const std::vector<uint32_t>& some, const std::vector<uint32_t>& machines) {
  return some == machines || std::all_of(some.begin(), some.end(), [&](uint32_t machine) {
           return std::find(machines.begin(), machines.end(), machine) != machines.end();
         });
}

// Who sends a frame of this receive hears from this machine when it has read it: until then that
// part is not done there.
bool answered(const Course& course, uint32_t receive) {
  const std::span<const Move> moves = course.moves();
  uint32_t behind = 1u << receive;  // moves that need it; each comes after those it needs
  for (uint32_t i = receive + 1; i < moves.size(); ++i) {
    if (moves[i].after & behind) behind |= 1u << i;
  }
  for (uint32_t i = receive + 1; i < moves.size(); ++i) {
    const bool sends = moves[i].kind == MoveKind::kSend || moves[i].kind == MoveKind::kForward;
    const bool tells = sends && behind >> i & 1;
    if (tells && all_among(moves[receive].machines, moves[i].machines)) return true;
  }
  return false;
}

// Word of a frame rides in whatever its receiver sends when it has taken it in: here in what
// answers it, or in what is sent of the same part later, which its receivers begin when they are
// done with this one.
bool heard_in_time(const Course& course, uint32_t send) {
  const std::span<const Move> moves = course.moves();
  const auto all_of = [&](uint32_t receive) {
    return moves[receive].kind == MoveKind::kReceive &&
           all_among(moves[send].machines, moves[receive].machines);
  };
  uint32_t before = moves[send].after;  // and what those need
  for (uint32_t i = send; i-- > 0;) {
    if (before >> i & 1) before |= moves[i].after;
  }
  for (uint32_t i = 0; i < moves.size(); ++i) {
    const bool linked = before >> i & 1 || moves[i].after >> send & 1;
    if (linked && all_of(i)) return true;
  }
  return false;
}

}  // namespace

// Nobody is done with a part before everybody has contributed, and nobody begins one more than
// `ahead` beyond the lowest that is not done there. So a machine that waits for this one's answer
// is at most `ahead` parts beyond what is done here; one that does not may be as far beyond what
// this machine, too, has begun. Of two machines that do not, neither is, if what comes last is
// combined at once.
FrameNeeds frame_needs(const Schedule& schedule, bool site_consumes) {
  FrameNeeds needs;
  const uint32_t ahead = schedule.setting().way.ahead;
  for (const Schedule::Leg& leg : schedule.legs()) {
    const std::span<const Move> moves = leg.course.moves();
    const auto at_most = [&](uint32_t parts) { return std::min(leg.parts.count, parts); };
    for (uint32_t i = 0; i < moves.size(); ++i) {
      if (moves[i].kind != MoveKind::kReceive) continue;
      const auto frames = static_cast<uint32_t>(moves[i].machines.size());
      if (moves[i].decoded) {
        if (!site_consumes) needs.results += frames * at_most(ahead);
        continue;
      }
      const bool at_once = frames == 1 && moves[i].for_results && site_consumes;
      const uint32_t windows = answered(leg.course, i) || at_once ? 1 : 2;
      needs.received += frames * at_most(windows * ahead);
    }
    if (leg.course.frames() > 0) needs.kept += leg.course.kept_buffers() * at_most(ahead);
    for (uint32_t i = 0; i < moves.size(); ++i) {
      const bool own = moves[i].kind == MoveKind::kSend;
      if (!own && moves[i].kind != MoveKind::kForward) continue;
      (own ? needs.unheard : needs.forwarded) +=
          at_most((heard_in_time(leg.course, i) ? 1 : 2) * ahead);
    }
  }
  return needs;
}

}  // namespace cgx::scheduler
