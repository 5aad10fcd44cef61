#include "client/meeting_records.h"

#include "proto/wire/bytes.h"

namespace cgx::client {
namespace {

constexpr uint32_t kMagic = 0x52584743;  // "CGXR"
constexpr uint32_t kVersion = 5;
constexpr size_t kTextBytesMax = 512;

wire::Writer head() {
  wire::Writer writer;
  writer.put(kMagic);
  writer.put(kVersion);
  return writer;
}

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

void put_member(wire::Writer& writer, const wire::Member& member) {
  writer.put(member.instance);
  writer.put_string(member.mesh_address);
  writer.put(member.device);
}

wire::Member get_member(wire::Reader& reader) {
  wire::Member member;
  member.instance = reader.get<wire::InstanceId>();
  member.mesh_address = reader.get_string();
  member.device = reader.get<wire::DeviceId>();
  return member;
}

}  // namespace

std::string rank_text(uint32_t rank) {
  return "rank " + std::to_string(rank);
}

Bytes encode(const Claim& claim) {
  wire::Writer writer = head();
  writer.put(claim);
  return writer.take();
}

Result<Claim> decode_claim(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  const auto claim = reader.get<Claim>();
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return claim;
}

Bytes encode(const List& list) {
  wire::Writer writer = head();
  writer.put(list.id);
  writer.put<uint8_t>(list.store_answers ? 1 : 0);
  writer.put(static_cast<uint32_t>(list.incarnations.size()));
  writer.append(std::as_bytes(std::span(list.incarnations)));
  return writer.take();
}

Result<List> decode_list(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  List list;
  list.id = reader.get<ListId>();
  list.store_answers = reader.get<uint8_t>() != 0;
  list.incarnations.resize(reader.get_count(sizeof(Incarnation)));
  for (Incarnation& each : list.incarnations) each = reader.get<Incarnation>();
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return list;
}

Bytes encode(const Answer& answer) {
  wire::Writer writer = head();
  writer.put(answer.ranks);
  writer.put(answer.incarnation);
  put_member(writer, answer.member);
  return writer.take();
}

Result<Answer> decode_answer(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  Answer answer;
  answer.ranks = reader.get<uint32_t>();
  answer.incarnation = reader.get<Incarnation>();
  answer.member = get_member(reader);
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return answer;
}

Bytes encode(const Word& word) {
  wire::Writer writer;
  writer.put(word.job_key);
  writer.put(word.verdict);
  writer.put(word.why.code());
  writer.put_string(std::string_view(word.why.message()).substr(0, kTextBytesMax));
  writer.put(static_cast<uint32_t>(word.members.size()));
  for (const wire::Member& member : word.members) put_member(writer, member);
  return writer.take();
}

Result<Word> decode_word(const Source& source, std::span<const std::byte> value, uint32_t ranks) {
  wire::Reader reader(value);
  Word word;
  word.job_key = reader.get<wire::JobKey>();
  word.verdict = reader.get<Verdict>();
  const auto code = reader.get<StatusCode>();
  word.why = Status(code, "rank 0 gave up: " + reader.get_string());
  word.members.resize(reader.get_count(sizeof(wire::InstanceId) + sizeof(uint32_t)));
  for (wire::Member& member : word.members) member = get_member(reader);
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  switch (word.verdict) {
    case Verdict::kReadAgain:
      return word;
    case Verdict::kSettled:
      if (word.members.size() == ranks) return word;
      return protocol_error(text(source) + " settles a meeting of " +
                            std::to_string(word.members.size()) + " ranks, not of " +
                            std::to_string(ranks));
    case Verdict::kGaveUp:
      if (!word.why.ok()) return word;
      return protocol_error(text(source) + " gives up with status OK, not with an error");
  }
  return protocol_error(text(source) + " holds verdict " +
                        std::to_string(static_cast<int>(word.verdict)) + ", not 0, 1 or 2");
}

Bytes encode(const Loss& loss) {
  wire::Writer writer = head();
  writer.put(loss.teller);
  writer.put_string(std::string_view(loss.text).substr(0, kTextBytesMax));
  return writer.take();
}

Result<Loss> decode_loss(const Source& source, std::span<const std::byte> value) {
  wire::Reader reader(value);
  CGX_RETURN_IF_ERROR(check_head(reader, source));
  Loss loss;
  loss.teller = reader.get<Incarnation>();
  loss.text = reader.get_string();
  CGX_RETURN_IF_ERROR(check_whole(reader, source));
  return loss;
}

}  // namespace cgx::client
