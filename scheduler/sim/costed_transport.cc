#include "scheduler/sim/costed_transport.h"

#include <cstring>
#include <utility>
#include <vector>

#include "proto/wire/frame.h"

namespace cgx::scheduler::sim {
namespace {

std::vector<std::byte> copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

wire::FrameHeader header_of(std::span<const std::byte> bytes) {
  wire::FrameHeader header;
  CGX_ASSERT(bytes.size() >= sizeof header);
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof header);
  return header;
}

}  // namespace

uint32_t group_of(std::span<const std::byte> header) {
  const wire::FrameHeader of = header_of(header);
  const bool step = of.type == wire::FrameType::kData && of.step_kind == wire::StepKind::kStep;
  return step ? of.group : DaemonLane::kNoGroup;
}

bool only_ranges(const transport::Frame& frame) {
  const wire::FrameHeader header = header_of(frame.header);
  constexpr uint8_t kFront = wire::FrameHeader::kBitmap | wire::FrameHeader::kDescriptor;
  return group_of(frame.header) != DaemonLane::kNoGroup && (header.flags & kFront) == 0;
}

DaemonLane::Work CostedTransport::work_of(const transport::Frame& frame) const {
  const auto bytes = static_cast<double>(frame.header.size() + frame.payload.size());
  return {.price_ns = ports_.costs.frame_ns + ports_.costs.wire_ns_per_byte * bytes,
          .group = group_of(frame.header),
          .effect = {}};
}

Status CostedTransport::send(transport::PeerId to, const transport::Frame& frame,
                             transport::SendToken token) {
  CGX_RETURN_IF_ERROR(check_frame(caps(), frame, token));
  DaemonLane::Work work = work_of(frame);
  work.effect = [this, to, header = copy(frame.header), payload = frame.payload, token] {
    const Status status = inner_->send(to, {header, payload}, token);
    if (!status.ok() && token != transport::kNoToken) ports_.events.on_sent(to, token, status);
    if (status.ok() && watch_) watch_(header, header.size() + payload.size());
  };
  ports_.lane.add(std::move(work), ports_.clock.now_ns());
  return {};
}

// What is read later must stay; of ranges nothing is read.
void CostedTransport::on_frame(transport::PeerId from, const transport::Frame& frame) {
  DaemonLane::Work work = work_of(frame);
  const bool stays = only_ranges(frame);
  work.effect = [this, from, header = copy(frame.header), ranges = frame.payload,
                 copied = stays ? std::vector<std::byte>() : copy(frame.payload), stays] {
    ports_.events.on_frame(from, {header, stays ? ranges : std::span<const std::byte>(copied)});
  };
  ports_.lane.add(std::move(work), ports_.clock.now_ns());
}

}  // namespace cgx::scheduler::sim
