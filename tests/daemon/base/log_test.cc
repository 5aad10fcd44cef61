#include "daemon/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "daemon/operators/audit.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    reading_ = UniqueFd(ends[0]);
    writing_ = UniqueFd(ends[1]);
  }
  // Everything the log wrote, after it ended.
  std::string written() {
    std::string text(1 << 20, '\0');
    const ssize_t got = ::read(reading_.get(), text.data(), text.size());
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }
  std::string line_of(LogFormat format, std::string_view message,
                      std::initializer_list<LogField> fields) {
    Log(LogSettings{.format = format, .fd = writing_.get()})
        .write(LogLevel::kWarning, message, fields);
    return written();
  }
  UniqueFd reading_, writing_;
};

TEST_F(LogTest, WritesTextForPeople) {
  const std::string line = line_of(LogFormat::kText, "rank is late", {{"job", "a b"}, {"rank", 3}});
  EXPECT_THAT(line, MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{12}Z warning rank is late "
                                 "job=\"a b\" rank=3\n"));
}

TEST_F(LogTest, WritesJsonForMachines) {
  const std::string line =
      line_of(LogFormat::kJson, "a \"quote\"\n", {{"job", "\xff"}, {"rank", 3}});
  google::protobuf::Struct parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &parsed).ok()) << line;
  EXPECT_EQ(parsed.fields().at("message").string_value(), "a \"quote\"?");
  EXPECT_EQ(parsed.fields().at("level").string_value(), "warning");
  EXPECT_EQ(parsed.fields().at("job").string_value(), "?");
  EXPECT_EQ(parsed.fields().at("rank").number_value(), 3);
}

TEST_F(LogTest, KeepsAHostileNameOnItsLine) {
  const std::string line = line_of(LogFormat::kText, "x", {{"job", "a\n2026 error forged\x1b[2J"}});
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST_F(LogTest, CutsLinesThatAreTooLong) {
  for (LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = line_of(format, std::string(100'000, '\x01'), {});
    EXPECT_LE(line.size(), kLogLineBytes);
    EXPECT_EQ(line.back(), '\n');
  }
}

TEST_F(LogTest, LeavesOutWhatIsNotSevereEnough) {
  {
    Log log(LogSettings{.level = LogLevel::kWarning, .fd = writing_.get()});
    log.write(LogLevel::kInfo, "quiet");
    log.write(LogLevel::kError, "loud");
  }
  const std::string text = written();
  EXPECT_EQ(text.find("quiet"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("error loud"));
}

TEST_F(LogTest, TellsWhoChangedSomethingWhateverTheLevel) {
  {
    Log log(LogSettings{.level = LogLevel::kError, .fd = writing_.get()});
    const auto audit = AuditLog::open("", log);
    const AuditRecord record{.caller = "uid 7", .action = "drain", .result = {}};
    EXPECT_TRUE((*audit)->write(record).ok());
  }
  EXPECT_THAT(written(), HasSubstr("Z info audit caller=\"uid 7\" action=drain"));
}

TEST_F(LogTest, DropsAndCountsWhenNobodyReads) {
  const std::string line(1'000, 'x');
  Log log(LogSettings{.fd = writing_.get()});
  for (int i = 0; i < 2'000; ++i) log.write(LogLevel::kInfo, line);  // 2 MB into 64 KiB
  EXPECT_TRUE(eventually([&] { return log.dropped() > 1'900; }));
}

// A file that may grow no further, as on a full disk, cuts the line that it has no room for.
TEST(FullLogTest, BeginsANewLineOnceThereIsRoomAndCountsWhatIsLost) {
  OpenDirectory directory;
  const std::string path = directory / "log";
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  {
    Log log(LogSettings{.format = LogFormat::kJson, .fd = file.get()});
    log.write(LogLevel::kInfo, "whole");
    ASSERT_TRUE(eventually([&] { return read_file(path).ends_with('\n'); }));
    const rlimit more{.rlim_cur = read_file(path).size() + 20, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &more), 0);
    for (const uint64_t dropped : {1u, 2u}) {
      log.write(LogLevel::kInfo, "cut");
      EXPECT_TRUE(eventually([&] { return log.dropped() == dropped; }));
    }
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    log.write(LogLevel::kInfo, "whole");
    log.write(LogLevel::kInfo, "whole");
  }
  ::signal(SIGXFSZ, handler);
  std::ifstream written(path);
  std::string line;
  std::vector<std::string> read;
  while (std::getline(written, line)) {
    google::protobuf::Struct parsed;
    const bool whole = google::protobuf::util::JsonStringToMessage(line, &parsed).ok();
    read.push_back(whole ? parsed.fields().at("message").string_value() : "torn");
  }
  EXPECT_THAT(read, ElementsAre("whole", "torn", "whole", "whole"));
}

class AuditTest : public ::testing::Test {
 protected:
  AuditRecord record(const std::string& reason) {
    return {.caller = "uid 7",
            .action = "policy apply",
            .job = "j",
            .communicator = "c",
            .reason = reason,
            .result = Status(StatusCode::kBUSY, "later"),
            .policy_version = 2,
            .epoch = 3,
            .switch_step = 4,
            .changes = {"window: 4 -> 8"}};
  }
  OpenDirectory directory_;
  std::string path_ = directory_ / "audit";
  Log log_{LogSettings{.level = LogLevel::kError}};
};

TEST_F(AuditTest, WritesOneJsonLinePerAttempt) {
  auto audit = AuditLog::open(path_, log_);
  ASSERT_TRUE(audit.ok());
  EXPECT_TRUE((*audit)->make_room(true).ok());
  EXPECT_TRUE((*audit)->write(record("because \"so\"\n")).ok());
  const std::string text = read_file(path_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  google::protobuf::Struct parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &parsed).ok()) << text;
  EXPECT_EQ(parsed.fields().at("caller").string_value(), "uid 7");
  EXPECT_EQ(parsed.fields().at("result").string_value(), "BUSY");
  EXPECT_EQ(parsed.fields().at("switch_step").number_value(), 4);
  EXPECT_EQ(parsed.fields().at("changes").list_value().values(0).string_value(), "window: 4 -> 8");
}

TEST_F(AuditTest, SaysWhatItCouldNotWrite) {
  const auto audit = AuditLog::open(path_, log_);
  ASSERT_TRUE(audit.ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const Status status = (*audit)->write(record("x"));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kRESOURCE_EXHAUSTED);
  EXPECT_THAT(status.message(), HasSubstr(path_));
}

TEST_F(AuditTest, AppendsToAFileThatExists) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE((*AuditLog::open(path_, log_))->write(record("x")).ok());
  }
  const std::string text = read_file(path_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(AuditTest, IsReadableByItsOwnerAlone) {
  ASSERT_TRUE(AuditLog::open(path_, log_).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AuditTest, KeepsOneFileAndItsPredecessor) {
  auto audit = AuditLog::open(path_, log_, 1'000);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE((*audit)->write(record(std::to_string(i))).ok());
  EXPECT_LE(read_file(path_).size(), 1'000u);
  EXPECT_LE(read_file(path_ + ".1").size(), 1'000u);
  EXPECT_THAT(read_file(path_), HasSubstr("\"reason\":\"19\""));
}

TEST_F(AuditTest, WritesIntoTheFileThatHasTheNameNow) {
  const auto audit = AuditLog::open(path_, log_);
  const auto written = [&](const std::string& reason) {
    EXPECT_TRUE((*audit)->make_room(true).ok());
    EXPECT_TRUE((*audit)->write(record(reason)).ok());
    const std::string text = read_file(path_);
    return text.find(reason) != std::string::npos ? std::count(text.begin(), text.end(), '\n') : -1;
  };
  EXPECT_EQ(written("first"), 1);
  ASSERT_EQ(::rename(path_.c_str(), (path_ + ".old").c_str()), 0);
  EXPECT_EQ(written("second"), 1);
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  EXPECT_EQ(written("third"), 1);
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  EXPECT_THAT((*audit)->make_room(true).message(),
              HasSubstr("cannot open the audit file " + path_));
  EXPECT_THAT(read_file(path_ + ".old"), Not(HasSubstr("second")));
}

TEST_F(AuditTest, KnowsTheLengthOfAFileThatSomebodyEmptied) {
  auto audit = AuditLog::open(path_, log_, 1'000);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE((*audit)->write(record("before")).ok());
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE((*audit)->write(record("after")).ok());
  const std::string text = read_file(path_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_NE(::access((path_ + ".1").c_str(), F_OK), 0);
}

// However much users write, operators' records stay; and no words are long enough to fill a file.
TEST_F(AuditTest, UsersFillAFileOfTheirOwn) {
  auto audit = AuditLog::open(path_, log_, 100'000);
  EXPECT_TRUE((*audit)->write(record("by an operator")).ok());
  AuditRecord theirs = record(std::string(1 << 20, '"'));
  theirs.of_operator = false;
  theirs.job = theirs.communicator = theirs.reason;
  theirs.changes.assign(1000, std::string(100, 'x'));
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE((*audit)->make_room(false).ok());
    EXPECT_TRUE((*audit)->write(theirs).ok());
  }
  const std::string operators = read_file(path_);
  EXPECT_EQ(std::count(operators.begin(), operators.end(), '\n'), 1);
  EXPECT_THAT(operators, HasSubstr("by an operator"));
  const std::string users = read_file(path_ + ".users.1");
  EXPECT_LE(users.size(), 100'000u);
  EXPECT_GE(std::count(users.begin(), users.end(), '\n'), 2);
  EXPECT_THAT(users, HasSubstr("(1048320 bytes more)"));
  EXPECT_THAT(users, HasSubstr("changes more\"]"));
}

TEST_F(AuditTest, GrowsWhereItCannotBeginAnew) {
  ASSERT_EQ(::mkdir((path_ + ".1").c_str(), 0700), 0);
  auto audit = AuditLog::open(path_, log_, 1'000);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE((*audit)->write(record(std::to_string(i))).ok());
  EXPECT_THAT(read_file(path_), HasSubstr("\"reason\":\"0\""));
  EXPECT_THAT(read_file(path_), HasSubstr("\"reason\":\"19\""));
}

TEST_F(AuditTest, SaysWhyTheFileCannotBeOpened) {
  const auto audit = AuditLog::open("/nonexistent/audit", log_);
  EXPECT_THAT(audit.status().message(), HasSubstr("cannot open the audit file /nonexistent/audit"));
}

TEST_F(AuditTest, SaysAtOnceThatTheUsersFileCannotBeOpened) {
  ASSERT_EQ(::mkdir((path_ + ".users").c_str(), 0700), 0);
  const auto audit = AuditLog::open(path_, log_);
  EXPECT_THAT(audit.status().message(),
              HasSubstr("cannot open the audit file " + path_ + ".users"));
}

}  // namespace
}  // namespace cgx::daemon
