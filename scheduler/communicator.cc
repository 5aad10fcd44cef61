#include "scheduler/communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "proto/wire/bytes.h"
#include "scheduler/planner.h"

namespace cgx::scheduler {

const char* state_name(Communicator::State state) {
  switch (state) {
    case Communicator::State::kJoining:
      return "joining";
    case Communicator::State::kReady:
      return "ready";
    case Communicator::State::kRunning:
      return "running";
    case Communicator::State::kFrozen:
      return "frozen";
    case Communicator::State::kFailed:
      return "failed";
    case Communicator::State::kClosed:
      return "closed";
  }
  return "unknown";
}

Communicator::Communicator(Members members, CommunicatorServices& services)
    : members_(std::move(members)),
      services_(services),
      policy_(
          services.options().job_weights.starting_policy(services.options().policy, members_.job)),
      local_(members_.local.size()),
      peers_(members_.machines()),
      tables_(members_.machines()),
      agreement_(members_, *this),
      steps_({members_, *services.options().lane, services.pool(), *this},
             [this](uint64_t step) { return agreement_.plan_for(step, steps_.plan()); }),
      calls_({members_, *services.options().lane, services.pool(), *this}),
      next_tick_ns_(services.now_ns()) {
  created_ns_ = services_.now_ns();
}

Communicator::~Communicator() {
  services_.pool().unreserve(call_slabs_);
}

bool Communicator::uses(SessionId session) const {
  return std::any_of(members_.local.begin(), members_.local.end(), [&](const LocalRank& local) {
    return local.port != nullptr && local.session == session;
  });
}

bool Communicator::operations_open() const {
  return steps_.operations_open() || calls_.operations_open();
}

uint32_t Communicator::weight() const {
  return steps_.installed() ? steps_.plan()->plan.weight : policy_.weight;
}

uint64_t Communicator::reserved_bytes() const {
  const uint64_t calls = call_slabs_.sum() * services_.pool().slab_bytes();
  return calls + (steps_.installed() ? steps_.plan()->reserved_bytes : 0);
}

// --- Submits
// ---------------------------------------------------------------------------------------

Status Communicator::submit(uint32_t local, const cgx_submit_record& record) {
  if (record.kind < CGX_SUBMIT_TENSOR || record.kind > CGX_SUBMIT_CALL) {
    return protocol_error("submit record of unknown kind " + std::to_string(record.kind));
  }
  Status status;
  if (state_ == State::kFailed || state_ == State::kClosed) {
    status = failure_;
  } else if (state_ == State::kJoining) {
    status = Status(StatusCode::kNOT_COMMITTED, members_.title() + " is still joining");
  } else if (record.kind == CGX_SUBMIT_CALL) {
    status = state_ == State::kFrozen ? failure_ : submit_call(local, record);
  } else {
    status = submit_tensor(local, record);
  }
  if (status.ok()) return {};
  // A straggler of a failed attempt is told why that failed; the attempt under way goes on.
  const bool fails_step = status.code() == StatusCode::kSTEP_ABANDONED &&
                          record.kind == CGX_SUBMIT_TENSOR && record.attempt == term_;
  refuse(local, record, status);
  if (fails_step) fail(status, /*permanent=*/false, /*tell_others=*/true);
  return {};
}

Status Communicator::submit_tensor(uint32_t local, const cgx_submit_record& record) {
  if (!steps_.installed()) {
    return {StatusCode::kNOT_COMMITTED, members_.title() + " has not been committed"};
  }
  if (record.attempt != term_ || state_ == State::kFrozen) {
    return failure_.ok() ? Status(StatusCode::kSTEP_ORDER,
                                  "attempt " + std::to_string(record.attempt) +
                                      " of the step, the current one is " + std::to_string(term_))
                         : failure_;
  }
  if (std::any_of(local_.begin(), local_.end(), [](const LocalState& l) { return l.left; })) {
    return {StatusCode::kCANCELLED, "another rank has closed " + members_.title()};
  }
  local_[local].last_step = record.step;
  if (record.kind != CGX_SUBMIT_STEP_DONE) {
    const double unit = record.count == 0 ? 1.0 : std::bit_cast<double>(record.count);
    CGX_RETURN_IF_ERROR(steps_.declare_unit(local, record.step, unit));
  }
  switch (static_cast<cgx_submit_kind>(record.kind)) {
    case CGX_SUBMIT_TENSOR: {
      if (record.tensor >= table_->size()) {
        return {StatusCode::kNOT_COMMITTED, "tensor " + std::to_string(record.tensor) +
                                                " is not in the committed table of " +
                                                std::to_string(table_->size()) + " tensors"};
      }
      const TensorDesc& tensor = (*table_)[record.tensor];
      CGX_ASSIGN_OR_RETURN(const Buffers memory,
                           buffers(local, record, tensor.dtype, tensor.elements));
      return steps_.submit(local, record.step,
                           {record.tensor, memory.input, memory.output, record.cookie});
    }
    case CGX_SUBMIT_ABSENT:
      return steps_.absent(local, record.step, record.tensor, record.cookie);
    case CGX_SUBMIT_STEP_END:
      return steps_.end(local, record.step, record.cookie, services_.now_ns());
    case CGX_SUBMIT_STEP_DONE:
      return steps_.done(local, record.step, record.flags & CGX_STEP_DROPPED);
    case CGX_SUBMIT_CALL:
      break;
  }
  return internal_error("not a step record");
}

Status Communicator::submit_call(uint32_t local, const cgx_submit_record& record) {
  if (!dtype_known(record.dtype)) {
    return invalid_argument("dtype " + std::to_string(record.dtype) + " is not known");
  }
  CallRunner::Submission submission;
  submission.descriptor.elements = record.count;
  submission.descriptor.dtype = static_cast<DType>(record.dtype);
  submission.descriptor.op = static_cast<ReduceOp>(record.op);
  const DType dtype = submission.descriptor.dtype;
  if (record.op > static_cast<uint8_t>(ReduceOp::kAvg)) {
    return invalid_argument("op " + std::to_string(record.op) + " is not sum (0) or avg (1)");
  }
  if (submission.descriptor.op == ReduceOp::kAvg && !dtype_is_small_float(dtype) &&
      dtype != DType::kF64) {
    return invalid_argument("avg is defined for floating types, not for " +
                            std::string(dtype_name(dtype)));
  }
  CGX_ASSIGN_OR_RETURN(const Buffers memory, buffers(local, record, dtype, record.count));
  submission.input = memory.input;
  submission.output = memory.output;
  submission.cookie = record.cookie;
  const Status status = calls_.submit(local, record.step, submission, services_.now_ns());
  publish_call_failures();
  return status;
}

Result<Communicator::Buffers> Communicator::buffers(uint32_t local, const cgx_submit_record& record,
                                                    DType dtype, uint64_t elements) const {
  const uint64_t width = dtype_bytes(dtype);
  const auto locate = [&](uint32_t arena, uint64_t offset, const char* what) -> Result<std::byte*> {
    const std::span<std::byte> memory = services_.arena(members_.local[local].session, arena);
    const bool fits = elements <= memory.size() / width && offset <= memory.size() &&
                      elements * width <= memory.size() - offset;
    if (!fits || offset % width != 0) {
      return invalid_argument(
          std::string(what) + " of " + std::to_string(elements) + " " +
          std::string(dtype_name(dtype)) + " at offset " + std::to_string(offset) + " of arena " +
          std::to_string(arena) +
          (fits ? " is not aligned to its type"
                : " does not fit its " + std::to_string(memory.size()) + " bytes"));
    }
    return memory.data() + offset;
  };
  CGX_ASSIGN_OR_RETURN(std::byte* const input, locate(record.in_arena, record.in_offset, "input"));
  CGX_ASSIGN_OR_RETURN(std::byte* const output,
                       locate(record.out_arena, record.out_offset, "output"));
  const uint64_t bytes = elements * width;
  if (input != output && input < output + bytes && output < input + bytes) {
    return invalid_argument("input and output overlap without being the same");
  }
  return Buffers{input, output};
}

void Communicator::refuse(uint32_t local, const cgx_submit_record& record, const Status& why) {
  cgx_completion_record answer{};
  switch (static_cast<cgx_submit_kind>(record.kind)) {
    case CGX_SUBMIT_TENSOR:
    case CGX_SUBMIT_ABSENT:
      answer.kind = CGX_COMPLETE_TENSOR;
      break;
    case CGX_SUBMIT_STEP_END:
      answer.kind = CGX_COMPLETE_STEP;
      break;
    case CGX_SUBMIT_CALL:
      answer.kind = CGX_COMPLETE_CALL;
      break;
    case CGX_SUBMIT_STEP_DONE:
      return;  // has no completion; the step that follows will not match
  }
  answer.outcome = CGX_OUTCOME_ERROR;
  answer.status = static_cast<uint16_t>(why.code());
  answer.comm = record.comm;
  answer.step = record.step;
  answer.tensor = record.tensor;
  answer.attempt = record.attempt;
  answer.cookie = record.cookie;
  if (members_.local[local].port != nullptr) {
    members_.local[local].port->complete(answer, why.message());
  }
}

void Communicator::publish_call_failures() {
  for (auto& [call, why] : calls_.take_failures()) {
    broadcast(CallFailure{call, why.code(), why.message()});
  }
}

// --- Frames out
// ------------------------------------------------------------------------------------

wire::FrameHeader Communicator::header_for(wire::FrameType type) const {
  wire::FrameHeader header;
  header.type = type;
  header.communicator = members_.id;
  header.term = term_;
  header.source = members_.machine;
  header.watermark_step = steps_.completed_end();
  header.watermark_call = calls_.completed_end();
  header.started_step = steps_.started_end();
  if (members_.coordinator()) {
    header.next_epoch = agreement_.announced_epoch();
    header.switch_step = agreement_.announced_step();
  }
  return header;
}

void Communicator::send_part(const Operation& operation, const PartFrame& frame) {
  wire::FrameHeader header = header_for(wire::FrameType::kData);
  header.step_kind = operation.kind();
  header.step = operation.step();
  header.group = operation.group_index();
  header.phase = frame.phase;
  header.shard = frame.shard;
  header.chunk = frame.chunk;
  if (frame.bitmap) header.flags |= wire::FrameHeader::kBitmap;
  if (operation.kind() == wire::StepKind::kStep) {
    header.epoch = steps_.plan()->plan.epoch;
    header.plan_hash = steps_.plan()->hash;
    if (steps_.previous_dropped()) header.flags |= wire::FrameHeader::kStepDropped;
  } else {
    header.plan_hash =
        reinterpret_cast<const CallDescriptor*>(operation.setup().descriptor.data())->hash();
  }
  count(Counter::kencoded_bytes_sent, frame.length);
  wire_bytes_sent_ += frame.length + sizeof(header);
  send_to(frame.machine, header, services_.pool().bytes(frame.slab).first(frame.length),
          frame.slab);
}

void Communicator::send_control(uint32_t machine, const ControlMessage& message) {
  const std::vector<std::byte> body = encode_control(message);
  send_to(machine, header_for(wire::FrameType::kControl), body, kNoSlab);
}

void Communicator::broadcast(const ControlMessage& message) {
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k != members_.machine) send_control(k, message);
  }
}

void Communicator::send_to(uint32_t machine, wire::FrameHeader header,
                           std::span<const std::byte> payload, SlabId slab) {
  PeerState& peer = peers_[machine];
  if (!peer.up) {
    if (slab != kNoSlab) services_.pool().release(slab);
    return;
  }
  ++peer.frames_sent;
  peer.bytes_sent += payload.size() + sizeof(header);
  wire::seal(header, payload);
  services_.send(peer.peer, header, payload, slab);
}

void Communicator::count(Counter counter, uint64_t amount) {
  services_.count(counter, amount);
}

// --- Frames in
// -------------------------------------------------------------------------------------

void Communicator::receive(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  PeerState& peer = peers_[header.source];
  peer.last_heard_ns = services_.now_ns();
  ++peer.frames_received;
  peer.bytes_received += payload.size() + sizeof(header);
  if (state_ == State::kFailed) return answer_join(header, payload);
  if (state_ == State::kClosed) return;
  if (header.term < term_) {
    count(Counter::kframes_stale, 1);
    return;
  }
  // The next term's frames may overtake the coordinator's word for it; its reports must not wait.
  const bool early = header.term > term_;
  if (early && header.type == wire::FrameType::kData) {
    constexpr size_t kWaitingMax = 4096;
    if (header.term != term_ + 1 || next_term_frames_.size() >= kWaitingMax) {
      count(Counter::kframes_unexpected, 1);
      return;
    }
    next_term_frames_.push_back({header, {payload.begin(), payload.end()}});
    return;
  }
  if (!early) {
    peer.started_end = std::max(peer.started_end, header.started_step);
    if (header.source == 0) {
      const Status status = agreement_.on_announcement(header.next_epoch, header.switch_step);
      if (!status.ok()) return fail(status, /*permanent=*/true, /*tell_others=*/true);
    }
  }
  switch (header.type) {
    case wire::FrameType::kData:
      peer.last_data_ns = services_.now_ns();
      return receive_data(header, payload);
    case wire::FrameType::kControl:
      return receive_control(header.source, payload);
    case wire::FrameType::kHeartbeat:
      peer.progress = header.progress;
      return receive_heartbeat(peer, payload);
  }
  count(Counter::kframes_unexpected, 1);
}

// A machine that joins after the failure was told to the others.
void Communicator::answer_join(const wire::FrameHeader& header,
                               std::span<const std::byte> payload) {
  if (header.type != wire::FrameType::kControl) return;
  const Result<ControlMessage> message = decode_control(payload);
  if (!message.ok() || !std::holds_alternative<Join>(*message)) return;
  tell_failure(header.source);
}

void Communicator::receive_data(const wire::FrameHeader& header,
                                std::span<const std::byte> payload) {
  if (state_ != State::kRunning && state_ != State::kReady) {
    count(Counter::kframes_unexpected, 1);
    return;
  }
  count(Counter::kencoded_bytes_received, payload.size());
  const bool of_call = header.step_kind == wire::StepKind::kCall;
  const Status status = of_call ? calls_.receive(header, payload, services_.now_ns())
                                : steps_.receive(header, payload, services_.now_ns());
  publish_call_failures();
  publish_result_hashes();
  if (status.ok()) return;
  const bool redo = status.code() == StatusCode::kMISMATCH || status.code() == StatusCode::kCORRUPT;
  if (!redo) count(Counter::kframes_corrupt, 1);
  fail(status, /*permanent=*/!redo, /*tell_others=*/true);
}

void Communicator::receive_control(uint32_t machine, std::span<const std::byte> payload) {
  Result<ControlMessage> message = decode_control(payload);
  if (!message.ok()) return fail(message.status(), /*permanent=*/true, /*tell_others=*/true);
  std::visit([&](const auto& m) { handle(machine, m); }, *message);
}

void Communicator::receive_heartbeat(PeerState& peer, std::span<const std::byte> payload) {
  wire::Reader reader(payload);
  peer.step = reader.get<uint64_t>();
  peer.call = reader.get<uint64_t>();
  for (std::vector<uint32_t>* list : {&peer.missing_step, &peer.missing_call}) {
    list->resize(reader.get_count(4));
    for (uint32_t& rank : *list) rank = reader.get<uint32_t>();
  }
}

void Communicator::handle(uint32_t machine, const Prepare& message) {
  if (machine == 0) agreement_.on_prepare(message);
}

void Communicator::handle(uint32_t machine, const Prepared& message) {
  if (members_.coordinator()) agreement_.on_prepared(machine, message);
}

void Communicator::handle(uint32_t machine, const Decided& message) {
  if (machine != 0) return;
  const Status status = agreement_.on_decided(message);
  if (!status.ok()) return fail(status, /*permanent=*/true, /*tell_others=*/true);
  if (message.purpose != PlanPurpose::kCommit || message.code == StatusCode::kOK) return;
  for (uint32_t i = 0; i < local_.size(); ++i) {
    reply(i, local_[i].commit_request, Status(message.code, message.text));
  }
}

void Communicator::handle(uint32_t machine, const CallFailure& message) {
  (void)machine;
  calls_.fail_call(message.call, Status(message.code, message.text));
}

void Communicator::publish_result_hashes() {
  for (const StepRunner::ResultHash& result : steps_.take_result_hashes()) {
    const ReplicaHash message{result.step, result.tensor, result.hash,
                              services_.options().lane->name};
    if (members_.coordinator()) {
      handle(members_.machine, message);
    } else {
      send_control(0, message);
    }
  }
}

// Coordinator: the machines' hashes of one result must be equal.
void Communicator::handle(uint32_t machine, const ReplicaHash& message) {
  if (!members_.coordinator() || !table_ || message.tensor >= table_->size()) return;
  replicas_.resize(members_.machines());
  replicas_[machine] = message;
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    const ReplicaHash& other = replicas_[k];
    const bool same_check = k != machine && other.step == message.step &&
                            other.tensor == message.tensor && !other.lane.empty();
    if (!same_check) continue;
    count(Counter::kreplica_checks, 1);
    if (other.hash == message.hash) continue;
    count(Counter::kreplica_divergences, 1);
    return fail({StatusCode::kREPLICA_DIVERGED,
                 "the result of tensor '" + (*table_)[message.tensor].name + "' in step " +
                     std::to_string(message.step) + " differs between " +
                     members_.machine_name(machine) + " (lane " + message.lane + ") and " +
                     members_.machine_name(k) + " (lane " + other.lane + ")"},
                /*permanent=*/true, /*tell_others=*/true);
  }
}

void Communicator::handle(uint32_t machine, const Bye& message) {
  (void)message;
  peers_[machine].departed = true;
}

void Communicator::reply(uint32_t local, uint32_t& request, const Status& status, uint64_t value0,
                         uint64_t value1) {
  if (request == 0) return;
  const uint32_t answered = std::exchange(request, 0);
  if (members_.local[local].port == nullptr) return;
  members_.local[local].port->reply(answered, {status.code(), status.message(), value0, value1});
}

// --- PlanAgreement::Host
// ---------------------------------------------------------------------------

Result<PlanAgreement::PlanPtr> Communicator::prepare_plan(const Plan& plan, const Policy& policy) {
  if (!table_) {
    return Status(StatusCode::kNOT_COMMITTED,
                  members_.ranks_of(members_.machine) + " have not committed their tensors");
  }
  return PreparedPlan::create({.plan = plan,
                               .policy = policy,
                               .table = table_,
                               .machine = members_.machine,
                               .machines = members_.machines(),
                               .pool = &services_.pool(),
                               .bytes_free = services_.plan_bytes_free()});
}

uint64_t Communicator::next_switch_step() const {
  return steps_.started_end() + 1;
}

// --- Working
// ---------------------------------------------------------------------------------------

bool Communicator::work() {
  if (state_ != State::kRunning && state_ != State::kReady) return false;
  const Result<bool> called = calls_.work(services_.now_ns());
  publish_call_failures();
  const Result<bool> stepped =
      called.ok() && state_ == State::kRunning ? steps_.work(services_.now_ns()) : called;
  for (const Result<bool>* result : {&called, &stepped}) {
    if (result->ok()) continue;
    const bool redo = result->status().code() == StatusCode::kMISMATCH;
    fail(result->status(), /*permanent=*/!redo, /*tell_others=*/true);
    return true;
  }
  publish_result_hashes();
  reorder_if_useful();
  return *called || *stepped;
}

// --- Showing
// ---------------------------------------------------------------------------------------

CommunicatorSnapshot Communicator::snapshot() const {
  CommunicatorSnapshot shown;
  shown.job = members_.job;
  shown.name = members_.name;
  shown.uid = members_.uid;
  shown.id = members_.id;
  shown.ranks = members_.ranks();
  shown.machines = members_.machines();
  shown.local_machine = members_.machine;
  shown.term = term_;
  shown.step = steps_.step();
  shown.watermark = steps_.completed_end();
  shown.state = state_name(state_);
  shown.error = failure_.ok() ? "" : failure_.to_string();
  shown.switches = agreement_.switches();
  shown.reserved_bytes = reserved_bytes();
  shown.operations = steps_.totals().operations + calls_.totals().operations;
  shown.exchange_ns = steps_.totals().exchange_ns + calls_.totals().exchange_ns;
  shown.gradient_bytes = steps_.totals().gradient_bytes + calls_.totals().gradient_bytes;
  shown.wire_bytes_sent = wire_bytes_sent_;
  for (uint32_t rank = 0; rank < members_.ranks(); ++rank) {
    RankSnapshot& entry = shown.rank_list.emplace_back();
    entry.rank = rank;
    entry.machine = members_.machine_of_rank[rank];
    entry.local = entry.machine == members_.machine;
  }
  for (uint32_t i = 0; i < local_.size(); ++i) {
    shown.rank_list[members_.local[i].rank].step = local_[i].last_step;
  }
  if (!steps_.installed()) {
    shown.policy = policy_;
    shown.policy_version = policy_version_;
    return shown;
  }
  const PreparedPlan& plan = *steps_.plan();
  shown.epoch = plan.plan.epoch;
  shown.policy = plan.policy;
  shown.policy_version = plan.plan.policy_version;
  const Result<CodecChooser> chooser = CodecChooser::create(plan.policy);
  for (uint32_t g = 0; g < plan.plan.groups.size(); ++g) {
    shown.groups.push_back({g, static_cast<uint32_t>(plan.plan.groups[g].segments.size()),
                            plan.layouts[g].raw_bytes(), plan.layouts[g].encoded_bytes(),
                            collective_name(plan.layouts[g].collective())});
  }
  for (uint32_t t = 0; t < plan.table->size(); ++t) {
    const TensorDesc& tensor = (*plan.table)[t];
    shown.tensors.push_back({tensor.name, tensor.dtype, tensor.elements, tensor.shape,
                             plan.group_of[t], plan.spec_of(t),
                             chooser.ok() ? chooser->choose(tensor).reason : "",
                             steps_.norms()[t].intended_sq, steps_.norms()[t].sent_sq});
  }
  return shown;
}

void Communicator::add_peers(std::vector<PeerSnapshot>& list) const {
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k == members_.machine) continue;
    const PeerState& peer = peers_[k];
    PeerSnapshot& shown = list.emplace_back();
    shown.job = members_.job;
    shown.uid = members_.uid;
    shown.name = members_.name + "/" + std::to_string(k);
    shown.address = members_.addresses[k];
    shown.machine = k;
    shown.state = peer.up ? "up" : peer.last_heard_ns != 0 ? "lost" : "connecting";
    shown.heartbeat_age_ns = peer.last_heard_ns ? services_.now_ns() - peer.last_heard_ns : 0;
    shown.frames_sent = peer.frames_sent;
    shown.frames_received = peer.frames_received;
    shown.bytes_sent = peer.bytes_sent;
    shown.bytes_received = peer.bytes_received;
    shown.progress = peer.progress;
  }
}

}  // namespace cgx::scheduler
