#include "client/rendezvous.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/wire/bytes.h"

namespace cgx::client {
namespace {

constexpr uint32_t kMemberMagic = 0x52584743;  // "CGXR"
constexpr uint32_t kMemberVersion = 1;
constexpr size_t kValueBytesMax = 1024;

std::vector<std::byte> encode_member(const Meeting& meeting) {
  wire::Writer writer;
  writer.put(kMemberMagic);
  writer.put(kMemberVersion);
  writer.put(meeting.size);
  writer.put(meeting.self.instance);
  writer.put_string(meeting.self.mesh_address);
  return writer.take();
}

Result<wire::Member> decode_member(const Meeting& meeting, uint32_t rank,
                                   std::span<const std::byte> value) {
  wire::Reader reader(value);
  const auto magic = reader.get<uint32_t>();
  const auto version = reader.get<uint32_t>();
  const auto size = reader.get<uint32_t>();
  wire::Member member;
  member.instance = reader.get<wire::InstanceId>();
  member.mesh_address = reader.get_string();
  const std::string who = "rank " + std::to_string(rank) + " of " + meeting.prefix;
  if (magic != kMemberMagic) return protocol_error(who + " published something else");
  if (version != kMemberVersion) {
    return Status(StatusCode::kVERSION_MISMATCH, who + " uses rendezvous version " +
                                                     std::to_string(version) + ", this rank " +
                                                     std::to_string(kMemberVersion));
  }
  if (!reader.done()) return protocol_error(who + " published a malformed entry");
  if (size != meeting.size) {
    return Status(StatusCode::kMISMATCH, who + " says there are " + std::to_string(size) +
                                             " ranks, this rank says " +
                                             std::to_string(meeting.size));
  }
  return member;
}

// A daemon without a mesh address serves one machine; ranks elsewhere cannot be reached.
Status check_reachable(const Meeting& meeting, const Agreement& agreement) {
  for (uint32_t rank = 0; rank < agreement.members.size(); ++rank) {
    const wire::Member& other = agreement.members[rank];
    if (other.instance == meeting.self.instance) continue;
    if (!meeting.self.mesh_address.empty() && !other.mesh_address.empty()) continue;
    return {StatusCode::kUNAVAILABLE,
            "rank " + std::to_string(rank) + " uses another daemon, but " +
                (other.mesh_address.empty() ? "that one" : "this rank's daemon") +
                " serves one machine only; configure its mesh address"};
  }
  return {};
}

}  // namespace

Status CallbackStore::put(const std::string& key, std::span<const std::byte> value) {
  const int result = callbacks_.put(callbacks_.user, key.c_str(), value.data(), value.size());
  if (result == 0) return {};
  return {StatusCode::kUNAVAILABLE,
          "the rendezvous put of " + key + " returned " + std::to_string(result)};
}

Result<std::vector<std::byte>> CallbackStore::get(const std::string& key) {
  std::vector<std::byte> value(kValueBytesMax);
  size_t bytes = 0;
  const int result =
      callbacks_.get(callbacks_.user, key.c_str(), value.data(), value.size(), &bytes);
  if (result != 0) {
    return Status(StatusCode::kUNAVAILABLE,
                  "the rendezvous get of " + key + " returned " + std::to_string(result));
  }
  if (bytes > value.size()) {
    return protocol_error("the rendezvous value of " + key + " has " + std::to_string(bytes) +
                          " bytes; the limit is " + std::to_string(value.size()));
  }
  value.resize(bytes);
  return value;
}

Result<wire::JobKey> random_key() {
  wire::JobKey key{};
  size_t filled = 0;
  while (filled < key.size()) {
    const ssize_t got = ::getrandom(key.data() + filled, key.size() - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return internal_error(std::string("getrandom: ") + std::strerror(errno));
    filled += static_cast<size_t>(got);
  }
  return key;
}

Result<Agreement> meet(const Meeting& meeting, Store* store) {
  Agreement result{.members = {meeting.self}, .job_key = meeting.key_if_first};
  if (meeting.size == 1) return result;
  const std::string member_key = meeting.prefix + "/member/";
  const std::string job_key = meeting.prefix + "/key";
  if (meeting.rank == 0) CGX_RETURN_IF_ERROR(store->put(job_key, meeting.key_if_first));
  CGX_RETURN_IF_ERROR(
      store->put(member_key + std::to_string(meeting.rank), encode_member(meeting)));
  result.members.clear();
  for (uint32_t rank = 0; rank < meeting.size; ++rank) {
    CGX_ASSIGN_OR_RETURN(const auto value, store->get(member_key + std::to_string(rank)));
    CGX_ASSIGN_OR_RETURN(wire::Member member, decode_member(meeting, rank, value));
    result.members.push_back(std::move(member));
  }
  CGX_ASSIGN_OR_RETURN(const auto key, store->get(job_key));
  if (key.size() != result.job_key.size()) {
    return protocol_error("the job key of " + meeting.prefix + " has " +
                          std::to_string(key.size()) + " bytes instead of 32");
  }
  std::copy(key.begin(), key.end(), result.job_key.begin());
  CGX_RETURN_IF_ERROR(check_reachable(meeting, result));
  return result;
}

}  // namespace cgx::client
