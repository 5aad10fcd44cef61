// The sample file and the reference are generated. After a change of a .proto file run this test
// once with CGX_UPDATE_GENERATED=1 and commit what it wrote.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>

#include "config/config.h"
#include "proto/messages/config.pb.h"

namespace cgx::config {
namespace {

using ::testing::HasSubstr;

void expect_committed(const std::string& name, const std::string& text) {
  const std::string path = std::string(CGX_SOURCE_DIR) + "/config/" + name;
  if (std::getenv("CGX_UPDATE_GENERATED") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  const std::string committed{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(committed, text) << name
                             << " is out of date: run this test with CGX_UPDATE_GENERATED=1";
}

const char kReferenceHead[] =
    "# Every key of cgxd's configuration\n\n"
    "Generated from `proto/messages/config.proto`; do not edit. A plain number counts in the unit "
    "its\n"
    "key ends in; another unit may be written out (`4 MiB`, `1.5 s`). A policy file of `cgxctl "
    "policy\n"
    "apply` holds the keys of the section `policy`. A running daemon takes over the keys marked\n"
    "yes under `reload` when it gets SIGHUP (`systemctl reload cgxd`); the others need a\n"
    "restart.\n";
const char kSampleHead[] =
    "# A configuration of cgxd with every key at its default. Generated; remove the # before a "
    "key\n"
    "# (and before the section it is in) to change it.\n\n";

TEST(Reference, IsCommittedAsGenerated) {
  expect_committed("REFERENCE.md", kReferenceHead + reference_markdown(v1::Config()));
}

TEST(Sample, IsCommittedAsGenerated) {
  expect_committed("cgxd.sample.yaml", kSampleHead + sample(v1::Config()));
}

TEST(Sample, SaysNothingButTheDefaults) {
  const std::string uncommented =
      std::regex_replace(sample(v1::Config()), std::regex("(^|\n)# ?"), "$1");
  v1::Config loaded, defaults;
  const Status status = load_text(uncommented, "sample", Checks{}, loaded);
  ASSERT_TRUE(status.ok()) << status.to_string();
  fill_defaults(defaults);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(loaded, defaults)) << uncommented;
}

TEST(Help, NamesEveryKeyWithItsRangeAndDefault) {
  const std::string text = help_text(v1::Config());
  EXPECT_THAT(text, HasSubstr("\ntransport: the data path between daemons\n"));
  EXPECT_THAT(text, HasSubstr("  segment_bytes        largest frame that travels in one piece; the "
                              "same on every machine\n"
                              "                       (16 KiB to 16 MiB; default 256 KiB)\n"));
}

}  // namespace
}  // namespace cgx::config
