#include "daemon/fleet/fleet.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>
#include <span>

#include "config/config.h"
#include "config/text.h"
#include "daemon/base/clock.h"
#include "daemon/fleet/call_limit.h"
#include "daemon/fleet/fan_out.h"
#include "daemon/fleet/mesh_credentials.h"
#include "proto/messages/fleet.grpc.pb.h"

namespace cgx::daemon {
namespace {

constexpr uint64_t kAskNs = 6 * kSecond;   // of all machines; less than cgxctl waits
constexpr uint64_t kCallNs = 2 * kSecond;  // to one
constexpr uint32_t kQuestionsMax = 2;      // at once, of users and of operators each
constexpr uint64_t kShowNs = 1 * kSecond;
constexpr uint64_t kChallengeNs = 10 * kSecond;
constexpr size_t kIssuedMax = 1024, kIssuedPerHostMax = 64;
constexpr size_t kMachinesMax = 256;
// What is asked of several at once may all come at once. Tensor lists of large models are large.
constexpr size_t kAtOnceMax = 16, kTensorsAtOnceMax = 2;
constexpr int kReplyBytesMax = 4 << 20, kTensorsReplyBytesMax = 32 << 20;
constexpr size_t kAnswerBytesMax = 64 << 20;  // kept of all

template <typename Array>
std::string text_of(const Array& array) {
  return {reinterpret_cast<const char*>(array.data()), array.size()};
}

template <typename Array>
bool read(const std::string& field, Array& array) {
  if (field.size() != array.size()) return false;
  std::memcpy(array.data(), field.data(), field.size());
  return true;
}

std::set<std::string> addresses_in(const std::string& list) {
  std::set<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.insert(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

v1::ShowReply refused(const Status& why) {
  v1::ShowReply reply;
  reply.mutable_verdict()->set_code(static_cast<uint32_t>(why.code()));
  reply.mutable_verdict()->set_message(why.message());
  return reply;
}

Status not_in_time() {
  return {StatusCode::kTIMED_OUT, "not asked, the time for all machines was over"};
}

// Asks one daemon: for a challenge, then with the proof.
class Question {
 public:
  Question(const std::string& address, const MeshTls& tls, int reply_bytes_max,
           std::function<uint64_t()> left_ns)
      : left_ns_(std::move(left_ns)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(reply_bytes_max);
    stub_ =
        v1::Fleet::NewStub(grpc::CreateCustomChannel(address, channel_credentials(tls), arguments));
  }

  Result<v1::ShowReply> ask(v1::ShowRequest request, const LinkKey& key) {
    CGX_ASSIGN_OR_RETURN(const v1::ShowReply first, call(request));
    Nonce challenge;
    if (!read(first.challenge(), challenge)) return protocol_error("its challenge is malformed");
    request.set_challenge(first.challenge());
    request.set_proof(
        text_of(key.prove_question(challenge, {request.job(), request.uid()}, request.address())));
    return call(request);
  }

 private:
  Result<v1::ShowReply> call(const v1::ShowRequest& request) {
    v1::ShowReply reply;
    const auto show = [&](auto* context, auto answered) {
      stub_->async()->Show(context, &request, &reply, std::move(answered));
    };
    const uint64_t limit_ns = std::min(kCallNs, left_ns_());
    if (limit_ns == 0) return not_in_time();
    const grpc::Status status = LimitedCall().run(std::chrono::nanoseconds(limit_ns), show);
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return Status(StatusCode::kVERSION_MISMATCH, "its daemon is of another version");
    }
    if (!status.ok()) return Status(StatusCode::kUNAVAILABLE, status.error_message());
    if (reply.verdict().code() == 0) return reply;
    return Status(static_cast<StatusCode>(reply.verdict().code()), reply.verdict().message());
  }

  const std::function<uint64_t()> left_ns_;
  std::unique_ptr<v1::Fleet::Stub> stub_;
};

// What several threads put together.
class Answers {
 public:
  explicit Answers(const std::vector<std::string>& addresses)
      : addresses_(addresses), replies_(addresses.size(), not_in_time()) {}

  void add(size_t i, Result<v1::ShowReply> reply) {
    if (reply.ok()) {
      config::make_plain(*reply);
      const size_t bytes = reply->SpaceUsedLong();
      if (bytes_.fetch_add(bytes) + bytes > kAnswerBytesMax) {
        reply = Status(StatusCode::kRESOURCE_EXHAUSTED, "its answer is too large");
      }
    }
    replies_[i] = std::move(reply);
  }

  FleetAnswer take() {
    FleetAnswer all;
    for (size_t i = 0; i < replies_.size(); ++i) {
      if (!replies_[i].ok()) {
        v1::Finding& finding = all.findings.emplace_back();
        finding.set_machine(addresses_[i]);
        finding.set_text(config::plain_text(replies_[i].status().message()));
        continue;
      }
      auto& told = *replies_[i];
      std::move(told.mutable_communicators()->begin(), told.mutable_communicators()->end(),
                std::back_inserter(all.communicators));
      std::move(told.mutable_tensors()->begin(), told.mutable_tensors()->end(),
                std::back_inserter(all.tensors));
    }
    return all;
  }

 private:
  const std::vector<std::string>& addresses_;
  std::vector<Result<v1::ShowReply>> replies_;
  std::atomic<size_t> bytes_{0};
};

}  // namespace

bool Fleet::issue(const std::string& host, Nonce& challenge) {
  const MutexLock lock(mutex_);
  const uint64_t now_ns = monotonic_ns();
  std::erase_if(issued_, [&](const auto& each) { return each.second.expires_ns <= now_ns; });
  const auto of_host = std::count_if(issued_.begin(), issued_.end(),
                                     [&](const auto& each) { return each.second.host == host; });
  if (issued_.size() >= kIssuedMax || static_cast<size_t>(of_host) >= kIssuedPerHostMax) {
    return false;
  }
  challenge = new_nonce();
  issued_[challenge] = {host, now_ns + kChallengeNs};
  return true;
}

// Good once.
bool Fleet::take(const std::string& host, const Nonce& challenge) {
  const MutexLock lock(mutex_);
  const auto found = issued_.find(challenge);
  if (found == issued_.end() || found->second.host != host) return false;
  const bool fresh = found->second.expires_ns > monotonic_ns();
  issued_.erase(found);
  return fresh;
}

Status Fleet::check(const std::string& host, const v1::ShowRequest& request) {
  // One answer for all: nothing is said about which jobs there are.
  const Status no(StatusCode::kAUTH_FAILED,
                  "no link of job '" + request.job() + "' was made here with that key");
  Nonce challenge;
  Mac proof;
  KeyId id;
  if (!read(request.challenge(), challenge) || !read(request.proof(), proof) ||
      !read(request.key_id(), id) || !take(host, challenge) ||
      !addresses_in(facts_.mesh_address).contains(request.address())) {
    return no;
  }
  const JobOwner of{request.job(), request.uid()};
  const auto key = keys_.find(of, id);
  if (!key || !key->secret()) return no;
  const Mac right = key->prove_question(challenge, of, request.address());
  return equal_in_constant_time(right, proof) ? Status() : no;
}

v1::ShowReply Fleet::answer(const std::string& host, const v1::ShowRequest& request) {
  if (!facts_.trusted.contains(host)) {
    return refused({StatusCode::kPERMISSION_DENIED, host + " is in none of the networks here"});
  }
  v1::ShowReply reply;
  if (request.challenge().empty()) {
    Nonce challenge;
    if (!issue(host, challenge)) return refused({StatusCode::kBUSY, "too many questions"});
    reply.set_challenge(text_of(challenge));
    return reply;
  }
  if (const Status checked = check(host, request); !checked.ok()) return refused(checked);
  const Result<Snapshot> snapshot = port_.snapshot(kShowNs);
  if (!snapshot.ok()) return refused(snapshot.status());
  for (const CommunicatorSnapshot& one : snapshot->communicators) {
    if (one.job != request.job() || one.uid != request.uid()) continue;
    if (request.tensors()) {
      v1::TensorList& shown = *reply.add_tensors();
      shown = tensors_of(one);
      shown.set_machine(facts_.name);
    } else {
      v1::Communicator& shown = *reply.add_communicators();
      shown = communicator_of(one);
      shown.set_machine(facts_.name);
    }
  }
  return reply;
}

// One address of each.
std::set<std::string> Fleet::machines(const Snapshot& snapshot, const JobOwner& of) const {
  std::set<std::string> addresses;
  for (const scheduler::PeerSnapshot& peer : snapshot.peers) {
    if (JobOwner{peer.job, peer.uid} != of || addresses.size() >= kMachinesMax) continue;
    if (peer.state == "connecting") continue;  // nobody has proven anything there
    for (const std::string& each : addresses_in(peer.address)) {
      if (!facts_.trusted.contains(host_of(each))) continue;
      addresses.insert(each);
      break;
    }
  }
  return addresses;
}

FleetAnswer Fleet::ask(const Snapshot& snapshot, const CommunicatorSnapshot& of,
                       const FleetQuestion& question) {
  const uint64_t end_ns = monotonic_ns() + kAskNs;
  std::atomic<uint32_t>& under_way = questions_[question.for_operator];
  if (under_way.fetch_add(1) >= kQuestionsMax) {
    under_way.fetch_sub(1);
    FleetAnswer none;
    none.findings.emplace_back().set_machine(facts_.name);
    none.findings.back().set_text("the daemon asks others for several callers already: ask again");
    return none;
  }
  v1::ShowRequest request;
  request.set_job(of.job);
  request.set_uid(of.uid);
  request.set_tensors(question.tensors);
  const auto key = keys_.newest({of.job, of.uid});
  if (key) request.set_key_id(text_of(key->id()));
  const auto left_ns = [&]() -> uint64_t {
    const bool waits = !question.waits || question.waits();
    return waits ? end_ns - std::min(end_ns, monotonic_ns()) : 0;
  };
  const auto ask = [&](const std::string& address) -> Result<v1::ShowReply> {
    if (!key) return Status(StatusCode::kAUTH_FAILED, "no key of the job is known here");
    v1::ShowRequest there = request;
    there.set_address(address);
    const int bytes_max = question.tensors ? kTensorsReplyBytesMax : kReplyBytesMax;
    return Question(address, facts_.tls, bytes_max, left_ns).ask(std::move(there), *key);
  };
  const std::set<std::string> asked = machines(snapshot, {of.job, of.uid});
  const std::vector<std::string> addresses(asked.begin(), asked.end());
  Answers answers(addresses);
  fan_out(addresses.size(), question.tensors ? kTensorsAtOnceMax : kAtOnceMax,
          [&](size_t i) { answers.add(i, ask(addresses[i])); });
  under_way.fetch_sub(1);
  return answers.take();
}

}  // namespace cgx::daemon
