#include "tests/sim/cluster.h"

#include <algorithm>
#include <optional>
#include <span>

#include "kernels/codec.h"
#include "scheduler/planners/plan_question.h"

namespace cgx::sim {

using scheduler::Engine;
using scheduler::LinkId;
using scheduler::LinkRequest;

// One machine: its engine, its end of the network, and the port through which links are asked for.
struct Cluster::Daemon final : public transport::Events,
                               public scheduler::LinkPort,
                               public scheduler::EventSink,
                               public scheduler::PlannerPort,
                               public scheduler::Clock {
  Cluster& cluster;
  uint32_t machine;
  bool alive = true;
  std::unique_ptr<transport::Transport> endpoint;
  std::vector<uint64_t> recorder_memory;
  std::optional<scheduler::Recorder> recorder;
  std::unique_ptr<Engine> engine;
  std::multimap<int64_t, std::function<void()>> answers;  // of the planner, by when they come

  Daemon(Cluster& owner, uint32_t index) : cluster(owner), machine(index) {
    const uint64_t events = owner.options_.recorded_events;
    if (events == 0) return;
    recorder_memory.resize(scheduler::recorder_bytes(events) / sizeof(uint64_t));
    recorder.emplace(std::as_writable_bytes(std::span(recorder_memory)));
  }
  uint64_t now_ns() const override { return static_cast<uint64_t>(cluster.now_ns_); }

  void on_frame(transport::PeerId from, const transport::Frame& frame) override {
    if (cluster.filter_ && !cluster.filter_(machine, frame)) return;
    if (cluster.tap_) cluster.tap_(machine, frame);
    engine->on_frame(from, frame);
  }
  void on_sent(transport::PeerId to, transport::SendToken token, const Status& status) override {
    engine->on_sent(to, token, status);
  }
  void on_peer_down(transport::PeerId peer, const Status& why) override {
    engine->on_peer_down(peer, why);
  }
  void open_link(LinkId link, const LinkRequest& request) override {
    cluster.open_link(machine, link, request);
  }
  void close_link(LinkId) override {}
  void request(scheduler::PlanQuestion question, Answer answer) override {
    const int64_t due = cluster.now_ns_ + cluster.options_.planning_ns(machine);
    answers.emplace(due, [question = std::move(question), answer = std::move(answer)] {
      answer(scheduler::make_facts(question));
    });
  }
  void survey(scheduler::SurveyQuestion question, scheduler::Wanted wanted,
              SurveyAnswer answer) override {
    const int64_t due = cluster.now_ns_ + cluster.options_.planning_ns(machine);
    answers.emplace(due, [question = std::move(question), wanted, answer = std::move(answer)] {
      if (!wanted.expired()) answer(scheduler::make_survey(question));
    });
  }
  void search(scheduler::CeilingQuestion question, scheduler::Wanted wanted,
              CeilingsAnswer answer) override {
    const int64_t due = cluster.now_ns_ + cluster.options_.planning_ns(machine);
    answers.emplace(due, [question = std::move(question), wanted, answer = std::move(answer)] {
      if (!wanted.expired()) answer(scheduler::make_ceilings(question));
    });
  }
  void run(const std::function<void()>& work, const std::function<void()>& then) override {
    const int64_t due = cluster.now_ns_ + cluster.options_.planning_ns(machine);
    answers.emplace(due, [work, then] {
      work();
      then();
    });
  }
  // With as few evaluations in a slice as there may be.
  bool consider(const Slice& slice, const std::function<void()>& then) override {
    uint32_t slices = 1;
    while (!slice(1)) ++slices;
    cluster.considered_.push_back(slices);
    then();
    return true;
  }
  int deliver_answers() {
    int delivered = 0;
    while (!answers.empty() && answers.begin()->first <= cluster.now_ns_) {
      const auto answer = answers.extract(answers.begin());
      answer.mapped()();
      ++delivered;
    }
    return delivered;
  }
  void event(scheduler::EventLevel level, std::string_view text) override {
    cluster.events_.push_back("machine " + std::to_string(machine) + ": " + std::string(text));
    const bool warns = level == scheduler::EventLevel::kWarning;
    if (warns) cluster.warnings_.push_back(cluster.events_.back());
  }
};

namespace {

wire::InstanceId instance_of(uint32_t machine) {
  return {0xC0FFEE, machine + 1};
}

std::string address_of(uint32_t machine) {
  return "10.0.0." + std::to_string(machine + 1);
}

transport::LoopbackNetwork::Options network_options(const ClusterOptions& options) {
  const auto latency = [fixed = options.latency_ns, of_link = options.link_latency_ns](
                           const transport::LoopbackNetwork::Hop& hop) {
    return of_link ? of_link(hop.from, hop.to) : fixed;
  };
  // A port takes frames one after the other, so a slow link would hold up the others.
  transport::LoopbackNetwork::Options network{
      .latency_ns = latency,
      .port_bytes_per_second = options.link_latency_ns ? 0 : options.port_bytes_per_second,
      .sent_on_arrival = options.sent_on_arrival};
  if (options.frame_bytes_max != 0) network.caps.frame_bytes_max = options.frame_bytes_max;
  return network;
}

}  // namespace

Cluster::Cluster(ClusterOptions options)
    : options_(std::move(options)), network_(network_options(options_)), faults_(options_.faults) {
  network_.advance_to(now_ns_);
  faults_.advance_to(now_ns_);
  for (uint32_t machine = 0; machine < options_.ranks_per_machine.size(); ++machine) {
    auto daemon = std::make_unique<Daemon>(*this, machine);
    daemon->endpoint = faults_.wrap(
        *daemon, [&](transport::Events& events) { return network_.make_endpoint(events); });
    scheduler::EngineOptions engine_options;
    engine_options.instance = instance_of(machine);
    engine_options.mesh_address = address_of(machine);
    engine_options.name = "node" + std::to_string(machine);
    engine_options.lane = &kernels::best_lane();
    engine_options.policy = options_.policy;
    engine_options.timeouts = options_.timeouts;
    if (options_.limits) engine_options.limits = options_.limits(machine);
    engine_options.plan_history = options_.plan_history;
    engine_options.costs = options_.costs_of ? options_.costs_of(machine) : options_.costs;
    engine_options.profiles = options_.profiles;
    if (options_.cores) engine_options.cores = options_.cores(machine);
    engine_options.search = options_.search;
    scheduler::PlannerPort* const planner = options_.planning_ns ? daemon.get() : nullptr;
    scheduler::SiteMaker site;
    if (options_.site && options_.site(machine).takes_ns) {
      site = [this, machine](std::unique_ptr<scheduler::Site> host) {
        auto slow = std::make_unique<SlowSite>(std::move(host), options_.site(machine),
                                               [this] { return static_cast<uint64_t>(now_ns_); });
        sites_.push_back(slow.get());
        return slow;
      };
    }
    auto engine =
        Engine::create(engine_options, {.transport = daemon->endpoint.get(),
                                        .links = daemon.get(),
                                        .events = daemon.get(),
                                        .plans = options_.plans,
                                        .planner = planner,
                                        .recorder = daemon->recorder ? &*daemon->recorder : nullptr,
                                        .clock = daemon.get(),
                                        .site = std::move(site)});
    CGX_ASSERT(engine.ok());
    daemon->engine = std::move(*engine);
    daemon->engine->do_work(static_cast<uint64_t>(now_ns_));
    daemons_.push_back(std::move(daemon));
    for (uint32_t i = 0; i < options_.ranks_per_machine[machine]; ++i) {
      auto rank = std::make_unique<Rank>(options_.arena_bytes);
      rank->machine = machine;
      auto session =
          daemons_[machine]->engine->open_session({.job = "job", .client = "sim"}, *rank);
      CGX_ASSERT(session.ok());
      rank->session = *session;
      CGX_ASSERT(engine_options.lane != nullptr);
      CGX_ASSERT(daemons_[machine]->engine->add_arena(*session, 0, rank->arena()).ok());
      ranks_.push_back(std::move(rank));
    }
  }
}

Cluster::~Cluster() {
  for (SlowSite* const site : sites_) site->close();
}

uint32_t Cluster::machine_count() const {
  return static_cast<uint32_t>(daemons_.size());
}

Engine& Cluster::engine(uint32_t machine) {
  return *daemons_[machine]->engine;
}

std::vector<scheduler::Event> Cluster::recorded(uint32_t machine) const {
  const auto memory = std::as_bytes(std::span(daemons_[machine]->recorder_memory));
  const auto reader = scheduler::RecorderReader::create(memory);
  CGX_ASSERT(reader.ok());
  return reader->read(0).events;
}

void Cluster::open_link(uint32_t machine, LinkId link, const LinkRequest& request) {
  const auto done = introductions_.ask(
      {machine, instance_of(machine), link, request, daemons_[machine]->endpoint.get()});
  if (!done) return;
  const uint32_t other = done->other.machine;
  peers_[{machine, other}] = done->ours;
  peers_[{other, machine}] = done->theirs;
  links_[{machine, other}] = link;
  links_[{other, machine}] = done->other.link;
  daemons_[machine]->engine->link_up(link, done->ours);
  daemons_[other]->engine->link_up(done->other.link, done->theirs);
}

wire::CreateCommunicator Cluster::create_message(uint32_t rank, const std::string& name) const {
  wire::CreateCommunicator message;
  message.comm = 7;
  message.name = name;
  message.rank = rank;
  message.first_step = options_.first_step;
  message.timeout_ms = options_.timeout_ms;
  message.job_key[3] = std::byte{42};
  for (const auto& member : ranks_) {
    message.members.push_back({instance_of(member->machine), address_of(member->machine), {}});
  }
  return message;
}

void Cluster::create_as(uint32_t index, scheduler::SessionId session) {
  engine(rank(index).machine).create_communicator(session, kCreate, create_message(index, "world"));
}

void Cluster::create_alone(uint32_t machine, scheduler::SessionId session,
                           const std::string& name) {
  wire::CreateCommunicator message;
  message.comm = 7;
  message.name = name;
  message.members.push_back({instance_of(machine), address_of(machine), {}});
  engine(machine).create_communicator(session, kCreate, message);
}

void Cluster::create_on(uint32_t index,
                        const std::function<void(wire::CreateCommunicator&)>& change) {
  wire::CreateCommunicator message = create_message(index, "world");
  change(message);
  rank(index).replies.erase(kCreate);
  engine(rank(index).machine).create_communicator(rank(index).session, kCreate, message);
}

bool Cluster::create_again(uint64_t first_step) {
  for (uint32_t i = 0; i < size(); ++i) close_communicator(i);
  run_for(100'000'000);
  for (uint32_t i = 0; i < size(); ++i) {
    rank(i).replies.clear();
    rank(i).completions.clear();
    create_on(i, [&](auto& message) { message.first_step = first_step; });
  }
  return run_until([&] {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->replies.count(kCreate) > 0; });
  });
}

void Cluster::create(const std::string& name) {
  for (uint32_t i = 0; i < size(); ++i) {
    engine(rank(i).machine).create_communicator(rank(i).session, kCreate, create_message(i, name));
  }
  run_until(
      [&] {
        return std::all_of(ranks_.begin(), ranks_.end(),
                           [](const auto& rank) { return rank->replies.count(kCreate) > 0; });
      },
      200'000'000'000);
}

void Cluster::register_on(uint32_t index, const std::vector<Tensor>& tensors, uint32_t first) {
  wire::RegisterTensors message;
  message.comm = 7;
  message.first = first;
  for (const Tensor& tensor : std::span(tensors).subspan(first)) {
    wire::TensorDescription& described = message.tensors.emplace_back();
    described.name = tensor.name;
    described.dtype = tensor.dtype;
    described.op = tensor.op;
    described.elements = tensor.elements;
    described.shape =
        tensor.shape.empty() ? std::vector<uint64_t>{1, tensor.elements} : tensor.shape;
    described.home_offset = tensor.offset;
  }
  engine(rank(index).machine).register_tensors(rank(index).session, kRegister, message);
}

void Cluster::request_commit(uint32_t index, uint32_t tensors) {
  engine(rank(index).machine).commit(rank(index).session, kCommit, {.comm = 7, .tensors = tensors});
}

void Cluster::place(std::vector<Tensor>& tensors) const {
  uint64_t offset = 0;
  for (Tensor& tensor : tensors) {
    tensor.offset = offset;
    offset += (tensor.elements * dtype_bytes(tensor.dtype) + 63) / 64 * 64;
  }
  CGX_ASSERT(offset <= options_.arena_bytes);
}

void Cluster::commit(std::vector<Tensor>& tensors) {
  place(tensors);
  for (uint32_t i = 0; i < size(); ++i) {
    register_on(i, tensors);
    request_commit(i, static_cast<uint32_t>(tensors.size()));
  }
  run_until([&] {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->replies.count(kCommit) > 0; });
  });
}

Status Cluster::submit(uint32_t index, uint64_t step, uint32_t tensor, const Tensor& where) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_TENSOR;
  record.comm = 7;
  record.step = step;
  record.tensor = tensor;
  record.attempt = rank(index).attempt;
  record.gradient_unit = rank(index).gradient_unit;
  record.in_offset = record.out_offset = where.offset;
  return engine(rank(index).machine).submit(rank(index).session, record);
}

Status Cluster::end_step(uint32_t index, uint64_t step) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_END;
  record.comm = 7;
  record.step = step;
  record.attempt = rank(index).attempt;
  record.gradient_unit = rank(index).gradient_unit;
  return engine(rank(index).machine).submit(rank(index).session, record);
}

Status Cluster::done_step(uint32_t index, uint64_t step, bool dropped) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_STEP_DONE;
  record.flags = dropped ? CGX_STEP_DROPPED : 0;
  record.comm = 7;
  record.step = step;
  record.attempt = rank(index).attempt;
  return engine(rank(index).machine).submit(rank(index).session, record);
}

Status Cluster::absent(uint32_t index, uint64_t step, uint32_t tensor) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_ABSENT;
  record.comm = 7;
  record.step = step;
  record.tensor = tensor;
  record.attempt = rank(index).attempt;
  record.gradient_unit = rank(index).gradient_unit;
  return engine(rank(index).machine).submit(rank(index).session, record);
}

Status Cluster::call(uint32_t index, uint64_t number, DType dtype, ReduceOp op, uint64_t elements,
                     uint64_t offset) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_CALL;
  record.dtype = static_cast<uint8_t>(dtype);
  record.op = static_cast<uint8_t>(op);
  record.comm = 7;
  record.step = number;
  record.count = elements;
  record.in_offset = record.out_offset = offset;
  return engine(rank(index).machine).submit(rank(index).session, record);
}

Status Cluster::submit_record(uint32_t index, cgx_submit_record record) {
  record.comm = 7;
  if (record.kind != CGX_SUBMIT_CALL) record.attempt = rank(index).attempt;
  if (record.kind != CGX_SUBMIT_CALL && record.kind != CGX_SUBMIT_STEP_DONE) {
    record.gradient_unit = rank(index).gradient_unit;
  }
  return engine(rank(index).machine).submit(rank(index).session, record);
}

void Cluster::request_redo(uint32_t index) {
  rank(index).replies.erase(kRedo);
  engine(rank(index).machine).redo_step(rank(index).session, kRedo, {.comm = 7});
}

void Cluster::kill_rank(uint32_t index) {
  rank(index).alive = false;
  engine(rank(index).machine)
      .close_session(rank(index).session, {StatusCode::kRANK_LOST, "killed by the test"});
  release_arenas();
}

void Cluster::say_goodbye(uint32_t index) {
  rank(index).alive = false;
  engine(rank(index).machine).close_session(rank(index).session, {});
  release_arenas();
}

// As a daemon unmaps what its engine no longer uses.
void Cluster::release_arenas() {
  for (const auto& rank : ranks_) {
    if (rank->alive || rank->released || !daemons_[rank->machine]->alive) continue;
    if (engine(rank->machine).session_in_use(rank->session)) continue;
    rank->released = true;
    rank->memory().forbid();
  }
}

bool Cluster::released_memory_touched() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->memory().touched(); });
}

void Cluster::kill_daemon(uint32_t machine) {
  Daemon& daemon = *daemons_[machine];
  daemon.alive = false;
  for (const auto& rank : ranks_) {
    if (rank->machine == machine) rank->alive = false;
  }
  daemon.endpoint.reset();
}

// This side gives the link up; the other hears it from its transport.
void Cluster::cut_link(uint32_t machine, uint32_t other) {
  const auto link = links_.find({machine, other});
  if (link == links_.end()) return;
  engine(machine).link_down(link->second, {StatusCode::kPEER_LOST, "cut by the test"});
}

void Cluster::stop_daemon(uint32_t machine) {
  daemons_[machine]->alive = false;
}

bool Cluster::stopped(uint32_t machine) const {
  return !daemons_[machine]->alive;
}

void Cluster::close_communicator(uint32_t index, uint32_t comm) {
  engine(rank(index).machine).close_communicator(rank(index).session, kClose, {.comm = comm});
}

bool Cluster::round() {
  int worked = 0;
  for (const auto& daemon : daemons_) {
    if (!daemon->alive) continue;
    daemon->engine->begin_round(static_cast<uint64_t>(now_ns_));
    worked += daemon->deliver_answers();
    worked += daemon->endpoint->progress();
    worked += daemon->engine->do_work(static_cast<uint64_t>(now_ns_));
  }
  release_arenas();
  return worked > 0;
}

int64_t Cluster::next_time() const {
  int64_t next = std::min(network_.next_event_ns(), faults_.next_event_ns());
  for (const auto& daemon : daemons_) {
    if (!daemon->alive) continue;
    if (!daemon->answers.empty()) next = std::min(next, daemon->answers.begin()->first);
    const uint64_t deadline = daemon->engine->next_deadline_ns();
    if (deadline < static_cast<uint64_t>(INT64_MAX)) {
      next = std::min(next, static_cast<int64_t>(deadline));
    }
  }
  if (wake_at_ns_ > now_ns_) next = std::min(next, wake_at_ns_);
  return std::max(next, now_ns_ + 1);
}

bool Cluster::run_until(const std::function<bool()>& done, int64_t limit_ns) {
  const int64_t limit = now_ns_ + limit_ns;
  while (!done()) {
    if (round()) continue;
    if (done()) return true;
    const int64_t next = next_time();
    if (next > limit) return false;
    now_ns_ = next;
    network_.advance_to(now_ns_);
    faults_.advance_to(now_ns_);
  }
  return true;
}

void Cluster::run_for(int64_t ns) {
  const int64_t until = now_ns_ + ns;
  run_until([&] { return now_ns_ >= until; }, ns);
}

void Cluster::run_rounds(uint32_t rounds) {
  uint32_t left = rounds + 1;
  run_until([&] { return --left == 0; });
}

bool Cluster::all_ended(uint64_t step) {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
    return !rank->alive || rank->find(CGX_COMPLETE_STEP, step) != nullptr;
  });
}

}  // namespace cgx::sim
