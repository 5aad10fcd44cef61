// The layout of records, byte for byte: what another language or another version may rely on.
#include "proto/wire/shm_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "proto/wire/submit_record.h"

namespace cgx::wire {
namespace {

template <typename Record>
std::string hex(const Record& record) {
  std::array<unsigned char, sizeof(Record)> bytes;
  std::memcpy(bytes.data(), &record, sizeof(record));
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    if (i > 0 && i % 8 == 0) text += ' ';
    text += digits;
  }
  return text;
}

TEST(ShmLayout, SubmitRecordHasTheseBytes) {
  cgx_submit_record record{};
  record.kind = CGX_SUBMIT_CALL;
  record.flags = 0x12;
  record.in_arena = 0x13;
  record.out_arena = 0x14;
  record.comm = 0x18171615;
  record.step = 0x201f1e1d1c1b1a19;
  record.tensor = 0x24232221;
  record.attempt = 0x28272625;
  record.count = 0x302f2e2d2c2b2a29;
  record.gradient_unit = 1.5;
  record.in_offset = 0x403f3e3d3c3b3a39;
  record.out_offset = 0x4847464544434241;
  record.cookie = 0x504f4e4d4c4b4a49;
  record.dtype = 0x51;
  record.op = 0x52;
  record.collective = 0x53;
  record.indices_arena = 0x54;
  record.root = 0x58575655;
  record.peer = 0x5c5b5a59;
  record.tag = 0x605f5e5d;
  record.indices_offset = 0x6867666564636261;
  record.rows = 0x706f6e6d6c6b6a69;
  record.word = 0x74737271;
  record.word_value = 0x78777675;
  record.indices_dtype = 0x79;
  record.reserved[22] = 0xff;
  EXPECT_EQ(hex(record),
            "0512131415161718 191a1b1c1d1e1f20 2122232425262728 292a2b2c2d2e2f30 "
            "000000000000f83f 393a3b3c3d3e3f40 4142434445464748 494a4b4c4d4e4f50 "
            "5152535455565758 595a5b5c5d5e5f60 6162636465666768 696a6b6c6d6e6f70 "
            "7172737475767778 7900000000000000 0000000000000000 00000000000000ff");
}

TEST(ShmLayout, CompletionRecordHasTheseBytes) {
  cgx_completion_record record{};
  record.kind = CGX_COMPLETE_CALL;
  record.outcome = CGX_OUTCOME_ERROR;
  record.status = 0x1413;
  record.comm = 0x18171615;
  record.step = 0x201f1e1d1c1b1a19;
  record.tensor = 0x24232221;
  record.attempt = 0x28272625;
  record.epoch = 0x302f2e2d2c2b2a29;
  record.policy_version = 0x3837363534333231;
  record.text_slot = 0x3c3b3a39;
  record.text_number = 0x403f3e3d;
  record.cookie = 0x4847464544434241;
  record.word = 0x4c4b4a49;
  record.word_value = 0x504f4e4d;
  EXPECT_EQ(hex(record),
            "0303131415161718 191a1b1c1d1e1f20 2122232425262728 292a2b2c2d2e2f30 "
            "3132333435363738 393a3b3c3d3e3f40 4142434445464748 494a4b4c4d4e4f50");
}

TEST(ShmLayout, RingsLieWhereTheReadmeSays) {
  EXPECT_EQ(CGX_SHM_VERSION, 2u);
  EXPECT_EQ(CGX_SHM_SUBMIT_OFFSET, 4u << 10);
  EXPECT_EQ(CGX_SHM_COMPLETION_OFFSET, 516u << 10);
  EXPECT_EQ(CGX_SHM_TEXT_OFFSET, 1028u << 10);
  EXPECT_EQ(CGX_SHM_BYTES, 1044u << 10);
}

TEST(SubmitRecord, MayAskForWhatIsBuilt) {
  cgx_submit_record record{};
  std::memset(&record, 0xff, CGX_RECORD_LINE);
  record.dtype = 3;
  record.op = 1;
  EXPECT_TRUE(check_built(record).ok());
}

TEST(SubmitRecord, EveryByteBeyondThatIsRefusedByName) {
  for (size_t at = CGX_RECORD_LINE; at < sizeof(cgx_submit_record); ++at) {
    const bool of_call =
        at == offsetof(cgx_submit_record, dtype) || at == offsetof(cgx_submit_record, op);
    if (at >= offsetof(cgx_submit_record, word) && at < offsetof(cgx_submit_record, indices_dtype))
      continue;  // INVALID_ARGUMENT, or a word
    cgx_submit_record record{};
    reinterpret_cast<unsigned char*>(&record)[at] = 1;
    EXPECT_EQ(check_built(record).code(), of_call ? StatusCode::kOK : StatusCode::kUNIMPLEMENTED)
        << at;
  }
  const auto text = [](auto change) {
    cgx_submit_record record{};
    change(record);
    return check_built(record).to_string();
  };
  EXPECT_EQ(text([](auto& r) { r.collective = 3; }),
            "UNIMPLEMENTED: the collective broadcast is not built yet; allreduce is");
  EXPECT_EQ(text([](auto& r) { r.collective = 200; }),
            "INVALID_ARGUMENT: collective 200 is not known");
  EXPECT_NE(text([](auto& r) { r.root = 7; }).find("root 7"), std::string::npos);
  EXPECT_NE(text([](auto& r) { r.rows = 7; }).find("rows"), std::string::npos);
  EXPECT_EQ(text([](auto& r) { r.word = 63, r.word_value = 7; }), "OK");
  EXPECT_EQ(text([](auto& r) { r.word = 64; }), "INVALID_ARGUMENT: there is no timeline word 64");
  EXPECT_EQ(text([](auto& r) { r.word_value = 7; }),
            "INVALID_ARGUMENT: there is no timeline word 0");
}

}  // namespace
}  // namespace cgx::wire
