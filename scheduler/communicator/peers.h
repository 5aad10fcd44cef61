// What a communicator knows of its other machines: their links, how far they say they are, who is
// missing there, and when they were heard.
//
// Owned by one communicator; told of everything, it asks nobody. Machines by their number, this one
// included: of it only the heartbeats are counted.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "proto/wire/bytes.h"
#include "proto/wire/frame.h"
#include "scheduler/communicator/members.h"
#include "scheduler/communicator/snapshot.h"
#include "transport/transport.h"

namespace cgx::scheduler {

inline constexpr uint32_t kNobody = UINT32_MAX;       // no machine
inline constexpr uint64_t kJoinRetryNs = 20'000'000;  // who joins repeats it so often

class Peers {
 public:
  struct Peer {
    transport::PeerId id;
    bool up = false, departed = false;
    uint64_t last_heard_ns = 0, last_data_ns = 0;  // the second: something of the steps
    uint64_t started_end = 0;                      // first step it has not started
    uint64_t completed_end = 0, calls_end = 0;     // its watermarks
    uint64_t frames_sent = 0, frames_received = 0, bytes_sent = 0, bytes_received = 0;
    uint32_t progress = 0;
    // Of its last heartbeat.
    uint64_t step = 0, call = 0;
    uint32_t awaits = kNobody;  // the machine that it waits for; itself: its own site
    std::vector<uint32_t> missing_step, missing_call, missing_commit;
    uint64_t beat_sent_ns = 0, beat_heard_ns = 0;  // by its clock and by ours; 0: none has come
    uint64_t rtt_ns = 0;                           // of the last echo
    // By our clock, of padded ones since an answer was taken: the first and the last.
    uint64_t padded_from_ns = 0, padded_sent_ns = 0;
    bool padded_open = false;            // its answer is to come
    std::array<uint64_t, 16> rtts_ns{};  // of the last ones; 0: none yet
    uint32_t echoes = 0;
    uint64_t join_answered_ns = 0;  // with a failure; 0: never

    // The way itself: most echoes have waited behind gradients.
    uint64_t least_rtt_ns() const;
  };

  explicit Peers(const Members& members);

  const Peer& operator[](uint32_t machine) const { return peers_[machine]; }
  bool all_up() const;

  void link_up(uint32_t machine, transport::PeerId id, uint64_t now_ns);
  void link_down(uint32_t machine) { peers_[machine].up = false; }
  void depart(uint32_t machine) { peers_[machine].departed = true; }
  void sent(uint32_t machine, uint64_t bytes);
  void heard(uint32_t machine, uint64_t bytes, uint64_t now_ns);
  void heard_data(uint32_t machine, uint64_t now_ns) { peers_[machine].last_data_ns = now_ns; }
  // What each frame of the term says.
  void take_marks(const wire::FrameHeader& header);
  // What was said of steps before is void.
  void begin_term(uint64_t first_step, uint64_t now_ns);
  bool may_answer_join(uint32_t machine, uint64_t now_ns);  // true: it counts as answered
  void forgive_silence(uint64_t now_ns);                    // this daemon itself was stopped

  // Heartbeats
  struct Beat {  // of this machine
    uint64_t step = 0, call = 0;
    std::vector<uint32_t> missing_step, missing_call, missing_commit;
    uint32_t awaits = kNobody;
  };
  uint32_t next_beat() { return ++peers_[members_.machine].progress; }  // its number
  // Echoes what came last, so that the other side can tell how long the way is. With zeros behind
  // it up to `padded_bytes`, it shows how fast the link is.
  std::vector<std::byte> beat_for(uint32_t machine, const Beat& own, uint64_t now_ns,
                                  uint64_t padded_bytes = 0);
  struct News {
    bool sound = true;           // it names ranks of that machine only, and a machine that there is
    bool padded = false;         // the other side waits for the echo
    uint64_t padded_rtt_ns = 0;  // of this side's last one, which it echoes; 0: it echoes another
  };
  News take_beat(uint32_t machine, uint32_t progress, std::span<const std::byte> payload,
                 uint64_t now_ns);

  // A machine with a link that was not heard for so long, while its link carried nothing either:
  // what it says may wait behind other things, but not for ever.
  using CarriedNs = std::function<uint64_t(uint32_t machine)>;
  std::optional<uint32_t> silent(uint64_t now_ns, uint64_t limit_ns,
                                 const CarriedNs& carried_ns) const;
  uint64_t last_data_ns() const;  // of all
  // It has said last that it waits for a third machine itself.
  bool waits_elsewhere(uint32_t machine) const;
  // It has said last that its own site has not answered: its GPUs are behind, or are made ready.
  bool waits_for_itself(uint32_t machine) const { return peers_[machine].awaits == machine; }
  // Ranks elsewhere that are missing at that step or call, as far as heartbeats have told.
  void add_missing(bool of_step, uint64_t number, std::vector<uint32_t>& ranks) const;
  void add_not_committing(std::vector<uint32_t>& ranks) const;
  void show(uint64_t now_ns, std::vector<PeerSnapshot>& list) const;

 private:
  std::optional<std::vector<uint32_t>> read_ranks(uint32_t machine, wire::Reader& reader) const;

  const Members& members_;
  std::vector<Peer> peers_;         // by machine
  std::vector<uint32_t> ranks_of_;  // how many, likewise
};

}  // namespace cgx::scheduler
