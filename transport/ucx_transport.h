// The UCX transport. Internal to transport/ucx*.
//
// Thread rule: one thread makes it, calls it and is called back.
// Invariants: Events are called from progress() only (on_frame from inside UCX, the rest after it:
// sending from a UCX completion would overtake frames that UCX still queues); UCX endpoints are
// closed only outside UCX's callbacks; a Link outlives every buffer UCX holds of it; a connection
// serves one link at a time and then the next one to the same peer, so the most links at once bound
// the sockets, not how many there have been.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/completions.h"
#include "transport/peer_table.h"
#include "transport/ucx_context.h"
#include "transport/ucx_sockets.h"

namespace cgx::transport {

class UcxTransport final : public Transport {
 public:
  // `listening`: the worker's TCP listeners.
  UcxTransport(UcxContext ucx, UcxOptions options, const std::set<int>& listening, Events& events);
  ~UcxTransport() override;
  Status open();  // once, before anything else

  std::string_view name() const override { return "ucx"; }
  Caps caps() const override;
  Result<Endpoint> local_endpoint() override;
  Result<PeerId> connect(const ConnectOptions& options) override;
  void close(PeerId peer) override;
  Status send(PeerId to, const Frame& frame, SendToken token) override;
  int progress() override;
  int event_fd() const override { return ucx_.event_fd; }
  bool arm() override;
  Status fit() const override;
  Totals totals() const override { return totals_; }

 private:
  static constexpr size_t kTagBytes = sizeof(uint64_t);
  static constexpr size_t kPrefixBytes = kTagBytes + sizeof(uint32_t);

  // What travels. Active message kFrame: prefix (tag, u32 number of the frame on its link),
  // caller's header | payload. kControl: tag, one of these.
  enum class Message : uint8_t { kFrame, kHello, kGoodbye };
  enum : unsigned { kFrameId = 0, kControlId = 1 };

  struct Link;
  // A UCX endpoint and, so, one TCP connection.
  struct Connection {
    UcxTransport* transport = nullptr;
    std::vector<std::byte> worker;  // UCX's address of the peer
    SocketAddresses sockets;        // where the peer listens
    ucp_ep_h endpoint = nullptr;    // null once handed to ucp_ep_close_nbx
    Link* link = nullptr;           // null: free for the next one
    bool up = false;                // has carried a hello, there or back
    bool connecting = false;        // our hello waits
    bool draining = false;          // the peer has not taken in yet what the last link sent
    bool failed = false;
  };
  struct Link {
    UcxTransport* transport = nullptr;
    PeerId id;
    std::string name;
    uint64_t inbound_tag = 0;
    uint64_t outbound_tag = 0;
    Connection* connection = nullptr;  // null once given back
    uint32_t in_flight = 0;            // hello and frames UCX still holds
    bool closed_here = false;          // by close(): nothing is reported but on_sent
    bool parted = false;               // a goodbye was said or heard
    uint32_t next_out = 0;             // numbers of frames; they wrap
    uint32_t next_in = 0;
    Status down;  // not OK: the peer is lost
  };
  // What one message needs until UCX is done with it; pooled.
  struct Sending {
    UcxTransport* transport = nullptr;
    Link* link = nullptr;  // null: a goodbye, nobody waits for it
    Message message = Message::kFrame;
    SendToken token = kNoToken;
    size_t bytes = 0;
    alignas(8) std::byte header[kPrefixBytes + kUcxHeaderBytesMax];
  };

  // UCX's callbacks. The first argument of the messages' is the transport.
  static ucs_status_t on_frame_message(void* self, const void* header, size_t header_bytes,
                                       void* payload, size_t payload_bytes,
                                       const ucp_am_recv_param_t* param);
  static ucs_status_t on_control_message(void* self, const void* header, size_t header_bytes,
                                         void* payload, size_t payload_bytes,
                                         const ucp_am_recv_param_t* param);
  static void on_send_done(void* request, ucs_status_t status, void* sending);
  static void on_failure(void* connection, ucp_ep_h endpoint, ucs_status_t status);

  // Links (ucx_links.cc).
  void send_control(Link& link, Message message);
  Link* find_tag(uint64_t tag) const;  // none if lost
  void lose(Link& link, const std::string& why);
  void release_closed();
  void end_link(Link& link);
  bool leads_to(std::span<const std::byte> worker) const;
  int report_failures();

  // Connections (ucx_connections.cc).
  Status take_connection(Link& link, std::span<const std::byte> address);
  Status open_endpoint(Connection& connection, const std::string& name);
  void set_up(Connection& connection);
  void cut(const Connection& connection);
  void give_back_connection(Link& link);
  void close_endpoint(Connection& connection);
  void drop_failed_connections();

  // Frames (ucx_transport.cc).
  Status handle(unsigned id, ucp_am_recv_callback_t callback);
  Sending& take_sending(Link* link, Message message, uint64_t tag);
  ucs_status_ptr_t start(ucp_ep_h endpoint, Sending& sending, size_t header_bytes,
                         std::span<const std::byte> payload);
  void finish(Sending& sending, ucs_status_t status);
  void receive(uint64_t tag, uint32_t number, const Frame& frame);
  Status status_of(const Link& link, ucs_status_t status) const;

  const UcxOptions options_;
  const std::string settings_;
  const std::vector<int> doors_;     // UCX's own descriptors
  const SocketAddresses listening_;  // their addresses
  Events& events_;
  UcxContext ucx_;
  PeerTable<Link> links_;
  std::unordered_map<uint64_t, Link*> by_tag_;
  std::vector<std::unique_ptr<Link>> closed_;  // by close(); UCX still holds something
  std::vector<std::unique_ptr<Connection>> connections_;
  bool connection_failed_ = false;  // some of connections_ wait to be dropped
  bool settled_ = true;             // UCX has nothing left to do of what we closed
  int saying_goodbye_ = 0;          // goodbyes UCX still holds
  std::vector<PeerId> failed_;      // on_peer_down is due
  Completions completions_;
  std::deque<Sending> sendings_;
  std::vector<Sending*> free_sendings_;
  bool in_progress_ = false;
  Totals totals_;
};

}  // namespace cgx::transport
