// Communicator, its frames: what goes out to other machines and what comes in from them.
#include <algorithm>

#include "proto/wire/bytes.h"
#include "scheduler/communicator/communicator.h"

namespace cgx::scheduler {
namespace {

SharedBytes share(const ControlMessage& message) {
  return std::make_shared<const std::vector<std::byte>>(encode_control(message));
}

// Of a term, and void in another. Joining, plans, who left and what cannot be redone are not.
bool belongs_to_term(const ControlMessage& message) {
  if (const auto* failure = std::get_if<Failure>(&message)) return failure->scope == Scope::kStep;
  return std::holds_alternative<Flush>(message) || std::holds_alternative<Report>(message) ||
         std::holds_alternative<Start>(message) || std::holds_alternative<CallFailure>(message) ||
         std::holds_alternative<ReplicaHash>(message);
}

}  // namespace

wire::FrameHeader Communicator::header_for(wire::FrameType type) const {
  wire::FrameHeader header;
  header.type = type;
  header.communicator = members_.id;
  header.term = terms_.number();
  header.source = members_.machine;
  header.complete_step_end = steps_.completed_end();
  header.complete_call_end = calls_.completed_end();
  header.started_step_end = steps_.started_end();
  const PlanAgreement::Announcement known = agreement_.newest_known();
  header.next_epoch = known.epoch;
  header.switch_step = known.switch_step;
  return header;
}

void Communicator::send_part(const Operation& operation, const PartFrame& frame) {
  wire::FrameHeader header = header_for(wire::FrameType::kData);
  header.step_kind = operation.kind();
  header.step = operation.step();
  header.group = operation.group_index();
  header.round = frame.round;
  header.part = frame.part;
  if (frame.bitmap) header.flags |= wire::FrameHeader::kBitmap;
  if (frame.descriptor) header.flags |= wire::FrameHeader::kDescriptor;
  if (operation.kind() == wire::StepKind::kStep) {
    header.epoch = steps_.plan()->plan.epoch;
    header.plan_hash = steps_.plan()->hash;
    if (steps_.previous_dropped()) header.flags |= wire::FrameHeader::kStepDropped;
  } else {
    header.plan_hash =
        reinterpret_cast<const CallDescriptor*>(operation.setup().descriptor.data())->hash();
  }
  if (members_.beside(frame.machine)) {
    count(Counter::ksite_bytes, frame.length);
  } else {
    count(Counter::kencoded_bytes_sent, frame.length);
    wire_bytes_sent_ += frame.length + sizeof(header);
  }
  Event sent = operation.event(EventKind::ksent);
  sent.peer = static_cast<uint16_t>(frame.machine);
  sent.a = frame.length;
  sent.b = frame.part;
  record(sent);
  if (searches_plans() && operation.kind() == wire::StepKind::kStep) {
    answers_.sent(frame.machine, header, frame.length + sizeof(header), fine_now_ns());
  }
  send_to(frame.machine, header, pool_.bytes(frame.slab).first(frame.length), frame.slab);
}

void Communicator::send_control(uint32_t machine, const ControlMessage& message) {
  send_body(machine, encode_control(message));
}

void Communicator::send_body(uint32_t machine, std::span<const std::byte> encoded_control) {
  send_to(machine, header_for(wire::FrameType::kControl), encoded_control, kNoSlab);
}

void Communicator::broadcast(const ControlMessage& message) {
  broadcast_body(share(message));
}

void Communicator::broadcast_body(SharedBytes encoded_control) {
  send_to_others(members_.machine, encoded_control);
}

// One copy for all.
void Communicator::send_to_others(uint32_t than, const SharedBytes& encoded_control) {
  for (uint32_t k = 0; k < members_.machines(); ++k) {
    if (k == members_.machine || k == than || !peers_[k].up) continue;
    wire::FrameHeader header = header_for(wire::FrameType::kControl);
    header.target = k;
    peers_.sent(k, encoded_control->size() + sizeof(header));
    check_sent(k, port_.send_shared(peers_[k].id, header, encoded_control));
  }
}

void Communicator::send_to(uint32_t machine, wire::FrameHeader header,
                           std::span<const std::byte> payload, SlabId slab) {
  if (!peers_[machine].up) {
    if (slab != kNoSlab) pool_.release(slab);
    return;
  }
  header.target = machine;
  peers_.sent(machine, payload.size() + sizeof(header));
  check_sent(machine, port_.send(peers_[machine].id, header, payload, members_.site, slab));
}

void Communicator::check_sent(uint32_t machine, const Status& status) {
  if (status.ok() || state_ == State::kFailed) return;  // who is told of a failure is told the rest
  fail({status.code(), "a frame of " + members_.title() + " for " + members_.machine_name(machine) +
                           " cannot be sent: " + status.message()},
       Scope::kCommunicator);
}

void Communicator::count(Counter counter, uint64_t amount) {
  port_.count(counter, amount);
}

void Communicator::record(Event event) {
  event.communicator = index_;
  port_.record(event);
  if (event.kind == EventKind::kstep_completed) note_step_end();
  if (measures_steps()) measure(event);
  if (steps_.installed()) follow_ceilings(event);
}

void Communicator::receive(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  peers_.heard(header.source, payload.size() + sizeof(header), port_.now_ns());
  if (state_ == State::kFailed) return answer_join(header, payload);
  if (state_ == State::kClosed) return;
  if (header.type == wire::FrameType::kControl) return receive_control(header, payload);
  if (header.term < terms_.number()) {
    count(Counter::kframes_stale, 1);
    return;
  }
  if (header.term > terms_.number()) {
    if (header.type == wire::FrameType::kData) keep_early(header, payload);
    return;
  }
  peers_.take_marks(header);
  const Status known = check_announced(header);
  if (!known.ok()) return fail(known, Scope::kCommunicator);
  switch (header.type) {
    case wire::FrameType::kData:
      peers_.heard_data(header.source, port_.now_ns());
      return receive_data(header, payload);
    case wire::FrameType::kControl:
      break;
    case wire::FrameType::kHeartbeat:
      return receive_heartbeat(header, payload);
  }
  count(Counter::kframes_unexpected, 1);
}

Status Communicator::check_announced(const wire::FrameHeader& header) {
  if (header.source != 0) {
    return agreement_.on_rumour(header.source, {header.next_epoch, header.switch_step});
  }
  if (state_ == State::kFrozen) return {};
  return agreement_.on_announcement(header.next_epoch, header.switch_step);
}

// A machine that joins after the failure was told to the others. It repeats itself until it hears;
// more often than that it is not answered.
void Communicator::answer_join(const wire::FrameHeader& header,
                               std::span<const std::byte> payload) {
  const bool too_long = payload.size() > kShortControlBytesMax;
  if (header.type != wire::FrameType::kControl || too_long) return;
  const Result<ControlMessage> message = decode_control(payload);
  if (!message.ok() || !std::holds_alternative<Join>(*message)) return;
  if (peers_.may_answer_join(header.source, port_.now_ns())) tell_failure(header.source);
}

// Other machines' frames overtake the coordinator's word that all have joined, or for a term. As
// much as windows hold is always taken, and more than that where the job may have more.
void Communicator::keep_early(const wire::FrameHeader& header, std::span<const std::byte> payload) {
  const bool more = terms_.early_bytes() + payload.size() > pool_.received_bytes();
  const Status room = more ? port_.plan_share().check(members_.holder, payload.size()) : Status();
  if (!room.ok()) {
    return fail(
        {room.code(), "what " + members_.machine_name(header.source) +
                          " sent ahead of its coordinator finds no room: " + room.message()},
        Scope::kCommunicator);
  }
  if (terms_.keep_early(header, payload)) return;
  fail(protocol_error(members_.machine_name(header.source) +
                      " sent more frames ahead of its coordinator than windows allow"),
       Scope::kCommunicator);
}

void Communicator::receive_data(const wire::FrameHeader& header,
                                std::span<const std::byte> payload) {
  if (state_ == State::kJoining) return keep_early(header, payload);
  if (!members_.beside(header.source)) count(Counter::kencoded_bytes_received, payload.size());
  const bool of_call = header.step_kind == wire::StepKind::kCall;
  record({.step = static_cast<uint32_t>(header.step),
          .kind = EventKind::kreceived,
          .group = of_call ? Event::kCall : Event::group_number(header.group),
          .peer = static_cast<uint16_t>(header.source),
          .a = static_cast<uint32_t>(payload.size()),
          .b = header.part});
  if (searches_plans() && !of_call) {
    answers_.received(header.source, header, payload.size() + sizeof(header), fine_now_ns());
  }
  const Status status = of_call ? calls_.receive(header, payload, port_.now_ns())
                                : steps_.receive(header, payload, port_.now_ns());
  publish_call_failures();
  publish_result_hashes();
  if (status.ok()) return;
  if (scope_of(status) == Scope::kCommunicator) count(Counter::kframes_corrupt, 1);
  fail(status, scope_of(status));
}

// Of an error that arithmetic or a frame has brought up.
Scope Communicator::scope_of(const Status& why) const {
  const bool redoable = why.code() == StatusCode::kMISMATCH || why.code() == StatusCode::kCORRUPT;
  return redoable && !steps_.closed_differently() ? Scope::kStep : Scope::kCommunicator;
}

// Tables go to the coordinator, plans and policies come from it. What else is long is read by none.
Result<ControlMessage> Communicator::decode_of(uint32_t machine,
                                               std::span<const std::byte> body) const {
  const bool may_be_long = machine == 0 || members_.coordinator();
  if (may_be_long || body.size() <= kShortControlBytesMax) return decode_control(body);
  return protocol_error("a control message of " + std::to_string(body.size()) +
                        " bytes to a machine that is not the coordinator");
}

void Communicator::receive_control(const wire::FrameHeader& header,
                                   std::span<const std::byte> payload) {
  Result<ControlMessage> message = decode_of(header.source, payload);
  if (!message.ok()) {
    return fail(protocol_error(members_.machine_name(header.source) + " sent " +
                               message.status().message()),
                Scope::kCommunicator);
  }
  const bool of_term = belongs_to_term(*message);
  const bool before_joined =
      state_ == State::kJoining && (of_term || std::holds_alternative<Left>(*message));
  if (before_joined || (of_term && header.term > terms_.number())) {
    return keep_early(header, payload);
  }
  if (of_term && header.term < terms_.number()) {
    count(Counter::kframes_stale, 1);
    return;
  }
  std::visit([&](auto&& m) { handle(header.source, std::forward<decltype(m)>(m)); },
             std::move(*message));
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
  if (!status.ok()) return fail(status, Scope::kCommunicator);
  if (message.purpose != PlanPurpose::kCommit || message.code == StatusCode::kOK) return;
  refuse_commit(Status(message.code, message.text));
}

// Passed on once: whoever goes on with later calls has said before why.
void Communicator::handle(uint32_t machine, const CallFailure& message) {
  if (!calls_.fail_call(message.call, Status(message.code, message.text))) return;
  send_to_others(machine, share(message));
}

void Communicator::publish_result_hashes() {
  for (const StepRunner::ResultHash& result : steps_.take_result_hashes()) {
    const ReplicaHash message{result.step, result.tensor, result.hash, port_.options().lane->name};
    if (members_.coordinator()) {
      handle(members_.machine, message);
    } else {
      send_control(0, message);
    }
  }
}

void Communicator::handle(uint32_t machine, const ReplicaHash& message) {
  if (!members_.coordinator() || !table_ || message.tensor >= table_->size()) return;
  const ReplicaWatch::Comparison found = replicas_.compare(machine, message);
  count(Counter::kreplica_checks, found.compared);
  if (!found.difference) return;
  count(Counter::kreplica_divergences, 1);
  const ReplicaWatch::Difference& differ = *found.difference;
  fail({StatusCode::kREPLICA_DIVERGED,
        "the result of tensor '" + (*table_)[message.tensor].name + "' in step " +
            std::to_string(message.step) + " differs between " +
            members_.machine_name(differ.machine) + " (lane " + differ.lane + ") and " +
            members_.machine_name(differ.other) + " (lane " + differ.other_lane + ")"},
       Scope::kCommunicator);
}

void Communicator::handle(uint32_t machine, const Bye& message) {
  (void)message;
  peers_.depart(machine);
  profiles_.miss(machine, "has gone");
}

void Communicator::reply(uint32_t local, uint32_t& request, const Status& status, uint64_t value0,
                         uint64_t value1) {
  if (request == 0) return;
  const uint32_t answered = std::exchange(request, 0);
  if (members_.local[local].port == nullptr) return;
  members_.local[local].port->reply(answered, {status.code(), status.message(), value0, value1});
}

}  // namespace cgx::scheduler
