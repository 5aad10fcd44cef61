// A collective as data: what one machine does about each part of a group, and after what.
//
// Every part goes a course: moves, each with the moves of that course that come before it. Parts
// with the same moves share a course. Parts that this machine begins by itself lie in flows: it
// begins them in order, at most `ahead` beyond the lowest that is not done; the others begin with a
// frame. Rounds tell the frames of a part apart.
//
//   scatter, a part of another's shard   encode, send to its owner, receive back, decode
//            a part of the own shard     receive from all, reduce, send to all
//
// Pure values, made by one row per collective (schedule_<name>.cc) when a plan is prepared. What a
// frame may be follows from the receives, what must be held from frame_needs(). The order in which
// a reduction adds is that of its sources. An output is written only after what this machine
// contributes to it was read: inputs may be outputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/exchange/layout.h"

namespace cgx::scheduler {

enum class MoveKind : uint8_t {
  kEncode,       // the own ranks' part, into a buffer
  kSend,         // a buffer, to each of `machines`
  kReceive,      // a frame from each of `machines`
  kForward,      // a result's frame, byte for byte, to each of `machines`
  kReduce,       // the sources, encoded into a buffer and, where `results`, into every local output
  kCombine,      // the sources, into every local output
  kDecode,       // a frame, into every local output
  kLocalReduce,  // the own ranks' part, into every local output: one machine only
};

struct Source {
  enum class Kind : uint8_t { kOwnRanks, kBuffer, kFrame };
  Kind kind = Kind::kOwnRanks;
  uint16_t index = 0;    // of the buffer, or of the frame among those the course receives
  bool in_rack = false;  // encoded to be added within the rack
};

struct Move {
  MoveKind kind = MoveKind::kEncode;
  uint8_t round = 0;         // send, receive, forward
  uint8_t buffer = 0;        // encode, reduce: written; send: sent
  bool in_rack = false;      // encode, send, receive: what is added within the rack
  bool results = false;      // reduce: also into every local output
  bool decoded = false;      // receive: its frame is a result
  bool for_results = false;  // receive: all that follows is results of this machine
  // reduce: of sums that others have, too, so that one of them may be done without this machine;
  // receive: of such a sum's frames.
  bool shared = false;
  uint16_t first_frame = 0;  // receive: index of its first frame in the course
  uint32_t after = 0;        // moves that come before, a bit each
  std::vector<uint32_t> machines;
  std::vector<Source> sources;
};

class Course {
 public:
  static constexpr uint16_t kNone = UINT16_MAX;

  struct Bytes {  // that a move makes
    Source source;
    uint32_t after = 0;
  };
  struct Frames {
    uint32_t move = 0;
    uint16_t first = 0;
    bool in_rack = false;

    Bytes of(uint32_t index) const {
      return {{Source::Kind::kFrame, static_cast<uint16_t>(first + index), in_rack}, 1u << move};
    }
  };
  static Bytes own_ranks() { return {}; }

  // Writing one: each adds a move.
  Bytes encode(bool in_rack = false);
  Bytes reduce(std::span<const Bytes> from, bool results);
  uint32_t send(uint8_t round, std::vector<uint32_t> machines, const Bytes& what);  // its bit
  Frames receive(uint8_t round, std::vector<uint32_t> machines, uint32_t after = 0,
                 bool in_rack = false);
  // REQUIRES: its receive is of one machine.
  void forward(uint8_t round, std::vector<uint32_t> machines, const Bytes& frame);
  void combine(std::span<const Bytes> from);
  void decode(const Bytes& frame);
  void local_reduce();

  std::span<const Move> moves() const { return moves_; }
  uint32_t all() const { return moves_.size() == 32 ? ~0u : (1u << moves_.size()) - 1; }
  uint32_t frames() const { return frames_; }
  uint32_t buffers() const { return buffers_; }
  // The frame that comes from the machine in the round; kNone: none does.
  uint16_t frame_of(uint8_t round, uint32_t machine) const;
  uint32_t receive_of(uint16_t frame) const;  // the move
  // A reduction reads the buffer; otherwise it is free once it is sent.
  bool keeps(uint32_t buffer) const { return kept_ >> buffer & 1; }
  uint32_t kept_buffers() const;

 private:
  Move& add(MoveKind kind);
  void take(Move& move, std::span<const Bytes> from);
  void share(Move& sum);

  std::vector<Move> moves_;
  uint32_t frames_ = 0, buffers_ = 0, kept_ = 0;
};

struct Flow {
  PartRange parts;
  uint32_t ahead = 1;
};

// For whom a schedule is made.
struct Setting {
  uint32_t machine = 0, machines = 1;
  Way way;

  // All other machines, beginning with the next one.
  std::vector<uint32_t> others() const;
};

class Schedule {
 public:
  Schedule() = default;
  static Schedule create(const Setting& setting, const GroupLayout& layout);
  // How many shards a group is cut into for that.
  static uint32_t shards(const Setting& setting);

  // Writing one: these parts go this course; with `ahead` this machine begins them.
  void add(Course course, PartRange parts, uint32_t ahead = 0);

  const Setting& setting() const { return setting_; }
  uint32_t parts() const { return static_cast<uint32_t>(course_of_.size()); }
  const Course& course(uint32_t part) const { return courses_[course_of_[part]].course; }
  std::span<const Flow> flows() const { return flows_; }
  uint16_t flow_of(uint32_t part) const { return courses_[course_of_[part]].flow; }
  static constexpr uint16_t kNoFlow = UINT16_MAX;
  // Where a part's frames and buffers are, in arrays over all parts.
  uint32_t first_frame(uint32_t part) const { return first_frame_[part]; }
  uint32_t first_buffer(uint32_t part) const { return first_buffer_[part]; }
  uint32_t frames() const { return first_frame_.back(); }
  uint32_t buffers() const { return first_buffer_.back(); }
  uint32_t sources_max() const { return sources_max_; }
  uint32_t rounds() const { return rounds_; }
  bool hears(uint32_t machine) const;  // some frame comes from it
  // It has results from here that other machines may have had from each other.
  bool passes_on_to(uint32_t machine) const;

  struct Leg {  // parts that go the same course
    Course course;
    PartRange parts;
    uint16_t flow = kNoFlow;
  };
  std::span<const Leg> legs() const { return courses_; }

 private:
  void close(uint32_t parts);

  Setting setting_;
  std::vector<Leg> courses_;
  std::vector<Flow> flows_;
  std::vector<uint16_t> course_of_;
  std::vector<uint32_t> first_frame_, first_buffer_;  // per part, one more at the end
  uint32_t sources_max_ = 0, rounds_ = 0;
};

// What one operation may have to hold at once.
struct FrameNeeds {
  uint32_t received = 0;   // frames that wait for others
  uint32_t results = 0;    // frames with results, where the site does not read them at once
  uint32_t kept = 0;       // own buffers that wait for frames
  uint32_t unheard = 0;    // own buffers that were sent and wait for their receivers' word
  uint32_t forwarded = 0;  // others' frames that were sent on and wait for that

  void cover(const FrameNeeds& other) {  // enough for either
    received = std::max(received, other.received);
    results = std::max(results, other.results);
    kept = std::max(kept, other.kept);
    unheard = std::max(unheard, other.unheard);
    forwarded = std::max(forwarded, other.forwarded);
  }
};
FrameNeeds frame_needs(const Schedule& schedule, bool site_consumes);

}  // namespace cgx::scheduler
