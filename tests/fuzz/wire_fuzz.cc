// Everything that decodes bytes of another process: frames, session messages, control messages,
// plans, tables and machines' profiles. What decodes must encode to the same bytes again, and a
// policy that is sound leads to codecs that are.
#include <cstdint>
#include <cstdlib>
#include <variant>

#include "kernels/codec.h"
#include "proto/wire/frame.h"
#include "proto/wire/machine_profile.h"
#include "proto/wire/session_messages.h"
#include "scheduler/communicator/control.h"
#include "scheduler/plan/plan.h"
#include "scheduler/planners/ceilings.h"
#include "scheduler/planners/sound_policy.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename Message>
void round_trip(std::span<const std::byte> body) {
  const auto message = cgx::wire::decode_body<Message>(body);
  if (!message.ok()) return;
  const std::vector<std::byte> packet = cgx::wire::encode_packet(*message, 1);
  const auto again = std::span(packet).subspan(sizeof(cgx::wire::PacketHeader));
  require(std::equal(again.begin(), again.end(), body.begin(), body.end()));
}

void check_strengths(const cgx::scheduler::Policy& policy) {
  if (!cgx::scheduler::check_sound(policy).ok()) return;
  for (const cgx::CodecSpec& spec : cgx::scheduler::strengths_of(policy)) {
    require(cgx::kernels::validate(spec, cgx::DType::kF32).ok());
  }
}

void check_profile(std::span<const std::byte> bytes) {
  const auto profile = cgx::wire::decode_profile(bytes);
  if (!profile.ok()) return;
  const std::vector<std::byte> again = cgx::wire::encode_profile(*profile);
  require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
}

template <typename Message>
void check_contents_of(const Message& message) {
  if constexpr (requires { message.policy; }) check_strengths(message.policy);
  if constexpr (requires { message.configured; }) check_strengths(message.configured);
  if constexpr (requires { message.profile; }) check_profile(message.profile);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (bytes.empty()) return 0;
  const auto rest = bytes.subspan(1);
  switch (data[0] % 4) {
    case 0: {
      const size_t header = std::min(rest.size(), sizeof(cgx::wire::FrameHeader));
      (void)cgx::wire::open_frame(rest.first(header), rest.subspan(header));
      break;
    }
    case 1:
      (void)cgx::wire::parse_header(rest, cgx::wire::Side::kDaemon);
#define X(Message) round_trip<cgx::wire::Message>(rest);
      CGX_SESSION_MESSAGES(X)
#undef X
      break;
    case 2: {
      const auto message = cgx::scheduler::decode_control(rest);
      if (message.ok()) {
        const auto again = cgx::scheduler::encode_control(*message);
        require(again.size() == rest.size());
        std::visit([](const auto& each) { check_contents_of(each); }, *message);
      }
      break;
    }
    case 3: {
      const auto plan = cgx::scheduler::decode_plan(rest);
      if (plan.ok()) require(cgx::scheduler::encode_plan(*plan).size() == rest.size());
      const auto table = cgx::scheduler::decode_table(rest);
      if (table.ok()) require(cgx::scheduler::encode_table(*table).size() == rest.size());
      check_profile(rest);
      break;
    }
  }
  return 0;
}
