#include "daemon/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <regex>
#include <set>
#include <sstream>

#include "daemon/concealed.h"
#include "daemon/metrics_server.h"
#include "daemon/status_page.h"
#include "tests/daemon/control_harness.h"

namespace cgx::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const DaemonFacts kFacts{"0.1.0", "node1", "scalar"};

TEST(Metrics, NameTotalsAndUnits) {
  const std::string text = metrics_text(two_users(), kFacts, 7);
  EXPECT_THAT(text, HasSubstr("# TYPE cgxd_gradient_bytes_total counter\n"
                              "cgxd_gradient_bytes_total 8388608\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_log_dropped_total 7\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_uptime_seconds 3725\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_data_thread_busy_seconds_total 372.5\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_data_thread_cpu_seconds_total 400\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_data_thread_longest_round_seconds 0.0015\n"));
  EXPECT_THAT(text,
              HasSubstr("cgxd_build_info{version=\"0.1.0\",lane=\"scalar\",instance=\"node1\"} 1"));
  EXPECT_THAT(text, HasSubstr("cgxd_communicator_late_seconds{job=\"resnet\",uid=\"1000\","
                              "communicator=\"dp\"} 12.3"));
  EXPECT_THAT(text,
              HasSubstr("cgxd_peer_up{job=\"bert\",uid=\"2000\",peer=\"node3\",machine=\"1\"} 0"));
}

TEST(Metrics, TellJobsApartWithoutTheirNames) {
  Snapshot snapshot = two_users();
  conceal(snapshot);
  for (const std::string& text :
       {metrics_text(snapshot, kFacts, 0), status_page(snapshot, kFacts)}) {
    EXPECT_THAT(text, Not(HasSubstr("resnet")));
    EXPECT_THAT(text, Not(HasSubstr("bert")));
    EXPECT_THAT(text, HasSubstr("job-"));
  }
}

TEST(Metrics, FollowTheNamingRules) {
  std::istringstream lines(metrics_text(two_users(), kFacts, 0));
  const std::regex type("# TYPE (cgxd_[a-z_]+) (counter|gauge)");
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, match, type)) continue;
    EXPECT_EQ(match[1].str().ends_with("_total"), match[2] == "counter") << line;
  }
}

TEST(Metrics, SumWhatIsSentByCodec) {
  Snapshot snapshot = two_users();
  auto& tensors = snapshot.communicators[0].tensors;
  tensors.resize(3, tensors[0]);
  tensors[0].intended_sq = 6.0;
  tensors[0].sent_sq = 3.0;
  tensors[1].intended_sq = 2.0;
  tensors[1].sent_sq = 1.0;
  EXPECT_THAT(
      metrics_text(snapshot, kFacts, 0),
      HasSubstr("cgxd_communicator_sent_share{job=\"resnet\",uid=\"1000\",communicator=\"dp\","
                "codec=\"maxmin:4,bucket=512,stochastic\"} 0.5"));
}

TEST(Metrics, NeverRepeatASeries) {
  Snapshot snapshot = two_users();
  snapshot.communicators.push_back(snapshot.communicators[0]);
  snapshot.peers.push_back(snapshot.peers[0]);
  std::istringstream lines(metrics_text(snapshot, kFacts, 0));
  std::set<std::string> series;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
}

TEST(Metrics, EscapeHostileNames) {
  Snapshot snapshot = two_users();
  snapshot.communicators[0].job = "a\"} 1\ncgxd_forged 1";
  const std::string text = metrics_text(snapshot, kFacts, 0);
  EXPECT_THAT(text, Not(HasSubstr("\ncgxd_forged")));
}

TEST(StatusPage, ShowsJobsAndEscapesThem) {
  Snapshot snapshot = two_users();
  snapshot.communicators[0].job = "<script>alert(1)</script>";
  snapshot.communicators[0].error = "rank 3 & co";
  const std::string page = status_page(snapshot, kFacts);
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("rank 3 &amp; co; late: rank 3 12.3 s"));
  EXPECT_THAT(page, HasSubstr("bert"));
}

class MetricsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    port_.show(two_users());
    MetricsOptions options;
    options.job_names = true;
    options.facts = kFacts;
    options.log_dropped = [] { return uint64_t{0}; };
    options.on_junk = [this] { junk_.fetch_add(1); };
    auto created = MetricsServer::create(options, port_);
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    server_ = *std::move(created);
  }
  httplib::Client client() { return httplib::Client("127.0.0.1", server_->port()); }

  FakeOperatorPort port_;
  std::atomic<int> junk_{0};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AnswersItsThreePagesAndNothingElse) {
  auto http = client();
  EXPECT_THAT(http.Get("/metrics")->body, HasSubstr("cgxd_sessions 2"));
  EXPECT_THAT(http.Get("/")->body, HasSubstr("<h1>cgxd 0.1.0"));
  EXPECT_EQ(http.Get("/healthz")->body, "ok\n");
  EXPECT_EQ(http.Get("/policy")->status, 404);
  EXPECT_EQ(http.Post("/metrics")->status, 404);
}

TEST_F(MetricsServerTest, SaysWhenTheEngineDoesNotAnswer) {
  port_.fail(Status(StatusCode::kTIMED_OUT, "the engine is stuck"));
  auto http = client();
  EXPECT_EQ(http.Get("/healthz")->status, 503);
  EXPECT_THAT(http.Get("/metrics")->body, HasSubstr("the engine is stuck"));
}

TEST_F(MetricsServerTest, CountsGarbage) {
  const UniqueFd fd = connect_tcp(server_->port());
  ASSERT_GT(::send(fd.get(), "\x01\x02garbage\r\n\r\n", 13, MSG_NOSIGNAL), 0);
  EXPECT_TRUE(eventually([&] { return junk_ == 1; }));
  EXPECT_EQ(client().Get("/healthz")->status, 200);
}

TEST_F(MetricsServerTest, RefusesAPortThatIsTaken) {
  MetricsOptions options;
  options.port = server_->port();
  options.log_dropped = [] { return uint64_t{0}; };
  options.on_junk = [] {};
  const auto second = MetricsServer::create(options, port_);
  EXPECT_EQ(second.status().message(),
            "metrics: cannot listen on 127.0.0.1:" + std::to_string(server_->port()));
}

}  // namespace
}  // namespace cgx::daemon
