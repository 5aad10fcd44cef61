#include "client/rendezvous.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "client/meeting_records.h"

namespace cgx::client {
namespace {

constexpr size_t kValueBytes = 1024;                  // of a first look
constexpr size_t kMembersBytesMax = 8 * 1024 * 1024;  // 65,536 members fit
constexpr size_t kNamedMax = 8;
constexpr auto kPauseMin = std::chrono::milliseconds(1);
constexpr auto kPauseMax = std::chrono::milliseconds(50);
constexpr auto kLookAroundPause = std::chrono::milliseconds(200);

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

// "rank 1, rank 5 and 7 more"
std::string named(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    text += (i == 0 ? "" : ", ") + rank_text(ranks[i]);
  }
  if (ranks.size() <= kNamedMax) return text;
  return text + " and " + std::to_string(ranks.size() - kNamedMax) + " more";
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

// One rank's way through a meeting

class Attempt {
 public:
  Attempt(const Meeting& meeting, Store& store, Incarnation own)
      : meeting_(meeting), store_(store), own_(own) {}

  Result<Agreement> run() {
    CGX_RETURN_IF_ERROR(may_go_on());
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
  std::string word_key(const ListId& list) const {
    return meeting_.prefix + "/" + hex(list) + "/key";
  }
  std::string lost_key() const { return meeting_.prefix + "/lost"; }

  Status publish();
  Result<Agreement> lead();
  Status put_list(List list);
  Result<bool> gather(List& list, std::vector<wire::Member>& members);
  Status pronounce(const ListId& list, Word word);
  Status give_up(const ListId& list, const Status& why);
  Result<Agreement> follow();
  Status answer(const ListId& list);
  Result<Word> word_about(const List& list);
  Result<Agreement> agree(Word word, const ListId& list) const;

  // Looks for the key until it is there, or still_wanted() is not; then the value is empty.
  Result<Bytes> await(const std::string& key, const std::function<Result<bool>()>& still_wanted);
  Result<Bytes> await(const std::string& key) {
    return await(key, [] { return true; });
  }
  Status pause();
  Status may_go_on();
  Status look_around();
  Result<bool> hold_place();
  Status another_process() const;
  Status check_rival(const List& list);
  Status hold_list();
  Result<Bytes> last_loss();
  Status store_answers();  // it has turned out that it does
  Status hear_of_loss();
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
  Deadline next_look_around_ = Clock::now() + kLookAroundPause;
  std::optional<Incarnation> rival_;  // came to this rank's place after it, in this meeting
  bool store_answers_ = false;        // it says NOT_FOUND at once: looking does not wait
  Bytes loss_before_;                 // what "lost" held when this was found out
  Bytes list_;                        // rank 0's, as it is in the store
};

Status Attempt::pause() {
  CGX_RETURN_IF_ERROR(may_go_on());
  CGX_RETURN_IF_ERROR(look_around());
  const auto now = Clock::now();
  if (now >= meeting_.deadline) return {StatusCode::kTIMED_OUT, "the ranks did not meet in time"};
  std::this_thread::sleep_until(std::min(now + pause_, meeting_.deadline));
  pause_ = std::min(pause_ * 2, kPauseMax);
  return {};
}

Status Attempt::may_go_on() {
  const Status status = meeting_.go_on ? meeting_.go_on() : Status();
  if (status.code() == StatusCode::kRANK_LOST) {
    static_cast<void>(store_.put(lost_key(), encode(Loss{own_, status.message()})).ok());
  }
  return status;
}

// For what nobody waits for; in large jobs a store has enough to do.
Status Attempt::look_around() {
  if (Clock::now() < next_look_around_) return {};
  next_look_around_ = Clock::now() + kLookAroundPause;
  CGX_RETURN_IF_ERROR(hold_place().status());
  CGX_RETURN_IF_ERROR(hold_list());
  return hear_of_loss();
}

// Whether this rank's number was still its own. If not it is again, unless this process is refused.
Result<bool> Attempt::hold_place() {
  const std::string key = member_key(meeting_.rank);
  CGX_ASSIGN_OR_RETURN(const Bytes value, store_.get(key));
  CGX_ASSIGN_OR_RETURN(const Claim found, decode_claim({meeting_.rank, key}, value));
  if (found.holder == own_) return true;
  if (found.refused == own_) return another_process();
  rival_ = found.holder;
  CGX_RETURN_IF_ERROR(store_.put(key, encode(Claim{.holder = own_, .refused = found.holder})));
  return false;
}

Status Attempt::another_process() const {
  return {StatusCode::kALREADY_EXISTS,
          rank_text(meeting_.rank) + " of communicator " + meeting_.name +
              " is another process, which has come to meet the others and is alive"};
}

// ALREADY_EXISTS when the other process has met the others before it could be refused.
Status Attempt::check_rival(const List& list) {
  const uint32_t rank = meeting_.rank;
  if (rank >= list.incarnations.size() || list.incarnations[rank] != rival_) return {};
  const std::string key = word_key(list.id);
  const auto value = store_.get(key);
  if (value.status().code() == StatusCode::kNOT_FOUND) return {};
  CGX_RETURN_IF_ERROR(value.status());
  CGX_ASSIGN_OR_RETURN(const Word word, decode_word({0, key}, *value, meeting_.size));
  return word.verdict == Verdict::kSettled ? another_process() : Status();
}

// A second rank 0 may write a list of its own before it knows that it is refused.
Status Attempt::hold_list() {
  if (list_.empty()) return {};
  CGX_ASSIGN_OR_RETURN(const Bytes newest, store_.get(list_key()));
  if (newest == list_) return {};
  CGX_ASSIGN_OR_RETURN(const List other, decode_list({0, list_key()}, newest));
  CGX_RETURN_IF_ERROR(check_rival(other));
  return store_.put(list_key(), list_);
}

Result<Bytes> Attempt::last_loss() {
  auto value = store_.get(lost_key());
  if (value.status().code() == StatusCode::kNOT_FOUND) return Bytes{};
  return value;
}

Status Attempt::store_answers() {
  if (std::exchange(store_answers_, true)) return {};
  CGX_ASSIGN_OR_RETURN(loss_before_, last_loss());
  if (list_.empty()) return {};
  CGX_ASSIGN_OR_RETURN(List list, decode_list({0, list_key()}, list_));
  return put_list(std::move(list));  // its readers may not have found out
}

Status Attempt::hear_of_loss() {
  if (!store_answers_) return {};
  CGX_ASSIGN_OR_RETURN(const Bytes value, last_loss());
  if (value == loss_before_) return {};
  CGX_ASSIGN_OR_RETURN(const Loss loss, decode_loss({meeting_.rank, lost_key()}, value));
  return {StatusCode::kRANK_LOST, loss.text};
}

Result<Bytes> Attempt::await(const std::string& key,
                             const std::function<Result<bool>()>& still_wanted) {
  if (std::exchange(awaited_, key) != key) pause_ = kPauseMin;
  for (;;) {
    const auto asked = Clock::now();
    auto value = store_.get(key);
    if (value.ok() || value.status().code() != StatusCode::kNOT_FOUND) return value;
    if (Clock::now() - asked < kLookAroundPause) CGX_RETURN_IF_ERROR(store_answers());
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
  const std::string key = member_key(meeting_.rank);
  CGX_RETURN_IF_ERROR(store_.put(key, encode(Claim{.holder = own_, .refused = {}})));
  CGX_RETURN_IF_ERROR(await(key).status());
  CGX_ASSIGN_OR_RETURN(bool held, hold_place());
  if (!held) {  // a second process came at the same moment, or the store kept the earlier value
    CGX_ASSIGN_OR_RETURN(held, hold_place());
  }
  if (held) return {};
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
      auto missing = absent([&](uint32_t other) { return member_key(other); });
      if (missing.empty()) missing = {rank};
      return nobody(value.status(), "not all ranks came", missing);
    }
    CGX_ASSIGN_OR_RETURN(const Claim claim, decode_claim({rank, member_key(rank)}, *value));
    list.incarnations[rank] = claim.holder;
  }
  std::vector<wire::Member> members(meeting_.size);
  for (;;) {
    CGX_RETURN_IF_ERROR(fill_random(list.id));
    CGX_RETURN_IF_ERROR(answer(list.id));
    CGX_RETURN_IF_ERROR(put_list(list));
    const auto settled = gather(list, members);
    if (!settled.ok()) return give_up(list.id, settled.status());
    Word word;
    if (*settled) word = {.verdict = Verdict::kSettled, .why = {}, .members = members};
    CGX_RETURN_IF_ERROR(pronounce(list.id, std::move(word)));
    if (!*settled) continue;
    CGX_ASSIGN_OR_RETURN(Word heard, word_about(list));
    return agree(std::move(heard), list.id);
  }
}

Status Attempt::put_list(List list) {
  list.store_answers = store_answers_;
  list_ = encode(list);
  return store_.put(list_key(), list_);
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
      auto missing = unanswered(list.id);
      if (missing.empty()) missing = {rank};
      return nobody(value.status(), "not all ranks answered", missing);
    }
    CGX_ASSIGN_OR_RETURN(Answer answer, decode_answer({rank, key}, *value));
    if (answer.ranks != meeting_.size) return sizes_differ(rank, answer.ranks, meeting_.size);
    same = same && answer.incarnation == list.incarnations[rank];
    list.incarnations[rank] = answer.incarnation;
    members[rank] = std::move(answer.member);
  }
  return same;
}

Status Attempt::pronounce(const ListId& list, Word word) {
  word.job_key = meeting_.key_if_first;
  return store_.put(word_key(list), encode(word));
}

// A second rank 0 has no say. To the others this rank's daemon is a peer.
Status Attempt::give_up(const ListId& list, const Status& why) {
  if (why.code() == StatusCode::kALREADY_EXISTS) return why;
  const bool daemon_lost = why.code() == StatusCode::kDAEMON_LOST;
  const Status told(daemon_lost ? StatusCode::kPEER_LOST : why.code(), why.message());
  static_cast<void>(
      pronounce(list, {.verdict = Verdict::kGaveUp, .why = told, .members = {}}).ok());
  return why;
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
    if (list->store_answers) CGX_RETURN_IF_ERROR(store_answers());
    const bool fresh = list->id != answered;
    if (fresh) CGX_RETURN_IF_ERROR(answer(list->id));
    answered = list->id;
    const bool named =
        meeting_.rank < list->incarnations.size() && list->incarnations[meeting_.rank] == own_;
    const auto ranks = static_cast<uint32_t>(list->incarnations.size());
    if (named && ranks != meeting_.size) return sizes_differ(0, ranks, meeting_.size);
    if (!named || !fresh) {
      CGX_RETURN_IF_ERROR(check_rival(*list));
      const Status status = pause();
      if (status.ok()) continue;
      return nobody(status, "rank 0 has not listed this rank", unanswered(list->id));
    }
    auto word = word_about(*list);
    if (!word.ok()) return nobody(word.status(), "not all ranks answered", unanswered(list->id));
    if (word->verdict == Verdict::kGaveUp) return word->why;
    if (word->verdict == Verdict::kSettled) return agree(std::move(*word), list->id);
  }
}

Status Attempt::answer(const ListId& list) {
  CGX_RETURN_IF_ERROR(hold_place().status());
  return store_.put(
      answer_key(list, meeting_.rank),
      encode(Answer{.ranks = meeting_.size, .incarnation = own_, .member = meeting_.self}));
}

// kReadAgain also when another list has taken its place.
Result<Word> Attempt::word_about(const List& list) {
  const std::string key = word_key(list.id);
  CGX_ASSIGN_OR_RETURN(const Bytes value, await(key, [&]() -> Result<bool> {
                         CGX_ASSIGN_OR_RETURN(const Bytes newest, store_.get(list_key()));
                         CGX_ASSIGN_OR_RETURN(const List now, decode_list({0, list_key()}, newest));
                         return now.id == list.id;
                       }));
  if (value.empty()) return Word{};
  return decode_word({0, key}, value, meeting_.size);
}

Result<Agreement> Attempt::agree(Word word, const ListId& list) const {
  Agreement result{.members = std::move(word.members), .job_key = word.job_key, .number = 0};
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
    if (result == CGX_TIMED_OUT) return Status(StatusCode::kTIMED_OUT, "nobody put " + key);
    if (result != 0) {
      return Status(StatusCode::kUNAVAILABLE,
                    "the rendezvous get of " + key + " returned " + std::to_string(result));
    }
    if (bytes > kMembersBytesMax) {
      return protocol_error("the rendezvous value of " + key + " has " + std::to_string(bytes) +
                            " bytes; the limit is " + std::to_string(kMembersBytesMax));
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
