#include "scheduler/sim/costed_machine.h"

#include <algorithm>
#include <utility>

#include "kernels/codec.h"

namespace cgx::scheduler::sim {
namespace {

constexpr uint32_t kComm = 1;  // the rank's handle

wire::InstanceId instance_of(uint32_t machine) {
  return {0x51A1, machine + 1};
}

std::string address_of(uint32_t machine) {
  return "machine " + std::to_string(machine);
}

}  // namespace

CostedMachine::CostedMachine(uint32_t index, Job job, const World& world)
    : index_(index),
      job_(std::move(job)),
      world_(world),
      endpoint_({*this, lane_, job_.conditions.costs, world_.clock},
                [this](transport::Events& events) { return world_.network.make_endpoint(events); }),
      rank_(job_.model, world_.clock) {
  lane_.watch([this](const DaemonLane::Work& work, double begin_ns, double end_ns) {
    began_work(work, begin_ns, end_ns);
  });
  endpoint_.watch([this](std::span<const std::byte> header, size_t bytes) { sent(header, bytes); });
}

Result<std::unique_ptr<CostedMachine>> CostedMachine::create(uint32_t index, Job job,
                                                             const World& world) {
  std::unique_ptr<CostedMachine> machine(new CostedMachine(index, std::move(job), world));
  CGX_RETURN_IF_ERROR(machine->open());
  return machine;
}

Status CostedMachine::open() {
  EngineOptions options;
  options.instance = instance_of(index_);
  options.mesh_address = options.name = address_of(index_);
  options.lane = &kernels::best_lane();
  options.plan_history = job_.plans;
  options.limits.plan_bytes = UINT64_MAX / 4;  // nobody touches it
  const auto site = [this](std::unique_ptr<Site>) -> std::unique_ptr<Site> {
    auto costed = std::make_unique<CostedSite>(job_.conditions.costs, lane_, world_.clock);
    site_ = costed.get();
    return costed;
  };
  CGX_ASSIGN_OR_RETURN(engine_, Engine::create(options, {.transport = &endpoint_,
                                                         .links = this,
                                                         .events = this,
                                                         .clock = &world_.clock,
                                                         .site = site}));
  engine_->do_work(world_.clock.now_ns());
  CGX_ASSIGN_OR_RETURN(session_, engine_->open_session({.job = kJob, .client = kJob}, rank_));
  return engine_->add_arena(session_, 0, world_.arena);
}

void CostedMachine::meet(uint64_t first_step) {
  wire::CreateCommunicator message;
  message.comm = kComm;
  message.name = kCommunicator;
  message.rank = index_;
  message.first_step = first_step;
  for (uint32_t m = 0; m < job_.machines; ++m) {
    message.members.push_back({instance_of(m), address_of(m), {}});
  }
  engine_->create_communicator(session_, kCreate, message);
  engine_ns_ = next_ns_ = 0;
}

void CostedMachine::commit() {
  engine_->register_tensors(session_, kRegister, rank_.tensors(kComm));
  engine_->commit(session_, kCommit,
                  {.comm = kComm, .tensors = static_cast<uint32_t>(job_.model.table.size())});
  engine_ns_ = next_ns_ = 0;
}

void CostedMachine::train(uint64_t first_step, uint64_t end_step) {
  rank_.train(kComm, first_step, end_step);
  engine_ns_ = next_ns_ = 0;
}

void CostedMachine::open_link(LinkId link, const LinkRequest& request) {
  world_.introduce({index_, instance_of(index_), link, request, &endpoint_});
}

void CostedMachine::link_up(LinkId link, transport::PeerId peer) {
  engine_->link_up(link, peer);
  engine_ns_ = next_ns_ = 0;
}

bool CostedMachine::due() const {
  return next_ns_ <= world_.clock.now_ns() || !endpoint_.idle();
}

void CostedMachine::work() {
  const uint64_t now_ns = world_.clock.now_ns();
  const uint64_t step = rank_.step();
  engine_->begin_round(now_ns);
  bool told = engine_ns_ <= now_ns;  // the engine has something to do
  for (int worked = 1; worked > 0;) {
    const uint64_t spoken = spoken_;
    worked = lane_.advance(now_ns) + endpoint_.progress();
    const int handed_over = rank_.advance(
        [this](const cgx_submit_record& record) { return engine_->submit(session_, record); });
    told |= handed_over > 0 || spoken_ != spoken || site_->answers();
    if (!told) continue;
    const int engine_worked = engine_->do_work(now_ns);
    engine_ns_ = std::max(engine_->next_deadline_ns(), now_ns + 1);
    told = engine_worked > 0;
    worked += engine_worked;
  }
  if (rank_.step() != step && !rank_.done()) open_bars_.clear();
  next_ns_ = std::min({engine_ns_, lane_.next_ns(), rank_.next_ns()});
}

void CostedMachine::on_frame(transport::PeerId from, const transport::Frame& frame) {
  ++spoken_;
  engine_->on_frame(from, frame);
}

void CostedMachine::on_sent(transport::PeerId to, transport::SendToken token,
                            const Status& status) {
  ++spoken_;
  engine_->on_sent(to, token, status);
}

void CostedMachine::on_peer_down(transport::PeerId peer, const Status& why) {
  ++spoken_;
  engine_->on_peer_down(peer, why);
}

void CostedMachine::began_work(const DaemonLane::Work& work, double begin_ns, double end_ns) {
  rank_.lose(job_.conditions.share * work.price_ns);
  if (keeps_bars_) add_bar(1, work.group, begin_ns, end_ns);
}

// The port sends one frame after the other.
void CostedMachine::sent(std::span<const std::byte> header, size_t bytes) {
  const uint32_t group = group_of(header);
  if (group != DaemonLane::kNoGroup) sent_bytes_ += bytes;
  const double begin_ns = std::max(link_free_ns_, static_cast<double>(world_.clock.now_ns()));
  link_free_ns_ = begin_ns + job_.conditions.link.ns_per_byte * static_cast<double>(bytes);
  if (keeps_bars_) add_bar(2, group, begin_ns, link_free_ns_);
}

// What goes on without a break is one bar.
void CostedMachine::add_bar(uint32_t lane, uint32_t group, double begin_ns, double end_ns) {
  if (group == DaemonLane::kNoGroup) return;
  const auto last = std::find_if(open_bars_.rbegin(), open_bars_.rend(),
                                 [&](const Bar& bar) { return bar.lane == lane; });
  const bool goes_on =
      last != open_bars_.rend() && last->group == group && begin_ns - last->end_ns < 1;
  if (goes_on) {
    last->end_ns = end_ns;
  } else {
    open_bars_.push_back({lane, group, begin_ns, end_ns});
  }
}

std::vector<Bar> CostedMachine::bars(const Plan& plan) const {
  const auto began_ns = static_cast<double>(rank_.began_ns().end()[-2]);
  std::vector<double> arrival_ns(job_.model.table.size());
  for (size_t i = 0; i < rank_.arrived_ns().size(); ++i) {
    arrival_ns[job_.model.order[i]] = rank_.arrived_ns()[i] - began_ns;
  }
  std::vector<Bar> bars;
  double last_ns = job_.model.forward_ns;
  if (last_ns > 0) bars.push_back({0, Bar::kForward, 0, last_ns});
  for (uint32_t g = 0; g < plan.groups.size(); ++g) {
    double ready_ns = last_ns, end_ns = last_ns;
    for (const Segment& segment : plan.groups[g].segments) {
      ready_ns = std::max(ready_ns, arrival_ns[segment.tensor]);
    }
    for (const Bar& bar : open_bars_) {
      if (bar.group != g) continue;
      bars.push_back({bar.lane, g, bar.begin_ns - began_ns, bar.end_ns - began_ns});
      end_ns = std::max(end_ns, bars.back().end_ns);
    }
    bars.push_back({0, g, last_ns, ready_ns});
    bars.push_back({3, g, ready_ns, std::max(ready_ns, end_ns)});
    last_ns = ready_ns;
  }
  return bars;
}

}  // namespace cgx::scheduler::sim
