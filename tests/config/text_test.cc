#include "config/text.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace cgx::config {
namespace {

uint64_t parsed(std::string_view text, Quantity quantity) {
  const Result<uint64_t> value = parse_quantity(text, quantity);
  EXPECT_TRUE(value.ok()) << text << ": " << value.status().to_string();
  return value.ok() ? *value : UINT64_MAX;
}

TEST(Quantities, TakeAPlainNumberInTheirOwnUnit) {
  EXPECT_EQ(parsed("20", Quantity::kMicroseconds), 20u);
  EXPECT_EQ(parsed("500", Quantity::kMilliseconds), 500u);
  EXPECT_EQ(parsed("4096", Quantity::kBytes), 4096u);
  EXPECT_EQ(parsed("0", Quantity::kCount), 0u);
}

TEST(Quantities, TakeAnyUnitOfTheirKind) {
  EXPECT_EQ(parsed("4 MiB", Quantity::kBytes), 4u << 20);
  EXPECT_EQ(parsed("4MiB", Quantity::kBytes), 4u << 20);
  EXPECT_EQ(parsed("4 mib", Quantity::kBytes), 4u << 20);
  EXPECT_EQ(parsed("1 MB", Quantity::kBytes), 1'000'000u);
  EXPECT_EQ(parsed("1.5 s", Quantity::kMilliseconds), 1'500u);
  EXPECT_EQ(parsed("2 min", Quantity::kMilliseconds), 120'000u);
  EXPECT_EQ(parsed("20000 ns", Quantity::kMicroseconds), 20u);
}

TEST(Quantities, RefuseWhatIsNotOne) {
  for (const char* text : {"", "x", "-1", "1e3", "4 s", "4 MiB x", ".5", "1.", "1..2", "0x10", " 4",
                           "99999999999999999999", "18446744073709551616", "0.5 B"}) {
    EXPECT_FALSE(parse_quantity(text, Quantity::kBytes).ok()) << text;
  }
  EXPECT_FALSE(parse_quantity("1.5", Quantity::kCount).ok());
  EXPECT_FALSE(parse_quantity("1 B", Quantity::kCount).ok());
  EXPECT_FALSE(parse_quantity("10 ns", Quantity::kMicroseconds).ok());
  EXPECT_FALSE(parse_quantity("99999999999999999 TiB", Quantity::kBytes).ok());
}

TEST(Quantities, SayWhichUnitsThereAre) {
  const std::string message =
      parse_quantity("4 parsecs", Quantity::kMilliseconds).status().message();
  EXPECT_EQ(message, "\"4 parsecs\" is not a number with one of the units h min s ms us ns");
}

TEST(Quantities, PrintTheLargestUnitThatDivides) {
  EXPECT_EQ(print_quantity(4u << 20, Quantity::kBytes), "4 MiB");
  EXPECT_EQ(print_quantity((4u << 20) + 1, Quantity::kBytes), "4194305 B");
  EXPECT_EQ(print_quantity(90'000, Quantity::kMilliseconds), "90 s");
  EXPECT_EQ(print_quantity(20, Quantity::kMicroseconds), "20 us");
  EXPECT_EQ(print_quantity(0, Quantity::kMilliseconds), "0 ms");
  EXPECT_EQ(print_quantity(7, Quantity::kCount), "7");
}

TEST(Quantities, ReadBackWhatTheyPrint) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2'000; ++i) {
    const uint64_t value = (random() >> 8) >> (random() % 56);
    for (Quantity quantity :
         {Quantity::kCount, Quantity::kBytes, Quantity::kMicroseconds, Quantity::kMilliseconds}) {
      EXPECT_EQ(parsed(print_quantity(value, quantity), quantity), value);
    }
  }
}

TEST(PlainText, HoldsNothingThatATerminalTakesForACommand) {
  EXPECT_EQ(plain_text("\x1b[2J"), "?[2J");
  EXPECT_EQ(plain_text("\xc2\x9b"
                       "2J"),
            "??2J");
  EXPECT_EQ(plain_text("mod\xe8le"), "mod?le");
  EXPECT_EQ(plain_text("a\nb\x7f"), "a?b?");
  EXPECT_FALSE(is_plain_text("\xc2\x80"));
  EXPECT_TRUE(is_plain_text("\xc2\xa0mod\xc3\xa8le"));
  EXPECT_EQ(plain_lines("one\n\x1btwo\n\n"), "one\n?two\n\n");
}

TEST(Nearest, FindsATypoAndNothingElse) {
  constexpr std::array<std::string_view, 3> kKnown = {"window", "weight", "codec"};
  EXPECT_EQ(nearest("windw", kKnown), "window");
  EXPECT_EQ(nearest("Wieght", kKnown), "weight");
  EXPECT_EQ(nearest("codecs", kKnown), "codec");
  EXPECT_EQ(nearest("colour", kKnown), "");
  EXPECT_EQ(nearest("", kKnown), "");
}

}  // namespace
}  // namespace cgx::config
