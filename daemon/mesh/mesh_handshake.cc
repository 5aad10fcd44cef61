#include "daemon/mesh/mesh_handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "proto/wire/bytes.h"

namespace cgx::daemon {
namespace {

Mac hmac(std::span<const std::byte> key, std::span<const std::byte> text) {
  Mac mac;
  unsigned bytes = 0;
  CGX_ASSERT(::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                    reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                    reinterpret_cast<unsigned char*>(mac.data()), &bytes) != nullptr &&
             bytes == mac.size());
  return mac;
}

void put_endpoint(wire::Writer& writer, const transport::Endpoint& endpoint) {
  writer.put_bytes(endpoint.address);
  writer.put_string(endpoint.settings);
}

// `purpose` keeps a MAC made for one place from being good in another.
wire::Writer transcript(std::string_view purpose, const Introduction& both) {
  wire::Writer writer;
  writer.put_string(purpose);
  writer.put(both.greeting.version);
  writer.put_string(both.greeting.job);
  writer.put(both.greeting.uid);
  writer.put(both.greeting.from);
  writer.put(both.greeting.to);
  writer.put(both.greeting.nonce);
  writer.put(both.challenge);
  writer.put_string(both.greeting.name);
  writer.put_string(both.listener_name);
  return writer;
}

void fill_random(std::span<std::byte> bytes) {
  CGX_ASSERT(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

LinkKey::LinkKey(const std::string& cluster_key, const wire::JobKey& job_key)
    : secret_(!cluster_key.empty() || job_key != wire::JobKey{}) {
  wire::Writer writer;
  writer.put_string("cgx mesh link key");
  writer.put(job_key);
  // HMAC wants a key that exists, if only an empty one.
  const std::string_view cluster = cluster_key;
  key_ = hmac(std::as_bytes(std::span(cluster)), writer.take());
}

KeyId LinkKey::id() const {
  wire::Writer writer;
  writer.put_string("cgx mesh key id");
  const Mac mac = hmac(key_, writer.take());
  KeyId id;
  std::copy_n(mac.begin(), id.size(), id.begin());
  return id;
}

Mac LinkKey::prove_dialer(const Introduction& both, const transport::Endpoint& dialer) const {
  wire::Writer writer = transcript("cgx mesh dialer", both);
  put_endpoint(writer, dialer);
  return hmac(key_, writer.take());
}

Mac LinkKey::prove_listener(const Introduction& both, const transport::Endpoint& dialer,
                            const transport::Endpoint& listener) const {
  wire::Writer writer = transcript("cgx mesh listener", both);
  put_endpoint(writer, dialer);
  put_endpoint(writer, listener);
  return hmac(key_, writer.take());
}

Mac LinkKey::prove_arrival(const Introduction& both, const Status& failure) const {
  if (failure.ok()) return hmac(key_, transcript("cgx mesh arrival", both).take());
  wire::Writer writer = transcript("cgx mesh failure", both);
  writer.put(failure.code());
  writer.put_string(failure.message());
  return hmac(key_, writer.take());
}

Mac LinkKey::prove_question(const Nonce& challenge, const JobOwner& of,
                            const std::string& address) const {
  wire::Writer writer;
  writer.put_string("cgx mesh question");
  writer.put(challenge);
  writer.put_string(of.job);
  writer.put(of.uid);
  writer.put_string(address);
  return hmac(key_, writer.take());
}

uint64_t LinkKey::tag(const Introduction& both, const char* direction) const {
  const Mac mac = hmac(key_, transcript(direction, both).take());
  uint64_t tag;
  std::memcpy(&tag, mac.data(), sizeof(tag));
  return tag;
}

uint64_t LinkKey::tag_to_dialer(const Introduction& both) const {
  return tag(both, "cgx mesh tag to dialer");
}

uint64_t LinkKey::tag_to_listener(const Introduction& both) const {
  return tag(both, "cgx mesh tag to listener");
}

transport::LinkSecret LinkKey::secret_of_link(const Introduction& both) const {
  return hmac(key_, transcript("cgx mesh transport secret", both).take());
}

bool equal_in_constant_time(const Mac& a, const Mac& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce new_nonce() {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

wire::InstanceId new_instance() {
  wire::InstanceId instance;
  fill_random(std::as_writable_bytes(std::span(instance)));
  return instance;
}

std::string short_name(const wire::InstanceId& instance) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(instance[0] >> 32));
  return text;
}

}  // namespace cgx::daemon
