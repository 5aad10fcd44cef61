#include "daemon/operators/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <regex>
#include <set>
#include <sstream>

#include "daemon/operators/concealed.h"
#include "daemon/operators/metrics_server.h"
#include "daemon/operators/status_json.h"
#include "daemon/operators/watch.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::daemon {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const DaemonFacts kFacts{"0.1.0", "node1", "scalar"};

TEST(Metrics, NameTotalsAndUnits) {
  const std::string text = metrics_text(two_users(), {}, kFacts, 7);
  EXPECT_THAT(text, HasSubstr("# TYPE cgxd_gradient_bytes_total counter\n"
                              "cgxd_gradient_bytes_total 8388608\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_log_dropped_total 7\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_uptime_seconds 3725\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_data_thread_busy_seconds_total 372.5\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_data_thread_cpu_seconds_total 400\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_data_thread_longest_round_seconds 0.0015\n"));
  EXPECT_THAT(text,
              HasSubstr("cgxd_build_info{version=\"0.1.0\",lane=\"scalar\",cgx_host=\"node1\"} 1"));
  EXPECT_THAT(text, HasSubstr("cgxd_communicator_late_seconds{cgx_job=\"resnet\",uid=\"1000\","
                              "communicator=\"dp\"} 12.3"));
  EXPECT_THAT(
      text,
      HasSubstr("cgxd_peer_up{cgx_job=\"bert\",uid=\"2000\",peer=\"node3\",machine=\"1\"} 0"));
}

TEST(Metrics, TellWhatTrialsHaveCost) {
  Snapshot snapshot = two_users();
  snapshot.communicators[0].trial_time = {
      .spent_ns = 1'500'000'000, .allowed_ns = 2'500'000'000, .elapsed_ns = 1'000'000'000};
  const std::string text = metrics_text(snapshot, {}, kFacts, 0);
  EXPECT_THAT(text, ContainsRegex("cgxd_communicator_trials_cost_seconds[^\n]* 1.5\n"));
  EXPECT_THAT(text, ContainsRegex("cgxd_communicator_trials_allowed_seconds[^\n]* 2.5\n"));
}

TEST(Metrics, ShowFiguresOfACommunicatorInTheirUnits) {
  const std::string text = metrics_text(two_users(), {}, kFacts, 0);
  const std::string whose = "{cgx_job=\"resnet\",uid=\"1000\",communicator=\"dp\"} ";
  EXPECT_THAT(text, HasSubstr("# TYPE cgxd_communicator_step gauge\ncgxd_communicator_step" +
                              whose + "1199\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE cgxd_communicator_exchange_seconds_total counter\n"
                              "cgxd_communicator_exchange_seconds_total" +
                              whose + "0.05\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_communicator_wire_sent_bytes_total" + whose + "1048576\n"));
  EXPECT_THAT(text, HasSubstr("cgxd_communicator_reserved_bytes" + whose + "3145728\n"));
}

TEST(Metrics, TellJobsApartWithoutTheirNames) {
  Snapshot snapshot = two_users();
  conceal(snapshot);
  const std::string text = metrics_text(snapshot, {}, kFacts, 0);
  EXPECT_THAT(text, Not(HasSubstr("resnet")));
  EXPECT_THAT(text, Not(HasSubstr("bert")));
  EXPECT_THAT(text, HasSubstr("job-"));
}

TEST(Metrics, FollowTheNamingRules) {
  std::istringstream lines(metrics_text(two_users(), {}, kFacts, 0));
  const std::regex type("# TYPE (cgxd_[a-z_]+) (counter|gauge|histogram)");
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
      metrics_text(snapshot, {}, kFacts, 0),
      HasSubstr("cgxd_communicator_sent_share{cgx_job=\"resnet\",uid=\"1000\",communicator=\"dp\","
                "codec=\"maxmin:4,bucket=512,stochastic\"} 0.5"));
}

TEST(Metrics, NeverRepeatASeries) {
  Snapshot snapshot = two_users();
  snapshot.communicators.push_back(snapshot.communicators[0]);
  snapshot.peers.push_back(snapshot.peers[0]);
  std::istringstream lines(metrics_text(snapshot, {}, kFacts, 0));
  std::set<std::string> series;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
}

TEST(Metrics, EscapeHostileNames) {
  Snapshot snapshot = two_users();
  snapshot.communicators[0].job = "a\"} 1\ncgxd_forged 1";
  const std::string text = metrics_text(snapshot, {}, kFacts, 0);
  EXPECT_THAT(text, Not(HasSubstr("\ncgxd_forged")));
}

TEST(Metrics, ShowHowLongPhasesTakeAsHistograms) {
  Snapshot snapshot = two_users();
  snapshot.communicators.resize(1);
  snapshot.communicators[0].index = 3;
  snapshot.communicators[0].created_ns = 100;
  Tally tally;
  using scheduler::EventKind;
  tally.take({.time_ns = 100, .kind = EventKind::kmade, .communicator = 3});
  tally.take({.time_ns = 200, .kind = EventKind::kencode, .communicator = 3, .b = 50'000});
  tally.take({.time_ns = 200, .kind = EventKind::kencode, .communicator = 3, .b = 20'000'000'000});
  const std::string text = metrics_text(snapshot, tally, kFacts, 0);
  const std::string labels = "cgx_job=\"resnet\",uid=\"1000\",communicator=\"dp\"";
  const std::string name = "cgxd_communicator_encode_seconds";
  EXPECT_THAT(text, HasSubstr("# TYPE " + name + " histogram\n"));
  EXPECT_THAT(text, HasSubstr(name + "_count{" + labels + "} 2\n"));
  EXPECT_THAT(text, HasSubstr(name + "_sum{" + labels + "} 20.00005\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{" + labels + ",le=\"4e-05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{" + labels + ",le=\"0.00016\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(name + "_bucket{" + labels + ",le=\"+Inf\"} 2\n"));
}

TEST(Metrics, ShowNoPhasesOfAnotherCommunicatorOfThatIndex) {
  Snapshot snapshot = two_users();
  snapshot.communicators.resize(1);
  snapshot.communicators[0].created_ns = 200;
  Tally tally;
  tally.take({.time_ns = 100, .kind = scheduler::EventKind::kmade});
  EXPECT_THAT(metrics_text(snapshot, tally, kFacts, 0), Not(HasSubstr("encode_seconds_count")));
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

TEST_F(MetricsServerTest, AnswersItsPagesAndNothingElse) {
  auto http = client();
  EXPECT_THAT(http.Get("/metrics")->body, HasSubstr("cgxd_sessions 2"));
  EXPECT_THAT(http.Get("/")->body, HasSubstr("<script src=\"page.js\">"));
  EXPECT_THAT(http.Get("/page.js")->body, HasSubstr("status.json"));
  EXPECT_THAT(http.Get("/")->get_header_value("Content-Security-Policy"),
              HasSubstr("default-src 'none'"));
  EXPECT_EQ(http.Get("/healthz")->body, "ok\n");
  EXPECT_EQ(http.Get("/policy")->status, 404);
  EXPECT_EQ(http.Post("/metrics")->status, 405);
  const auto head = http.Head("/healthz");
  EXPECT_EQ(head->get_header_value("Content-Length"), "3");
  EXPECT_EQ(head->body, "");
}

TEST_F(MetricsServerTest, ServesBesideHalfRequestsAndReadersThatDoNotRead) {
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.push_back(connect_tcp(server_->port()));
    const std::string said = i % 2 == 0 ? "GET /metr" : "GET /page.js HTTP/1.1\r\n\r\n";
    ::send(crowd.back().get(), said.data(), said.size(), MSG_NOSIGNAL);  // it may have gone already
  }
  auto http = client();
  http.set_read_timeout(5);
  for (int i = 0; i < 3; ++i) {
    const auto answer = http.Get("/healthz");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->body, "ok\n");
  }
}

TEST_F(MetricsServerTest, GivesThePageWhatItDraws) {
  Snapshot snapshot = two_users();
  snapshot.communicators[0].job = "<script>alert(\"1\")</script>\n";
  port_.show(snapshot);
  const std::string json = client().Get("/status.json")->body;
  EXPECT_THAT(json, HasSubstr("\"job\":\"<script>alert(\\\"1\\\")</script>?\""));
  EXPECT_THAT(json, HasSubstr("\"late_ms\":12300"));
  EXPECT_THAT(json, HasSubstr("\"machine\":\"node1\""));
  EXPECT_THAT(json, HasSubstr("\"name\":\"node3\""));
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
  EXPECT_THAT(second.status().message(), HasSubstr("metrics.port: cannot listen on 127.0.0.1:" +
                                                   std::to_string(server_->port())));
}

// Two communicators of a job on the same two machines.
Snapshot with_links(uint64_t sent) {
  Snapshot snapshot = two_users();
  snapshot.peers = {snapshot.peers[0], snapshot.peers[0]};
  snapshot.peers[0].name = "dp/1";
  snapshot.peers[0].bytes_sent = 1'000'000'000'000 + sent;
  snapshot.peers[1].name = "tp/1";
  snapshot.peers[1].bytes_sent = sent;
  return snapshot;
}

TEST(Watch, TakesTheTrafficOfEachCommunicatorForItsOwn) {
  FakeOperatorPort port;
  port.show(with_links(0));
  Watch watch(port, /*job_names=*/true);
  const auto links = [&](auto use) {
    return watch.look([&](const Tally&, const auto&, const auto& all, bool) { return use(all); });
  };
  ASSERT_TRUE(eventually([&] { return links([](const auto& all) { return !all.empty(); }); }));
  port.show(with_links(1'000'000));
  const auto busiest = [](const Watch::LinkPast& past) {
    double most = 0;
    for (const Watch::LinkSample& each : past.samples) most = std::max(most, each.out_rate);
    return most;
  };
  ASSERT_TRUE(eventually(
      [&] { return links([&](const auto& all) { return busiest(all.begin()->second) > 0; }); }));
  links([&](const auto& all) {
    EXPECT_EQ(all.size(), 2u);
    for (const auto& [key, past] : all) {
      EXPECT_GT(busiest(past), 0);
      EXPECT_LE(busiest(past), 1.1e6) << "a look is made once a second";
    }
    return true;
  });
}

}  // namespace
}  // namespace cgx::daemon
