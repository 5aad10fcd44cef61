// All of the engine: sessions, communicators and the links between daemons. engine.cc has what
// sessions and operators ask, engine_links.cc what passes between daemons.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scheduler/communicator/communicator.h"
#include "scheduler/communicator/link_table.h"
#include "scheduler/engine/counted_port.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/meetings.h"
#include "scheduler/engine/siblings.h"
#include "scheduler/engine/turns.h"
#include "scheduler/exchange/host_site.h"

namespace cgx::scheduler {

class Engine::State final : public CommunicatorPort, public SiteEvents {
 public:
  static constexpr uint64_t kSlabBytes = 256 * 1024;
  struct Session {
    bool open = false;
    uint32_t generation = 0;
    SessionOptions options;
    std::unique_ptr<CountedPort> port;
    std::vector<ArenaId> arenas;
    uint64_t submits = 0;
    uint64_t handles_end = 0;  // all that it has used are below
    // Communicators by the session's handle, with the rank's index among the local ones.
    std::map<uint32_t, std::pair<Communicator*, uint32_t>> communicators;
  };

  struct Workplace {
    std::shared_ptr<SlabStore> slabs;
    std::unique_ptr<Site> site;  // outlives the communicators
    bool leaves = false;         // goes as soon as nothing is there any more
  };

  State(const EngineOptions& options, const EnginePorts& ports)
      : options_(options),
        ports_(ports),
        meetings_(options.limits.communicators),
        links_(ports.links, ports.transport) {
    Workplace& host = sites_[kHostSite];
    host.slabs = std::make_shared<SlabStore>(kSlabBytes);
    host.site = std::make_unique<HostSite>(*options.lane, arenas_, *host.slabs);
    if (ports.site) host.site = ports.site(std::move(host.site));
    if (options.profiles) kept_profiles_ = *options.profiles;
  }
  ~State() override {  // jobs name what communicators have
    for (auto& [id, place] : sites_) place.site->stop();
  }

  // CommunicatorPort
  const EngineOptions& options() const override { return options_; }
  const std::shared_ptr<SlabStore>& slabs(SiteId site) override { return at(site).slabs; }
  uint64_t now_ns() const override { return now_ns_; }
  Share plan_share() const override;
  Site& site(SiteId site) override { return *at(site).site; }
  Ticket new_ticket() override { return ++last_ticket_; }
  void expect(Ticket ticket, Communicator& communicator, Operation& operation) override {
    expected_[ticket] = {&communicator, &operation};
  }
  Arena arena(SessionId id, uint32_t arena) const override {
    const Session* session = find(id);
    if (session == nullptr || arena >= session->arenas.size()) return {};
    const ArenaId known = session->arenas[arena];
    return {known, arenas_.bytes(known), arenas_.site(known)};
  }
  void count(Counter counter, uint64_t amount) override {
    counters_[static_cast<size_t>(counter)] += amount;
  }
  void event(EventLevel level, const std::string& text) override {
    if (ports_.events != nullptr) ports_.events->event(level, text);
  }
  void note(EventLevel level, std::string_view text,
            std::initializer_list<EventField> fields) override {
    if (ports_.events == nullptr) return;
    ports_.events->note(level, text, std::span(fields.begin(), fields.size()));
  }
  PlanLog* plan_log() override { return ports_.plans; }
  PlannerPort& planner() override {
    return ports_.planner != nullptr ? *ports_.planner : inline_planner_;
  }
  KeptPolicies& kept_policies() override { return kept_policies_; }
  KeptProfiles& kept_profiles() override { return kept_profiles_; }
  ProfileLog* profile_log() override { return ports_.profiles; }
  size_t& replayed(const KeptFor& whose) override {
    return replayed_[{whose.uid, whose.job, whose.communicator}];
  }
  ResidualStore& residuals() override { return residuals_; }
  void release(std::vector<Residuals::Memory> memory) override;
  uint16_t new_index() override;
  void record(Event event) override {
    if (ports_.recorder == nullptr) return;
    if (event.time_ns == 0) event.time_ns = std::max(now_ns_, fine_ns_);
    ports_.recorder->record(event);
  }
  uint64_t fine_ns() override {
    if (ports_.recorder == nullptr) return 0;
    if (ports_.clock != nullptr) fine_ns_ = ports_.clock->now_ns();
    return std::max(now_ns_, fine_ns_);
  }
  uint64_t busy_ns() const override;
  void share_thread();  // another communicator has come, or one has gone
  Status send(transport::PeerId peer, wire::FrameHeader header, std::span<const std::byte> payload,
              SiteId site, SlabId slab) override;
  Status send_shared(transport::PeerId peer, wire::FrameHeader header,
                     SharedBytes payload) override;
  Status pass_on(transport::PeerId peer, wire::FrameHeader header,
                 std::span<const std::byte> payload, transport::SendToken token);
  wire::PayloadCheck payload_check() const {
    return ports_.transport->caps().checks_payloads ? wire::PayloadCheck::kTransport
                                                    : wire::PayloadCheck::kFrame;
  }

  const Session* find(SessionId id) const {
    const bool known = id.index < sessions_.size() && sessions_[id.index].open &&
                       sessions_[id.index].generation == id.generation;
    return known ? &sessions_[id.index] : nullptr;
  }
  void keep_residuals(Communicator& communicator);
  Status add_arena(SessionId id, uint32_t arena, const std::function<ArenaId(ArenaTable&)>& add);
  Result<SiteId> site_of(const Session& session, const wire::CreateCommunicator& message) const;
  Status lost(SiteId site) const;
  void free_residuals();
  // Open ones of the same job.
  auto sessions_of(const SessionOptions& job) const {
    return std::count_if(sessions_.begin(), sessions_.end(), [&](const Session& one) {
      return one.open && one.options.job == job.job && one.options.uid == job.uid;
    });
  }
  Session* find(SessionId id) {
    return const_cast<Session*>(static_cast<const State*>(this)->find(id));
  }
  Share session_share() const;
  Share communicator_share() const;
  Share link_share() const;
  Status check_links(const Communicator& communicator) const;
  std::vector<Share> shares() const;  // all there are
  // Of that name, all that are open: one for each site.
  std::vector<Communicator*> named(const SessionOptions& session, const std::string& name);
  Communicator* find_communicator(const SessionOptions& session, const std::string& name,
                                  const wire::DeviceId& device);
  Status check_siblings(const SessionOptions& session, const wire::CreateCommunicator& message);
  Status still_held(const Communicator& communicator, const Status& failure) const;
  int deliver_beside();
  void give_back(transport::SendToken token);
  Result<Communicator*> pick_communicator(const PolicyRequest& request);
  // Null: `answer` has been told why.
  template <class Request, class Answer>
  Communicator* pick_for(const Request& request, const Answer& answer);
  uint64_t carried_ns(const LinkUser& user, uint32_t machine) const override {
    return links_.carried_ns(user, machine);
  }
  bool under_way(const LinkUser& user, uint32_t machine) const override {
    return links_.under_way(user, machine);
  }
  void lose_link(LinkUser& user, uint32_t machine, const Status& why) override;
  void site_answered(Ticket ticket, const SiteAnswer& answer) override;
  bool in_use(SessionId session) const;
  Workplace& at(SiteId site) { return sites_.find(site)->second; }
  int poll_sites();
  void close_sites();
  void forget_arenas();  // of sessions that have gone and are named by nothing any more
  void answer_closings();
  void drop_closed_communicators();
  uint64_t turn_clock_ns() const;
  Turns::Account& account_of(const Communicator& communicator);
  void open_account(const Communicator& communicator);  // before it is one of them
  void charge(const Communicator& communicator, uint64_t since_ns);
  void line_up();
  int take_turns();

  EngineOptions options_;
  EnginePorts ports_;
  InlinePlanner inline_planner_;
  ArenaTable arenas_;
  std::map<SiteId, Workplace> sites_;
  SiteId last_site_ = kHostSite;
  Ticket last_ticket_ = 0;
  struct Expected {
    Communicator* communicator;
    Operation* operation;
  };
  std::unordered_map<Ticket, Expected> expected_;  // answers of the site
  std::vector<std::pair<SessionId, std::vector<ArenaId>>> left_arenas_;
  struct Closing {  // not answered: the site has something of the communicator
    SessionId session;
    uint32_t request;
    Communicator* communicator;
  };
  std::vector<Closing> closings_;
  uint64_t now_ns_ = 0, start_ns_ = 0;
  uint64_t worked_ns_ = 0;  // when do_work() was called last
  uint64_t fine_ns_ = 0;    // what the fine clock said last
  uint16_t last_index_ = 0;
  bool started_ = false;
  Status draining_;  // an error: why this daemon is to stop
  std::vector<Session> sessions_;
  Meetings meetings_;
  KeptPolicies kept_policies_;
  KeptProfiles kept_profiles_;
  std::map<std::tuple<uint32_t, std::string, std::string>, size_t> replayed_;  // by whose
  ResidualStore residuals_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  LinkTable links_;
  Siblings siblings_;
  uint32_t turn_ = 0;
  Turns turns_;
  std::vector<Turns::Account> accounts_;  // by Communicator::index()
  struct InLine {
    uint64_t end = 0;
    uint32_t position = 0, index = 0;  // of communicators_
    auto operator<=>(const InLine&) const = default;
  };
  std::vector<InLine> line_;  // of this round
  Counters counters_{};
  std::map<uint64_t, SharedBytes> copied_payloads_;
  uint64_t next_copy_ = 1;
};

}  // namespace cgx::scheduler
