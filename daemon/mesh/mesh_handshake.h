// The words two daemons exchange before they trust each other, and the arithmetic of that trust.
//
//   dialer -> listener  Greeting   who I am, whom I want, which job and key, a nonce
//          <-           Challenge  a nonce
//          ->           Proof      MAC over all of that and my transport's address
//          <-           Acceptance    MAC over all of that and mine: I have connected to you
//          ->           Arrival    so have I; or: I could not, and why, with a MAC of its own
//
// Each side sends frames only when it knows that the other has connected and thus knows their tag.
// A MAC is HMAC-SHA256 under the link key, which is made of the cluster key and the job key; it
// covers version, job, uid, both instances, both nonces, both names and the endpoints, and says
// which side made it. The tags that frames carry are derived from the same secrets and never sent.
// Thread rule: pure functions and plain values; new_nonce() asks the kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/wire/session_messages.h"
#include "proto/wire/status.h"
#include "transport/transport.h"

namespace cgx::daemon {

constexpr uint32_t kMeshVersion = 1;

using Nonce = std::array<std::byte, 32>;
using Mac = std::array<std::byte, 32>;
using KeyId = std::array<std::byte, 8>;

struct Greeting {
  uint32_t version = kMeshVersion;
  std::string job;
  uint32_t uid = 0;
  wire::InstanceId from{}, to{};
  KeyId key_id{};
  Nonce nonce{};
  std::string name;
  std::string program;  // "cgxd 0.1.0"
};

constexpr size_t kReasonBytesMax = 1024;  // of it no more is read

struct Verdict {
  enum class Kind : uint8_t { kGo, kNotYet, kRefused };
  Kind kind = Kind::kGo;
  Status why;  // kRefused

  static Verdict not_yet() { return {Kind::kNotYet, {}}; }
  static Verdict refused(Status why) { return {Kind::kRefused, std::move(why)}; }
};

struct Challenge {
  Verdict verdict;
  uint32_t version = kMeshVersion;
  Nonce nonce{};
  std::string name;
};

struct Proof {
  Nonce nonce{};  // the challenge it answers
  transport::Endpoint endpoint;
  Mac mac{};
};

struct Acceptance {
  Verdict verdict;
  transport::Endpoint endpoint;
  Mac mac{};
};

struct Arrival {
  Nonce nonce{};
  Mac mac{};
  Status failure;  // not OK: the caller's transport could not connect, and why
};

// Two users' jobs may share a name.
struct JobOwner {
  std::string job;
  uint32_t uid = 0;
  friend bool operator==(const JobOwner&, const JobOwner&) = default;
};

// What both sides know after Greeting and Challenge.
struct Introduction {
  Greeting greeting;
  Nonce challenge{};
  std::string listener_name;
};

class LinkKey {
 public:
  LinkKey(const std::string& cluster_key, const wire::JobKey& job_key);

  // False: neither a cluster key nor a job key was given, everybody can compute these MACs.
  bool secret() const { return secret_; }
  KeyId id() const;
  Mac prove_dialer(const Introduction& both, const transport::Endpoint& dialer) const;
  Mac prove_listener(const Introduction& both, const transport::Endpoint& dialer,
                     const transport::Endpoint& listener) const;
  Mac prove_arrival(const Introduction& both, const Status& failure) const;
  // Of who asks about a job of this key, after the introduction: see fleet.h.
  Mac prove_question(const Nonce& challenge, const JobOwner& of, const std::string& address) const;
  uint64_t tag_to_dialer(const Introduction& both) const;
  uint64_t tag_to_listener(const Introduction& both) const;
  // Of the transport's link: known to both, sent by neither.
  transport::LinkSecret secret_of_link(const Introduction& both) const;

 private:
  uint64_t tag(const Introduction& both, const char* direction) const;

  Mac key_{};
  bool secret_ = false;
};

bool equal_in_constant_time(const Mac& a, const Mac& b);
Nonce new_nonce();
wire::InstanceId new_instance();

// "4f1d8a20": enough of an instance to tell daemons apart in a message.
std::string short_name(const wire::InstanceId& instance);

}  // namespace cgx::daemon
