// Frames and session messages: what comes in is what went out, and nothing else gets through.
#include <gtest/gtest.h>

#include <cstring>

#include "proto/wire/bytes.h"
#include "proto/wire/frame.h"
#include "proto/wire/session_messages.h"

namespace cgx::wire {
namespace {

std::vector<std::byte> some_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37);
  return bytes;
}

TEST(Frame, ComesBackAsItWasSealed) {
  const std::vector<std::byte> payload = some_bytes(1000);
  FrameHeader header;
  header.step = 42;
  header.communicator = 7;
  seal(header, payload);
  const auto opened = open_frame(std::as_bytes(std::span(&header, 1)), payload);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->step, 42u);
  EXPECT_EQ(opened->length, 1000u);
}

TEST(Frame, RejectsEveryFlippedByte) {
  std::vector<std::byte> payload = some_bytes(300);
  FrameHeader header;
  seal(header, payload);
  std::vector<std::byte> bytes(sizeof(header));
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x10};
    EXPECT_FALSE(open_frame(bytes, payload).ok()) << "header byte " << i;
    bytes[i] ^= std::byte{0x10};
  }
  for (size_t i = 0; i < payload.size(); ++i) {
    payload[i] ^= std::byte{0x01};
    EXPECT_EQ(open_frame(bytes, payload).status().code(), StatusCode::kCORRUPT);
    payload[i] ^= std::byte{0x01};
  }
  EXPECT_FALSE(open_frame(bytes, std::span(payload).first(299)).ok());
  EXPECT_FALSE(open_frame(std::span(bytes).first(127), payload).ok());
}

template <typename Message>
void expect_exact(const Message& message) {
  const std::vector<std::byte> packet = encode_packet(message, 9);
  const auto header = parse_header(packet, Side::kDaemon);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->request, 9u);
  const auto body = std::span(packet).subspan(sizeof(PacketHeader));
  const auto read = decode_body<Message>(body);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(encode_packet(*read, 9), packet);
  for (size_t length = 0; length < body.size(); ++length) {
    EXPECT_FALSE(decode_body<Message>(body.first(length)).ok()) << length;
  }
}

TEST(SessionMessages, ComeBackExactlyAndRejectTruncation) {
  expect_exact(Hello{"job", "python3 train.py"});
  expect_exact(Welcome{{1, 2}, "10.0.0.1:7701", "cgxd 0.1.0"});
  expect_exact(Reply{StatusCode::kMISMATCH, "differs", 3, 4});
  expect_exact(AddArena{
      1, ArenaKind::kDevice, ArenaWay::kIpc, {std::byte{7}}, 4096, 64, {std::byte{9}}, 128});
  expect_exact(DropArena{1});
  expect_exact(Meet{1, "world", 3});
  CreateCommunicator create;
  create.name = "world";
  create.meeting = 2;
  create.arena = 5;
  create.members = {{{1, 2}, "a"}, {{3, 4}, ""}};
  expect_exact(create);
  RegisterTensors tensors;
  tensors.tensors = {{.name = "w", .elements = 12, .shape = {3, 4}}, {.name = "", .shape = {}}};
  expect_exact(tensors);
  expect_exact(Commit{1, 2});
  expect_exact(RedoStep{1});
  expect_exact(CloseCommunicator{1});
  expect_exact(Goodbye{});
}

TEST(SessionMessages, RejectListsLongerThanTheirPacket) {
  Writer writer;
  writer.put<uint32_t>(1);
  writer.put<uint32_t>(0);
  writer.put<uint32_t>(0xffffffffu);  // tensors announced
  const auto bytes = writer.take();
  EXPECT_FALSE(decode_body<RegisterTensors>(bytes).ok());
}

TEST(SessionMessages, NameBothVersions) {
  std::vector<std::byte> packet = encode_packet(Goodbye{}, 0);
  const uint16_t newer = kSessionVersion + 1;
  std::memcpy(packet.data() + offsetof(PacketHeader, version), &newer, sizeof(newer));
  const Status status = parse_header(packet, Side::kDaemon).status();
  EXPECT_EQ(status.code(), StatusCode::kVERSION_MISMATCH);
  EXPECT_NE(status.message().find(std::to_string(newer)), std::string::npos);
  EXPECT_NE(status.message().find(std::to_string(kSessionVersion)), std::string::npos);
}

TEST(Status, NamesEveryCodeAndSurvivesUnknownOnes) {
  EXPECT_EQ(status_name(StatusCode::kSTEP_OPEN), "STEP_OPEN");
  EXPECT_EQ(status_name(static_cast<StatusCode>(9999)), "UNKNOWN");
  EXPECT_EQ(Status(StatusCode::kRANK_LOST, "rank 3").to_string(), "RANK_LOST: rank 3");
}

}  // namespace
}  // namespace cgx::wire
