#include "daemon/planner/profile_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/daemon/base/scratch_directory.h"

namespace cgx::daemon {
namespace {

using scheduler::KeptFor;
using scheduler::Policy;
using scheduler::Profile;
using scheduler::TensorTable;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Said final : scheduler::EventSink {
  void event(scheduler::EventLevel, std::string_view text) override { lines.emplace_back(text); }
  std::vector<std::string> lines;
};

const KeptFor kWhose{.uid = 0, .job = "bert", .communicator = "dp"};

struct ProfileFileTest : ::testing::Test {
  const TensorTable table = {{.name = "a", .elements = 5000}};
  bool knows(const ProfileFile& file, const KeptFor& whose) const {
    const auto found = file.profiles().find(whose, table, 2, Policy());
    return found.ok() && *found != nullptr;
  }
  Profile profile() const {
    return {
        .table_hash = table_hash(table),
        .machines = 2,
        .policy = {},
        .groups = {scheduler::Group{.segments = {{0, {.codec = 0, .bucket = 512}}}, .way = {}}}};
  }
  ScratchDirectory directory;
  const std::string path = directory.path() + "/kept_plans";
  Said said;
};

TEST_F(ProfileFileTest, KeepsPlansForTheNextDaemon) {
  {
    ProfileFile file(path, said);
    EXPECT_FALSE(knows(file, kWhose));
    file.kept(kWhose, profile());
    file.kept({0, "gpt", "dp"}, profile());
  }
  ProfileFile file(path, said);
  EXPECT_TRUE(knows(file, kWhose));
  EXPECT_TRUE(knows(file, {0, "gpt", "dp"}));
  EXPECT_THAT(said.lines, IsEmpty());
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_NE(::stat((path + ".new").c_str(), &found), 0) << "nothing is left beside it";
}

TEST_F(ProfileFileTest, LeavesADamagedFileOutAndSaysSoOnce) {
  std::ofstream(path) << "cgx-kept-plans 1\nsum 7\n";
  ProfileFile file(path, said);
  EXPECT_THAT(said.lines, ElementsAre(AllOf(HasSubstr(path), HasSubstr("are left out"),
                                            HasSubstr("its checksum differs"))));
  file.kept(kWhose, profile());
  EXPECT_TRUE(knows(ProfileFile(path, said), kWhose)) << "it is written anew";
  EXPECT_EQ(said.lines.size(), 1u);
}

// `cgxd run` twice at once, or beside a service of the same user.
TEST_F(ProfileFileTest, KeepsWhatOtherDaemonsHaveKeptThereMeanwhile) {
  ProfileFile one(path, said), two(path, said);
  one.kept(kWhose, profile());
  two.kept({0, "gpt", "dp"}, profile());
  {
    const ProfileFile third(path, said);
    EXPECT_TRUE(knows(third, kWhose));
    EXPECT_TRUE(knows(third, {0, "gpt", "dp"}));
  }
  one.forgotten({0, "gpt", "dp"});
  two.kept({0, "vit", "dp"}, profile());
  const ProfileFile fourth(path, said);
  EXPECT_TRUE(knows(fourth, kWhose));
  EXPECT_FALSE(knows(fourth, {0, "gpt", "dp"}));
  EXPECT_THAT(said.lines, IsEmpty());
}

TEST_F(ProfileFileTest, LeavesTheFileOfAnotherUserAsItIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  { ProfileFile(path, said).kept(kWhose, profile()); }
  constexpr uid_t kOther = 12345;
  ASSERT_EQ(::chown(path.c_str(), kOther, static_cast<gid_t>(-1)), 0);
  ProfileFile file(path, said);
  file.kept({0, "gpt", "dp"}, profile());
  EXPECT_THAT(said.lines, ElementsAre(HasSubstr("are left out: it is not a file of this user"),
                                      HasSubstr("plans are not kept in")));
  struct stat found {};
  ASSERT_EQ(::stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_uid, kOther);
}

TEST_F(ProfileFileTest, ReadsNoLinkAndNoFolder) {
  std::ofstream(path + ".elsewhere") << "";
  ASSERT_EQ(::symlink((path + ".elsewhere").c_str(), path.c_str()), 0);
  const ProfileFile link(path, said);
  const ProfileFile folder(directory.path(), said);
  EXPECT_THAT(said.lines, ElementsAre(HasSubstr("it cannot be opened"),
                                      HasSubstr("it is not a file of this user")));
}

TEST_F(ProfileFileTest, SaysOnceThatItCannotWrite) {
  ProfileFile file(directory.path() + "/nowhere/kept_plans", said);
  file.kept(kWhose, profile());
  file.kept(kWhose, profile());
  EXPECT_THAT(said.lines, ElementsAre(AllOf(HasSubstr("plans are not kept in"),
                                            HasSubstr("it cannot be made"))));
  EXPECT_TRUE(knows(file, kWhose)) << "it goes on without";
}

}  // namespace
}  // namespace cgx::daemon
