#include <gtest/gtest.h>

#include "client/ctl/table.h"

namespace cgx::ctl {
namespace {

TEST(Table, AlignsItsColumns) {
  Table table({"NAME", ">BYTES"});
  table.row({"a", "1"});
  table.row({"long name", "1234567"});
  EXPECT_EQ(table.text(),
            "NAME         BYTES\n"
            "a                1\n"
            "long name  1234567\n");
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({"A", "B"});
  table.row({"\xc3\xa4\xc3\xb6", "x"});
  EXPECT_EQ(table.text(), "A   B\n\xc3\xa4\xc3\xb6  x\n");
}

TEST(Table, IsCutToTheTerminalByCharacters) {
  const std::string text =
      "short\n0123456789\n\n\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\n";
  EXPECT_EQ(cut_lines(text, 0), text);
  EXPECT_EQ(cut_lines(text, 10), text);
  EXPECT_EQ(cut_lines(text, 8).substr(0, 16), "short\n01234...\n\n");
  EXPECT_EQ(cut_lines(text, 8).substr(16), text.substr(18));
  EXPECT_EQ(cut_lines(text, 5).substr(13), "\xc3\xa4\xc3\xa4...\n");
}

TEST(HumanUnits, StayShort) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(human_time(999), "999 ns");
  EXPECT_EQ(human_time(1'500), "1.5 us");
  EXPECT_EQ(human_time(12'300'000'000), "12.3 s");
  EXPECT_EQ(human_time(3'725'000'000'000), "1 h 2 min");
  EXPECT_EQ(human_time(200'000'000'000'000), "2 d 7 h");
  EXPECT_EQ(human_count(7), "7");
  EXPECT_EQ(human_count(1'234'567), "1,234,567");
  EXPECT_EQ(shape_text({64, 3}), "[64, 3]");
}

}  // namespace
}  // namespace cgx::ctl
