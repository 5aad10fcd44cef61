// The links between this daemon and others: one for each (job key, daemon), shared by whatever
// needs it and kept a little longer. A link that nobody watches any more may be dead without
// anybody's knowing: it is used again only if it was heard near the end.
//
// Owned by the engine. Users are told of their links from inside calls of this class, and may call
// it from there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/frame.h"
#include "scheduler/communicator/members.h"
#include "scheduler/ports.h"
#include "scheduler/shares.h"
#include "transport/transport.h"

namespace cgx::scheduler {

// Who needs links to the other machines of its members: a communicator.
class LinkUser {
 public:
  virtual ~LinkUser() = default;
  virtual const Members& members() const = 0;
  virtual const wire::JobKey& job_key() const = 0;
  virtual bool living() const = 0;  // it watches its links
  // It has yet to meet the others, or to tell those who still come why it did not.
  virtual bool needs_links() const = 0;
  virtual void link_up(uint32_t machine, transport::PeerId peer) = 0;
  virtual void link_lost(uint32_t machine, const Status& why) = 0;
  virtual void link_remade(uint32_t machine) = 0;  // another will come up in its place
  virtual void receive(const wire::FrameHeader& header, std::span<const std::byte> payload) = 0;
};

class LinkTable {
 public:
  struct Use {  // a user's machine behind a link
    LinkUser* user = nullptr;
    uint32_t machine = 0;
    bool reused = false;  // the link was there before the user
  };

  // Both null: one machine only.
  LinkTable(LinkPort* port, transport::Transport* transport) : port_(port), transport_(transport) {}

  // Of those that the user needs; the others are there.
  uint32_t missing(const LinkUser& user) const;
  // To every other machine of the user; links that nobody has heard since `quiet_ns` before they
  // were needed last are made anew.
  void open(LinkUser& user, uint64_t now_ns, uint64_t quiet_ns);
  void leave(const LinkUser& user, uint64_t now_ns);
  // The user has waited too long for a word from there: dead for everybody on the link.
  void lose(LinkUser& user, uint32_t machine, const Status& why);

  void up(LinkId id, transport::PeerId peer, uint64_t now_ns);
  void refused(LinkId id, const Status& why);  // by the port, or for what came over it
  void peer_down(transport::PeerId peer, const Status& why);

  // Something of the peer came; nothing: the link is not there any more.
  std::optional<LinkId> heard(transport::PeerId from, uint64_t now_ns);
  // Bytes of a frame came that is not whole yet.
  void heard_bytes(transport::PeerId from, uint64_t now_ns);
  // When anything came last over the user's link to that machine, be it another user's or bytes:
  // heartbeats wait behind both. 0: there is no link.
  uint64_t carried_ns(const LinkUser& user, uint32_t machine) const;
  const std::vector<Use>& uses(LinkId id) const { return links_[id].uses; }
  // A frame with a payload is on its way, or has left.
  enum class Cargo : uint8_t { kWords, kPart };  // heartbeats and control; of a tensor
  void sending(transport::PeerId to, Cargo cargo);
  void sent(transport::PeerId to, Cargo cargo);
  // Parts to that machine, of the user or of others on its link. Over tcp: not taken in there yet.
  bool under_way(const LinkUser& user, uint32_t machine) const;

  // The daemons that links, whoever used them, still have frames for.
  std::vector<std::string> owing() const;

  // Those that nobody has used for a while; last frames (results a peer still needs, the goodbye)
  // leave before.
  void close_idle(uint64_t now_ns);
  uint64_t next_closing_ns() const;  // UINT64_MAX: none
  uint32_t open_count() const;
  size_t places() const { return links_.size(); }  // of open ones, and some between them
  void count_into(Share& share) const;             // by holder

 private:
  struct Ends {
    wire::JobKey job_key{};
    wire::InstanceId instance{};
    friend auto operator<=>(const Ends&, const Ends&) = default;
  };
  struct Link {
    Ends ends;
    std::string holder;
    std::string address;  // of its daemon
    transport::PeerId peer;
    bool up = false, open = false;
    uint32_t frames = 0;       // whose payload has not left
    uint32_t parts = 0;        // of those, the ones of tensors
    uint64_t close_at_ns = 0;  // when nobody uses it
    uint64_t heard_ns = 0;     // the last frame of the peer
    uint64_t carried_ns = 0;   // the last bytes of a frame that was not whole
    std::vector<Use> uses;
  };

  static Ends ends_of(const LinkUser& user, uint32_t machine);
  static bool is_used(const Link& link, const LinkUser& user, uint32_t machine);
  static bool is_unused(const Link& link);
  static uint64_t closing_ns(const Link& idle);
  Link* find(transport::PeerId peer);
  std::optional<LinkId> find(const LinkUser& user, uint32_t machine) const;
  LinkId make(const LinkUser& user, uint32_t machine);
  bool worth_using(const Link& link, uint64_t now_ns, uint64_t quiet_ns) const;
  void use(LinkId id, const Use& use);
  void end(LinkId id, const Status& why);
  void close(Link& link);
  void tell(LinkId id, const Status& why);
  void drop_unused();

  LinkPort* port_;
  transport::Transport* transport_;
  std::vector<Link> links_;      // by LinkId; places of closed ones are used again, or given up
  std::map<Ends, LinkId> open_;  // each that is
  std::set<LinkId> idle_;        // those of them that nobody uses
  std::vector<LinkId> of_peer_;  // by PeerId::index
};

}  // namespace cgx::scheduler
