#include "daemon/fleet/mesh_messages.h"

#include <cstring>
#include <span>

namespace cgx::daemon {
namespace {

constexpr size_t kAddressBytesMax = 64 * 1024;

template <typename Array>
void put(const Array& array, std::string* field) {
  const auto bytes = std::as_bytes(std::span(array));
  field->assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

template <typename Array>
Status get(const std::string& field, const char* name, Array& array) {
  const auto bytes = std::as_writable_bytes(std::span(array));
  if (field.size() != bytes.size()) {
    return protocol_error(std::string("mesh message: ") + name + " has " +
                          std::to_string(field.size()) + " bytes instead of " +
                          std::to_string(bytes.size()));
  }
  std::memcpy(bytes.data(), field.data(), field.size());
  return {};
}

Status check_text(const std::string& field, const char* name) {
  if (field.size() <= wire::kNameBytesMax) return {};
  return protocol_error(std::string("mesh message: ") + name + " has " +
                        std::to_string(field.size()) + " bytes, at most " +
                        std::to_string(wire::kNameBytesMax) + " are allowed");
}

void put_verdict(const Verdict& verdict, v1::Verdict* message) {
  message->set_not_yet(verdict.kind == Verdict::Kind::kNotYet);
  message->set_code(static_cast<uint32_t>(verdict.why.code()));
  message->set_message(verdict.why.message());
}

Verdict get_verdict(const v1::Verdict& message) {
  if (message.not_yet()) return Verdict::not_yet();
  if (message.code() == 0) return {};
  const auto code = static_cast<StatusCode>(message.code());
  return Verdict::refused(Status(code, message.message().substr(0, kReasonBytesMax)));
}

template <typename Message>
Status get_endpoint(const Message& message, transport::Endpoint& endpoint) {
  CGX_RETURN_IF_ERROR(check_text(message.settings(), "settings"));
  if (message.address().size() > kAddressBytesMax) {
    return protocol_error("mesh message: a transport address of " +
                          std::to_string(message.address().size()) + " bytes");
  }
  const auto bytes = std::as_bytes(std::span(message.address()));
  endpoint.address.assign(bytes.begin(), bytes.end());
  endpoint.settings = message.settings();
  return {};
}

template <typename Message>
void put_endpoint(const transport::Endpoint& endpoint, Message& message) {
  put(endpoint.address, message.mutable_address());
  message.set_settings(endpoint.settings);
}

}  // namespace

v1::GreetRequest to_message(const Greeting& greeting) {
  v1::GreetRequest message;
  message.set_version(greeting.version);
  message.set_job(greeting.job);
  message.set_uid(greeting.uid);
  put(greeting.from, message.mutable_from());
  put(greeting.to, message.mutable_to());
  put(greeting.key_id, message.mutable_key_id());
  put(greeting.nonce, message.mutable_nonce());
  message.set_name(greeting.name);
  message.set_program(greeting.program);
  return message;
}

v1::GreetReply to_message(const Challenge& challenge) {
  v1::GreetReply message;
  put_verdict(challenge.verdict, message.mutable_verdict());
  message.set_version(challenge.version);
  put(challenge.nonce, message.mutable_nonce());
  message.set_name(challenge.name);
  return message;
}

v1::ProveRequest to_message(const Proof& proof) {
  v1::ProveRequest message;
  put(proof.nonce, message.mutable_nonce());
  put_endpoint(proof.endpoint, message);
  put(proof.mac, message.mutable_proof());
  return message;
}

v1::ProveReply to_message(const Acceptance& acceptance) {
  v1::ProveReply message;
  put_verdict(acceptance.verdict, message.mutable_verdict());
  put_endpoint(acceptance.endpoint, message);
  put(acceptance.mac, message.mutable_proof());
  return message;
}

v1::ArriveRequest to_message(const Arrival& arrival) {
  v1::ArriveRequest message;
  put(arrival.nonce, message.mutable_nonce());
  put(arrival.mac, message.mutable_proof());
  if (!arrival.failure.ok()) {
    put_verdict(Verdict::refused(arrival.failure), message.mutable_failure());
  }
  return message;
}

v1::ArriveReply to_message(const Verdict& verdict) {
  v1::ArriveReply message;
  put_verdict(verdict, message.mutable_verdict());
  return message;
}

Result<Greeting> from_message(const v1::GreetRequest& message) {
  Greeting greeting{.version = message.version(), .job = message.job(), .uid = message.uid()};
  greeting.name = message.name();
  greeting.program = message.program();
  CGX_RETURN_IF_ERROR(check_text(greeting.job, "job"));
  CGX_RETURN_IF_ERROR(check_text(greeting.name, "name"));
  CGX_RETURN_IF_ERROR(check_text(greeting.program, "program"));
  CGX_RETURN_IF_ERROR(get(message.from(), "from", greeting.from));
  CGX_RETURN_IF_ERROR(get(message.to(), "to", greeting.to));
  CGX_RETURN_IF_ERROR(get(message.key_id(), "key_id", greeting.key_id));
  CGX_RETURN_IF_ERROR(get(message.nonce(), "nonce", greeting.nonce));
  return greeting;
}

Result<Challenge> from_message(const v1::GreetReply& message) {
  Challenge challenge{.verdict = get_verdict(message.verdict()), .version = message.version()};
  challenge.name = message.name();
  CGX_RETURN_IF_ERROR(check_text(challenge.name, "name"));
  CGX_RETURN_IF_ERROR(get(message.nonce(), "nonce", challenge.nonce));
  return challenge;
}

Result<Proof> from_message(const v1::ProveRequest& message) {
  Proof proof;
  CGX_RETURN_IF_ERROR(get(message.nonce(), "nonce", proof.nonce));
  CGX_RETURN_IF_ERROR(get_endpoint(message, proof.endpoint));
  CGX_RETURN_IF_ERROR(get(message.proof(), "proof", proof.mac));
  return proof;
}

Result<Acceptance> from_message(const v1::ProveReply& message) {
  Acceptance acceptance{.verdict = get_verdict(message.verdict())};
  CGX_RETURN_IF_ERROR(get_endpoint(message, acceptance.endpoint));
  CGX_RETURN_IF_ERROR(get(message.proof(), "proof", acceptance.mac));
  return acceptance;
}

Result<Arrival> from_message(const v1::ArriveRequest& message) {
  Arrival arrival;
  CGX_RETURN_IF_ERROR(get(message.nonce(), "nonce", arrival.nonce));
  CGX_RETURN_IF_ERROR(get(message.proof(), "proof", arrival.mac));
  arrival.failure = get_verdict(message.failure()).why;
  return arrival;
}

Result<Verdict> from_message(const v1::ArriveReply& message) {
  return get_verdict(message.verdict());
}

}  // namespace cgx::daemon
