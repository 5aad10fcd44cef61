#include "scheduler/communicator/commit_tables.h"

#include <gtest/gtest.h>

namespace cgx::scheduler {
namespace {

wire::TensorDescription described(const std::string& name, uint64_t elements, uint64_t offset) {
  wire::TensorDescription tensor;
  tensor.name = name;
  tensor.elements = elements;
  tensor.shape = {elements};
  tensor.home_offset = offset;
  return tensor;
}

RegisteredBy registered_by(uint32_t rank, uint64_t elements = 16) {
  RegisteredBy by{.rank = rank, .tensors = {}, .arena_bytes = {4096}};
  by.tensors.add({described("weight", 64, 0), described("bias", elements, 256)});
  by.tensors.add({described("scale", 1, 1024)});
  return by;
}

Members two_machines() {
  Members members;
  members.machine_of_rank = {0, 1, 1};
  members.lowest_rank = {0, 1};
  members.addresses.resize(2);
  members.devices.resize(2);
  return members;
}

TEST(CommitTables, AreOneForAllRanksInTheOrderOfRegistration) {
  const std::vector<RegisteredBy> ranks = {registered_by(0), registered_by(1)};
  const auto made = make_table(ranks);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  ASSERT_EQ(made->table->size(), 3u);
  EXPECT_EQ((*made->table)[1].name, "bias");
  EXPECT_EQ((*made->table)[2].name, "scale");
  EXPECT_EQ(made->encoded, encode_table(*made->table));
}

TEST(CommitTables, NameTheFirstDifferenceBetweenTwoRanks) {
  const std::vector<RegisteredBy> ranks = {registered_by(4), registered_by(5, 17)};
  const auto made = make_table(ranks);
  EXPECT_EQ(made.status().code(), StatusCode::kMISMATCH);
  EXPECT_EQ(made.status().message().find("tensor 1: rank 4 has bias fp32[16]"), 0u)
      << made.status().message();
}

TEST(CommitTables, RefuseAHomeThatIsNotInItsArena) {
  for (const uint64_t arena : {1024u, 1027u}) {
    RegisteredBy by = registered_by(3);
    by.arena_bytes = {arena};
    const auto made = make_table(std::vector{by});
    EXPECT_EQ(made.status().code(), StatusCode::kINVALID_ARGUMENT) << arena;
    EXPECT_NE(made.status().message().find("'scale' of rank 3"), std::string::npos)
        << made.status().message();
  }
  RegisteredBy none = registered_by(3);
  none.arena_bytes.clear();
  EXPECT_NE(make_table(std::vector{none}).status().message().find("its arena of 0 bytes"),
            std::string::npos);
}

TEST(CommitTables, RefuseTwoTensorsOfOneName) {
  RegisteredBy by = registered_by(3);
  by.tensors.add({described("bias", 1, 0)});
  const auto made = make_table(std::vector{by});
  EXPECT_EQ(made.status().code(), StatusCode::kINVALID_ARGUMENT);
  EXPECT_NE(made.status().message().find("rank 3 registers tensor 'bias' twice"), std::string::npos)
      << made.status().message();
}

TEST(CommitTables, KeepWhatWasRegisteredWhenTheyWereAskedFor) {
  RegisteredBy by = registered_by(0);
  const RegisteredBy asked = by;
  by.tensors.add({described("late", 1, 2048)});
  EXPECT_EQ(by.tensors.size(), 4u);
  EXPECT_EQ(make_table(std::vector{asked})->table->size(), 3u);
}

TEST(CommitTables, OfMachinesAreComparedByName) {
  const auto ours = make_table(std::vector{registered_by(0)});
  const auto theirs = make_table(std::vector{registered_by(1, 32)});
  const Members members = two_machines();
  const auto encoded = [](const std::vector<std::byte>& table) {
    return std::make_shared<const std::vector<std::byte>>(table);
  };
  const EncodedTable first = encoded(ours->encoded), other = encoded(theirs->encoded);
  EXPECT_TRUE(compare_tables(members, *ours->table, std::vector{first, first}).ok());
  EXPECT_TRUE(compare_tables(members, *ours->table, std::vector{first, encoded(*first)}).ok());
  const Status found = compare_tables(members, *ours->table, std::vector{first, other});
  EXPECT_EQ(found.code(), StatusCode::kMISMATCH);
  EXPECT_NE(found.message().find("rank 0 has bias fp32[16]"), std::string::npos);
  EXPECT_NE(found.message().find("ranks 1, 2 has bias fp32[32]"), std::string::npos)
      << found.message();
  std::vector<std::byte> cut = *first;
  cut.pop_back();
  const Status damaged = compare_tables(members, *ours->table, std::vector{first, encoded(cut)});
  EXPECT_EQ(damaged.code(), StatusCode::kPROTOCOL_ERROR);
  EXPECT_NE(damaged.message().find("machine 1"), std::string::npos) << damaged.message();
}

}  // namespace
}  // namespace cgx::scheduler
