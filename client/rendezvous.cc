#include "client/rendezvous.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "proto/wire/bytes.h"

namespace cgx::client {
namespace {

using Bytes = std::vector<std::byte>;
using Incarnation = std::array<std::byte, 16>;
using ListId = std::array<std::byte, 16>;

constexpr uint32_t kMagic = 0x52584743;  // "CGXR"
constexpr uint32_t kVersion = 2;
constexpr size_t kValueBytes = 1024;                // of a first look
constexpr size_t kValueBytesMax = 2 * 1024 * 1024;  // a list of 65,536 ranks fits
constexpr size_t kTextBytesMax = 512;
constexpr size_t kNamedMax = 8;
constexpr auto kPauseMin = std::chrono::milliseconds(1);
constexpr auto kPauseMax = std::chrono::milliseconds(50);

enum class Verdict : uint8_t { kSettled = 0, kReadAgain = 1, kMismatch = 2, kTimedOut = 3 };

struct List {
  ListId id{};
  std::vector<Incarnation> incarnations;  // by rank
};

struct Answer {
  uint32_t ranks = 0;
  Incarnation incarnation{};
  wire::Member member;
};

Status fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return internal_error(std::string("getrandom: ") + std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte byte : bytes) {
    for (const int shift : {4, 0}) {
      text += "0123456789abcdef"[(std::to_integer<int>(byte) >> shift) & 15];
    }
  }
  return text;
}

std::string rank_text(uint32_t rank) {
  return "rank " + std::to_string(rank);
}

// "rank 1, rank 5 and 7 more"
std::string named(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    text += (i == 0 ? "" : ", ") + rank_text(ranks[i]);
  }
  if (ranks.size() <= kNamedMax) return text;
  return text + " and " + std::to_string(ranks.size() - kNamedMax) + " more";
}

// --- Records
// -------------------------------------------------------------------------------------

wire::Writer head() {
  wire::Writer writer;
  writer.put(kMagic);
  writer.put(kVersion);
  return writer;
}

// Whose entry it is, and where it was found.
struct Source {
  uint32_t rank = 0;
  std::string key;
};

std::string text(const Source& source) {
  return "the entry of " + rank_text(source.rank) + ", " + source.key + ",";
}

Status check_head(wire::Reader& reader, const Source& source) {
  if (reader.get<uint32_t>() != kMagic) return protocol_error(text(source) + " is something else");
  const auto version = reader.get<uint32_t>();
  if (version == kVersion) return {};
  return {StatusCode::kVERSION_MISMATCH, text(source) + " was written by rendezvous version " +
                                             std::to_string(version) + ", this rank uses " +
                                             std::to_string(kVersion)};
}

Status check_whole(const wire::Reader& reader, const Source& source) {
  return reader.done() ? Status() : protocol_error(text(source) + " is malformed");
}

Result<Incarnation> decode_member(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  const auto incarnation = reader.get<Incarnation>();
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return incarnation;
}

Bytes encode(const List& list) {
  wire::Writer writer = head();
  writer.put(list.id);
  writer.put(static_cast<uint32_t>(list.incarnations.size()));
  writer.append(std::as_bytes(std::span(list.incarnations)));
  return writer.take();
}

Result<List> decode_list(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  List list{.id = reader.get<ListId>(), .incarnations = {}};
  list.incarnations.resize(reader.get_count(sizeof(Incarnation)));
  for (Incarnation& each : list.incarnations) each = reader.get<Incarnation>();
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return list;
}

Bytes encode(const Answer& answer) {
  wire::Writer writer = head();
  writer.put(answer.ranks);
  writer.put(answer.incarnation);
  writer.put(answer.member.instance);
  writer.put_string(answer.member.mesh_address);
  return writer.take();
}

Result<Answer> decode_answer(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  Answer answer;
  answer.ranks = reader.get<uint32_t>();
  answer.incarnation = reader.get<Incarnation>();
  answer.member.instance = reader.get<wire::InstanceId>();
  answer.member.mesh_address = reader.get_string();
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return answer;
}

// A daemon without a mesh address serves one machine; ranks elsewhere cannot be reached.
Status check_reachable(const Meeting& meeting, const Agreement& agreement) {
  for (uint32_t rank = 0; rank < agreement.members.size(); ++rank) {
    const wire::Member& other = agreement.members[rank];
    if (other.instance == meeting.self.instance) continue;
    if (!meeting.self.mesh_address.empty() && !other.mesh_address.empty()) continue;
    return {StatusCode::kUNAVAILABLE,
            rank_text(rank) + " uses another daemon, but " +
                (other.mesh_address.empty() ? "that one" : "this rank's daemon") +
                " serves one machine only; configure its mesh address"};
  }
  return {};
}

Status sizes_differ(uint32_t rank, uint32_t theirs, uint32_t ours) {
  return {StatusCode::kMISMATCH, rank_text(rank) + " says there are " + std::to_string(theirs) +
                                     " ranks, this rank says " + std::to_string(ours)};
}

// --- One rank's way through a meeting
// ------------------------------------------------------------

class Attempt {
 public:
  Attempt(const Meeting& meeting, Store& store, Incarnation own)
      : meeting_(meeting), store_(store), own_(own) {}

  Result<Agreement> run() {
    CGX_RETURN_IF_ERROR(publish());
    return meeting_.rank == 0 ? lead() : follow();
  }

 private:
  std::string member_key(uint32_t rank) const {
    return meeting_.prefix + "/member/" + std::to_string(rank);
  }
  std::string list_key() const { return meeting_.prefix + "/list"; }
  std::string answer_key(const ListId& list, uint32_t rank) const {
    return meeting_.prefix + "/" + hex(list) + "/answer/" + std::to_string(rank);
  }
  std::string verdict_key(const ListId& list) const {
    return meeting_.prefix + "/" + hex(list) + "/key";
  }

  Status publish();
  Result<Agreement> lead();
  Result<bool> gather(List& list, std::vector<wire::Member>& members);
  Status pronounce(const ListId& list, Verdict verdict, const std::string& text = {});
  Result<Agreement> follow();
  Status answer(const ListId& list);
  Result<Verdict> verdict(const List& list, wire::JobKey& job_key);
  Result<Agreement> agree(std::vector<wire::Member> members, const ListId& list,
                          const wire::JobKey& job_key) const;

  // Looks for the key until it is there, or still_wanted() is not; then the value is empty.
  Result<Bytes> await(const std::string& key, const std::function<Result<bool>()>& still_wanted);
  Result<Bytes> await(const std::string& key) {
    return await(key, [] { return true; });
  }
  Status pause();
  Status nobody(const Status& status, const std::string& what,
                const std::vector<uint32_t>& missing);
  std::vector<uint32_t> absent(const std::function<std::string(uint32_t)>& key_of);
  std::vector<uint32_t> unanswered(const ListId& list) {
    return absent([&](uint32_t rank) { return answer_key(list, rank); });
  }

  const Meeting& meeting_;
  Store& store_;
  const Incarnation own_;
  std::string awaited_;  // the last key
  std::chrono::milliseconds pause_ = kPauseMin;
  bool store_answers_ = false;  // it has said NOT_FOUND: looking does not wait
};

Status Attempt::pause() {
  if (meeting_.go_on) CGX_RETURN_IF_ERROR(meeting_.go_on());
  const auto now = Clock::now();
  if (now >= meeting_.deadline) return {StatusCode::kTIMED_OUT, "the ranks did not meet in time"};
  std::this_thread::sleep_until(std::min(now + pause_, meeting_.deadline));
  pause_ = std::min(pause_ * 2, kPauseMax);
  return {};
}

Result<Bytes> Attempt::await(const std::string& key,
                             const std::function<Result<bool>()>& still_wanted) {
  if (std::exchange(awaited_, key) != key) pause_ = kPauseMin;
  for (;;) {
    auto value = store_.get(key);
    if (value.ok() || value.status().code() != StatusCode::kNOT_FOUND) return value;
    store_answers_ = true;
    CGX_ASSIGN_OR_RETURN(const bool wanted, still_wanted());
    if (!wanted) return Bytes{};
    CGX_RETURN_IF_ERROR(pause());
  }
}

std::vector<uint32_t> Attempt::absent(const std::function<std::string(uint32_t)>& key_of) {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; store_answers_ && rank < meeting_.size; ++rank) {
    if (rank != meeting_.rank && !store_.get(key_of(rank)).ok()) ranks.push_back(rank);
  }
  return ranks;
}

Status Attempt::nobody(const Status& status, const std::string& what,
                       const std::vector<uint32_t>& missing) {
  if (status.code() != StatusCode::kTIMED_OUT) return status;
  return {StatusCode::kTIMED_OUT, "joining communicator " + meeting_.name + " as " +
                                      rank_text(meeting_.rank) + " of " +
                                      std::to_string(meeting_.size) + " took too long: " + what +
                                      (missing.empty() ? "" : "; missing: " + named(missing))};
}

Status Attempt::publish() {
  wire::Writer writer = head();
  writer.put(own_);
  const std::string key = member_key(meeting_.rank);
  CGX_RETURN_IF_ERROR(store_.put(key, writer.take()));
  CGX_ASSIGN_OR_RETURN(const Bytes value, await(key));
  CGX_ASSIGN_OR_RETURN(const Incarnation found, decode_member({meeting_.rank, key}, value));
  if (found == own_) return {};
  return invalid_argument("the rendezvous store kept an earlier value of " + key +
                          ": meeting again needs a store whose put takes the earlier one's place");
}

Result<Agreement> Attempt::lead() {
  List list;
  list.incarnations.resize(meeting_.size);
  list.incarnations[0] = own_;
  for (uint32_t rank = 1; rank < meeting_.size; ++rank) {
    const auto value = await(member_key(rank));
    if (!value.ok()) {
      return nobody(value.status(), "not all ranks came",
                    absent([&](uint32_t other) { return member_key(other); }));
    }
    CGX_ASSIGN_OR_RETURN(list.incarnations[rank], decode_member({rank, member_key(rank)}, *value));
  }
  std::vector<wire::Member> members(meeting_.size);
  for (;;) {
    CGX_RETURN_IF_ERROR(fill_random(list.id));
    CGX_RETURN_IF_ERROR(answer(list.id));
    CGX_RETURN_IF_ERROR(store_.put(list_key(), encode(list)));
    const auto settled = gather(list, members);
    if (!settled.ok()) {
      const bool late = settled.status().code() == StatusCode::kTIMED_OUT;
      static_cast<void>(pronounce(list.id, late ? Verdict::kTimedOut : Verdict::kMismatch,
                                  settled.status().message())
                            .ok());
      return settled.status();
    }
    CGX_RETURN_IF_ERROR(pronounce(list.id, *settled ? Verdict::kSettled : Verdict::kReadAgain));
    if (!*settled) continue;
    wire::JobKey job_key;
    CGX_RETURN_IF_ERROR(verdict(list, job_key).status());
    return agree(std::move(members), list.id, job_key);
  }
}

// Every rank's answer to a list; whether they are from the incarnations it names. The list is put
// right where they are not.
Result<bool> Attempt::gather(List& list, std::vector<wire::Member>& members) {
  bool same = true;
  members[0] = meeting_.self;
  for (uint32_t rank = 1; rank < meeting_.size; ++rank) {
    const std::string key = answer_key(list.id, rank);
    const auto value = await(key);
    if (!value.ok()) {
      return nobody(value.status(), "not all ranks answered", unanswered(list.id));
    }
    CGX_ASSIGN_OR_RETURN(Answer answer, decode_answer({rank, key}, *value));
    if (answer.ranks != meeting_.size) return sizes_differ(rank, answer.ranks, meeting_.size);
    same = same && answer.incarnation == list.incarnations[rank];
    list.incarnations[rank] = answer.incarnation;
    members[rank] = std::move(answer.member);
  }
  return same;
}

Status Attempt::pronounce(const ListId& list, Verdict verdict, const std::string& text) {
  wire::Writer writer;
  writer.put(meeting_.key_if_first);
  writer.put(verdict);
  writer.put_string(std::string_view(text).substr(0, kTextBytesMax));
  return store_.put(verdict_key(list), writer.take());
}

Result<Agreement> Attempt::follow() {
  ListId answered{};
  for (;;) {
    const auto found = await(list_key());
    if (!found.ok()) {
      return nobody(found.status(), "rank 0 has not listed the ranks",
                    absent([&](uint32_t rank) { return member_key(rank); }));
    }
    const auto list = decode_list({0, list_key()}, *found);
    CGX_RETURN_IF_ERROR(list.status());
    const bool fresh = list->id != answered;
    if (fresh) CGX_RETURN_IF_ERROR(answer(list->id));
    answered = list->id;
    const bool named =
        meeting_.rank < list->incarnations.size() && list->incarnations[meeting_.rank] == own_;
    const auto ranks = static_cast<uint32_t>(list->incarnations.size());
    if (named && ranks != meeting_.size) return sizes_differ(0, ranks, meeting_.size);
    if (!named || !fresh) {
      const Status status = pause();
      if (status.ok()) continue;
      return nobody(status, "rank 0 has not listed this rank", unanswered(list->id));
    }
    wire::JobKey job_key;
    const auto settled = verdict(*list, job_key);
    if (!settled.ok()) {
      return nobody(settled.status(), "not all ranks answered", unanswered(list->id));
    }
    if (*settled != Verdict::kSettled) continue;
    std::vector<wire::Member> members;
    for (uint32_t rank = 0; rank < meeting_.size; ++rank) {
      const std::string key = answer_key(list->id, rank);
      CGX_ASSIGN_OR_RETURN(const Bytes value, await(key));
      CGX_ASSIGN_OR_RETURN(Answer other, decode_answer({rank, key}, value));
      members.push_back(std::move(other.member));
    }
    return agree(std::move(members), list->id, job_key);
  }
}

Status Attempt::answer(const ListId& list) {
  return store_.put(
      answer_key(list, meeting_.rank),
      encode(Answer{.ranks = meeting_.size, .incarnation = own_, .member = meeting_.self}));
}

// What rank 0 made of a list; kReadAgain also when another list has taken its place.
Result<Verdict> Attempt::verdict(const List& list, wire::JobKey& job_key) {
  const std::string key = verdict_key(list.id);
  CGX_ASSIGN_OR_RETURN(const Bytes value, await(key, [&]() -> Result<bool> {
                         CGX_ASSIGN_OR_RETURN(const Bytes newest, store_.get(list_key()));
                         CGX_ASSIGN_OR_RETURN(const List now, decode_list({0, list_key()}, newest));
                         return now.id == list.id;
                       }));
  if (value.empty()) return Verdict::kReadAgain;
  wire::Reader reader(value);
  job_key = reader.get<wire::JobKey>();
  const auto verdict = reader.get<Verdict>();
  const std::string text = reader.get_string();
  CGX_RETURN_IF_ERROR(check_whole(reader, {0, key}));
  switch (verdict) {
    case Verdict::kSettled:
    case Verdict::kReadAgain:
      return verdict;
    case Verdict::kMismatch:
      return Status(StatusCode::kMISMATCH, "rank 0 gave up: " + text);
    case Verdict::kTimedOut:
      return Status(StatusCode::kTIMED_OUT, "rank 0 gave up: " + text);
  }
  return protocol_error(key + " holds an unknown verdict");
}

Result<Agreement> Attempt::agree(std::vector<wire::Member> members, const ListId& list,
                                 const wire::JobKey& job_key) const {
  Agreement result{.members = std::move(members), .job_key = job_key, .number = 0};
  std::memcpy(&result.number, list.data(), sizeof(result.number));
  CGX_RETURN_IF_ERROR(check_reachable(meeting_, result));
  return result;
}

}  // namespace

Status CallbackStore::put(const std::string& key, std::span<const std::byte> value) {
  const int result = callbacks_.put(callbacks_.user, key.c_str(), value.data(), value.size());
  if (result == 0) return {};
  return {StatusCode::kUNAVAILABLE,
          "the rendezvous put of " + key + " returned " + std::to_string(result)};
}

Result<Bytes> CallbackStore::get(const std::string& key) {
  Bytes value(kValueBytes);
  for (;;) {
    size_t bytes = 0;
    const int result =
        callbacks_.get(callbacks_.user, key.c_str(), value.data(), value.size(), &bytes);
    if (result == CGX_NOT_FOUND) return Status(StatusCode::kNOT_FOUND, key + " is not there yet");
    if (result != 0) {
      return Status(StatusCode::kUNAVAILABLE,
                    "the rendezvous get of " + key + " returned " + std::to_string(result));
    }
    if (bytes > kValueBytesMax) {
      return protocol_error("the rendezvous value of " + key + " has " + std::to_string(bytes) +
                            " bytes; the limit is " + std::to_string(kValueBytesMax));
    }
    const bool whole = bytes <= value.size();
    value.resize(bytes);
    if (whole) return value;
  }
}

Result<wire::JobKey> random_key() {
  wire::JobKey key{};
  CGX_RETURN_IF_ERROR(fill_random(key));
  return key;
}

Result<Agreement> meet(const Meeting& meeting, Store* store) {
  Incarnation own;
  CGX_RETURN_IF_ERROR(fill_random(own));
  if (meeting.size > 1) return Attempt(meeting, *store, own).run();
  Agreement alone{.members = {meeting.self}, .job_key = meeting.key_if_first, .number = 0};
  std::memcpy(&alone.number, own.data(), sizeof(alone.number));
  return alone;
}

}  // namespace cgx::client
