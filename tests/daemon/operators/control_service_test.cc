#include "daemon/operators/control_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "daemon/base/clock.h"
#include "daemon/base/openssl_state.h"
#include "daemon/operators/user_servers.h"
#include "proto/messages/control.grpc.pb.h"
#include "tests/daemon/operators/control_harness.h"

namespace cgx::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// As in main, where it comes first, too.
[[maybe_unused]] const bool kKept = (keep_openssl_state(), true);

class ControlServiceTest : public ::testing::Test {
 protected:
  std::shared_ptr<grpc::Channel> channel() {
    return grpc::CreateChannel("unix:" + harness_.socket_path(),
                               grpc::InsecureChannelCredentials());
  }
  v1::ChangePolicyRequest wish(const std::string& codec) {
    v1::ChangePolicyRequest request;
    request.mutable_target()->set_job("bert");
    request.mutable_policy()->set_codec(codec);
    return request;
  }
  // Bytes in, first message of bytes out, for services whose code is not generated here.
  std::string raw_call(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(channel());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    grpc::CompletionQueue queue;
    const auto wait = [&] {
      void* tag;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    auto call = stub.PrepareCall(&context, method, &queue);
    call->StartCall(nullptr);
    grpc::Slice slice(request);
    grpc::ByteBuffer answer;
    if (!wait()) return "not started";
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    if (!wait()) return "not written";
    call->Read(&answer, nullptr);
    if (!wait()) return "not answered";
    grpc::Slice bytes;
    EXPECT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
    context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
  }

  ControlHarness harness_;
  std::unique_ptr<v1::Control::Stub> stub_ = v1::Control::NewStub(channel());
  grpc::ClientContext context_;
};

TEST_F(ControlServiceTest, KnowsWhoCalls) {
  v1::DaemonStatus status;
  const grpc::Status result = stub_->GetStatus(&context_, {}, &status);
  ASSERT_TRUE(result.ok()) << result.error_message();
  EXPECT_EQ(status.role(), "operator");  // the test runs as the daemon's user
  EXPECT_EQ(status.instance(), "node1");
}

TEST_F(ControlServiceTest, AppliesAPolicyAndAnswersItsStep) {
  v1::PolicyChange change;
  const grpc::Status result = stub_->ApplyPolicy(&context_, wish("maxmin:8,bucket=512"), &change);
  ASSERT_TRUE(result.ok()) << result.error_message();
  EXPECT_EQ(change.switch_step(), 1201u);
  EXPECT_EQ(change.differences(0).key(), "codec");
  EXPECT_EQ(change.differences(0).to(), "maxmin:8,bucket=512");
  ASSERT_EQ(harness_.port.changes().size(), 1u);
  const FakeOperatorPort::Change asked = harness_.port.changes()[0];
  EXPECT_EQ(asked.target.job, "bert");
  EXPECT_EQ(asked.target.communicator, "dp");
  EXPECT_EQ(asked.target.uid, 2000u);
  EXPECT_EQ(asked.policy.default_codec.bits, 8);
  EXPECT_FALSE(asked.dry_run);
}

TEST_F(ControlServiceTest, PricesATensorsChoice) {
  scheduler::Explanation priced{.measured_ns = 5e6, .others = {}, .by_default = true};
  priced.chosen = {.step_ns = 4.9e6, .daemon_ns = 1e6, .sent_bytes = 4096};
  priced.others = {{.codec = {.codec = 3, .bits = 8, .bucket = 512}, .step_ns = 5.5e6}};
  harness_.port.price(priced, {});
  v1::ExplainTensorRequest request;
  request.mutable_target()->set_job("bert");
  request.set_tensor("layer.0.weight");
  const auto explain = [&](v1::TensorExplanation& answer) {
    grpc::ClientContext context;
    return stub_->ExplainTensor(&context, request, &answer);
  };
  v1::TensorExplanation answer;
  ASSERT_TRUE(explain(answer).ok());
  EXPECT_EQ(answer.tensor().name(), "layer.0.weight");
  EXPECT_EQ(answer.measured_ns(), 5'000'000u);
  EXPECT_EQ(answer.chosen().codec(), "fp32");
  EXPECT_EQ(answer.chosen().step_ns(), 4'900'000u);
  ASSERT_EQ(answer.others_size(), 1);
  EXPECT_THAT(answer.others(0).codec(), HasSubstr("maxmin:8"));
  EXPECT_TRUE(answer.by_default());

  harness_.port.price_nothing({StatusCode::kUNAVAILABLE, "node0 coordinates; ask there"});
  v1::TensorExplanation unpriced;
  ASSERT_TRUE(explain(unpriced).ok()) << "why it travels so is known all the same";
  EXPECT_EQ(unpriced.unpriced(), "node0 coordinates; ask there");
  EXPECT_FALSE(unpriced.has_chosen());

  request.set_tensor("layer.9");
  EXPECT_EQ(explain(unpriced).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ControlServiceTest, ShowsWhatWasMeasuredOfAJob) {
  const CodecSpec eight{.codec = 3, .bits = 8, .bucket = 512};
  const auto table = std::make_shared<const scheduler::TensorTable>(scheduler::TensorTable{
      {.name = "a", .dtype = DType::kBF16, .elements = 12, .shape = {3, 4}}, {.name = "b"}});
  scheduler::JobProfile profile{.menu = {eight}, .tensors = table};
  profile.step.step_ns = 5e6;
  profile.step.period_ns = 7e6;
  profile.step.busy_ns = 3e6;
  profile.step.arrival_ns = {2e6f, 0};
  profile.fit.conditions.link = {.ns_per_byte = 8, .trip_ns = 40e3};
  profile.fit.conditions.costs.codecs = {{eight, {0, 0.5}, {0, 0.25}}};
  profile.fit.conditions.costs.frame_ns = 3e3;
  profile.others_seen = 1;
  profile.others_heard = 2;
  profile.left_out = "machine 3: has gone";
  harness_.port.profiled(profile);
  v1::GetJobProfileRequest request;
  request.mutable_target()->set_job("bert");
  v1::JobProfile answer;
  const grpc::Status status = stub_->GetJobProfile(&context_, request, &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answer.job() + "/" + answer.communicator(), "bert/dp");
  EXPECT_EQ(answer.step_ns(), 5'000'000u);
  EXPECT_EQ(answer.period_ns(), 7'000'000u);
  EXPECT_EQ(answer.link_bits_per_second(), 1e9);
  EXPECT_EQ(answer.trip_ns(), 40'000u);
  EXPECT_EQ(answer.frame_ns(), 3'000u);
  EXPECT_EQ(answer.others_seen(), 1u);
  EXPECT_EQ(answer.machines_heard(), 2u);
  EXPECT_EQ(answer.left_out(), "machine 3: has gone");
  ASSERT_EQ(answer.codecs_size(), 1);
  EXPECT_THAT(answer.codecs(0).codec(), HasSubstr("maxmin:8"));
  EXPECT_EQ(answer.codecs(0).decode_ns_per_byte(), 0.25);
  ASSERT_EQ(answer.tensors_size(), 2);
  EXPECT_EQ(answer.tensors(0).after_ns(), 2'000'000u);
  EXPECT_EQ(answer.tensors(0).elements(), 12u);
  EXPECT_THAT(answer.tensors(0).shape(), ::testing::ElementsAre(3u, 4u));
  EXPECT_EQ(answer.tensors(0).dtype(), "bf16");

  harness_.port.profiled(Status(StatusCode::kUNAVAILABLE, "node0 coordinates; ask there"));
  grpc::ClientContext again;
  EXPECT_EQ(stub_->GetJobProfile(&again, request, &answer).error_message(),
            "UNAVAILABLE: node0 coordinates; ask there");
}

TEST_F(ControlServiceTest, SimulatesARunningJobUnderAnotherPolicy) {
  harness_.port.price({}, {.measured_ns = 5e6, .step_ns = 9e6, .sent_bytes = 77});
  v1::SimulatePlanRequest request;
  request.mutable_target()->set_job("bert");
  request.mutable_policy()->set_codec("maxmin:8");
  request.set_machines(1024);
  const auto simulate = [&](v1::SimulatedPlan& answer) {
    grpc::ClientContext context;
    return stub_->SimulatePlan(&context, request, &answer);
  };
  v1::SimulatedPlan answer;
  ASSERT_TRUE(simulate(answer).ok());
  EXPECT_EQ(answer.machines(), 1024u);
  EXPECT_EQ(answer.step_ns(), 9'000'000u);
  EXPECT_THAT(answer.plan(), HasSubstr("maxmin:8"));
  EXPECT_THAT(answer.plan(), HasSubstr("on 1024"));

  request.set_machines(1);
  const grpc::Status alone = simulate(answer);
  EXPECT_EQ(alone.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(alone.error_message(), HasSubstr("between 2 and 4096"));
  request.set_machines(2);
  request.mutable_policy()->set_codec("maxmin:99");
  EXPECT_THAT(simulate(answer).error_message(), HasSubstr("not 99"));
}

TEST_F(ControlServiceTest, AuditsChangesGrantedOrNot) {
  v1::PolicyChange change;
  v1::ChangePolicyRequest request = wish("maxmin:8");
  request.set_reason("loss is fine");
  ASSERT_TRUE(stub_->ApplyPolicy(&context_, request, &change).ok());
  grpc::ClientContext second;
  EXPECT_FALSE(stub_->ApplyPolicy(&second, wish("nonsense"), &change).ok());
  const std::string audit = read_file(harness_.audit_path());
  EXPECT_THAT(audit, HasSubstr("\"reason\":\"loss is fine\",\"result\":\"OK\""));
  EXPECT_THAT(audit, HasSubstr("\"switch_step\":1201"));
  EXPECT_THAT(audit, HasSubstr("\"result\":\"INVALID_ARGUMENT\""));
}

TEST_F(ControlServiceTest, DrainsOnceThatIsWrittenDown) {
  v1::DrainRequest request;
  request.set_reason("new kernel");
  v1::DrainAnswer answer;
  harness_.drain_looks = 3;
  harness_.left = {"communicator 'grads' of job 'a' in step 7"};
  ASSERT_TRUE(stub_->Drain(&context_, request, &answer).ok());
  EXPECT_EQ(harness_.stops, 1);
  EXPECT_EQ(harness_.looks, 4) << "answered when it is known";
  EXPECT_TRUE(answer.drained());
  ASSERT_EQ(answer.cut_off_size(), 1);
  EXPECT_EQ(answer.cut_off(0), harness_.left[0]);
  EXPECT_THAT(read_file(harness_.audit_path()), HasSubstr("\"reason\":\"new kernel\""));
}

TEST_F(ControlServiceTest, NamesWhatADrainCutOffInPlainText) {
  harness_.left = {"job '\x1b[2J'", "job 'mod\xe8le'"};
  v1::DrainAnswer answer;
  const grpc::Status status = stub_->Drain(&context_, {}, &answer);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(answer.cut_off_size(), 2);
  EXPECT_EQ(answer.cut_off(0), "job '?[2J'");
  EXPECT_EQ(answer.cut_off(1), "job 'mod?le'");
}

TEST_F(ControlServiceTest, WarnsOfADrainThatIsUnderWayInPlainText) {
  v1::DaemonStatus status;
  ASSERT_TRUE(stub_->GetStatus(&context_, {}, &status).ok());
  const int before = status.warnings_size();
  const uint64_t now_ns = monotonic_ns();
  harness_.drains = Draining{.why = "drain by uid 0: new\x1b kernel",
                             .begun_ns = now_ns - 12 * kSecond,
                             .end_ns = now_ns + 3600 * kSecond};
  grpc::ClientContext second;
  ASSERT_TRUE(stub_->GetStatus(&second, {}, &status).ok());
  ASSERT_EQ(status.warnings_size(), before + 1);
  EXPECT_THAT(status.warnings(before),
              MatchesRegex("the daemon has been stopping for [0-9]+ s \\(drain by uid 0: new. "
                           "kernel\\); what has not left in 3[0-9]+ s is cut off"));
}

TEST_F(ControlServiceTest, SaysThatItStillDrainsWhenTheCallerWaitsNoLonger) {
  v1::DrainRequest request;
  request.set_wait_ms(0);
  v1::DrainAnswer answer;
  harness_.drain_looks = 1000;
  ASSERT_TRUE(stub_->Drain(&context_, request, &answer).ok());
  EXPECT_EQ(harness_.stops, 1);
  EXPECT_FALSE(answer.drained());
}

TEST(ControlAuditTest, ADrainThatCannotBeWrittenDownStopsNothing) {
  ControlHarness harness({}, "/dev/full");
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel("unix:" + harness.socket_path(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::DrainAnswer answer;
  const grpc::Status result = stub->Drain(&context, {}, &answer);
  EXPECT_EQ(result.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(result.error_message(), HasSubstr("the daemon goes on: the audit file /dev/full"));
  EXPECT_EQ(harness.stops, 0);
}

TEST_F(ControlServiceTest, ChecksWithoutChanging) {
  v1::PolicyChange change;
  ASSERT_TRUE(stub_->CheckPolicy(&context_, wish("maxmin:2,bucket=512,feedback"), &change).ok());
  EXPECT_TRUE(harness_.port.changes().at(0).dry_run);
  EXPECT_EQ(change.warnings_size(), 1);
  EXPECT_EQ(read_file(harness_.audit_path()), "");
}

TEST_F(ControlServiceTest, ShowsTheDifferenceOnly) {
  v1::PolicyDiff diff;
  v1::ChangePolicyRequest request = wish("maxmin:4,bucket=512,stochastic");
  request.mutable_policy()->set_window(8);
  ASSERT_TRUE(stub_->DiffPolicy(&context_, request, &diff).ok());
  ASSERT_EQ(diff.differences_size(), 1);
  EXPECT_EQ(diff.differences(0).key(), "window");
  EXPECT_EQ(diff.differences(0).from(), "4");
  EXPECT_EQ(diff.differences(0).to(), "8");
  EXPECT_TRUE(harness_.port.changes().empty());
}

TEST_F(ControlServiceTest, RefusesAChangeMadeAgainstAnOlderVersion) {
  v1::PolicyChange change;
  v1::ChangePolicyRequest request = wish("maxmin:8");
  request.set_expected_version(7);
  const grpc::Status result = stub_->ApplyPolicy(&context_, request, &change);
  EXPECT_EQ(result.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(result.error_message(), HasSubstr("version 1, not 7"));
  EXPECT_TRUE(harness_.port.changes().empty());
}

TEST_F(ControlServiceTest, NamesTheStatusOfTheEngine) {
  v1::DaemonStatus status;
  harness_.port.fail(Status(StatusCode::kPEER_LOST, "node2 is gone"));
  const grpc::Status result = stub_->GetStatus(&context_, {}, &status);
  EXPECT_EQ(result.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(result.error_message(), "PEER_LOST: node2 is gone");
}

TEST_F(ControlServiceTest, PassesTheDeadlineOn) {
  v1::PolicyChange change;
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  ASSERT_TRUE(stub_->ApplyPolicy(&context_, wish("maxmin:8"), &change).ok());
  EXPECT_LE(harness_.port.changes()[0].timeout_ns, 31'000'000'000u);  // gRPC rounds up
  EXPECT_GE(harness_.port.changes()[0].timeout_ns, 10'000'000'000u);
  EXPECT_LE(harness_.port.snapshot_timeout_ns(), 5'000'000'000u);
}

TEST_F(ControlServiceTest, LimitsACallWithoutDeadline) {
  v1::PolicyChange change;
  ASSERT_TRUE(stub_->ApplyPolicy(&context_, wish("maxmin:8"), &change).ok());
  EXPECT_LE(harness_.port.changes()[0].timeout_ns, 60'000'000'000u);
}

TEST_F(ControlServiceTest, RefusesMessagesThatAreTooLarge) {
  v1::PolicyChange change;
  v1::ChangePolicyRequest request = wish(std::string(2 << 20, 'x'));
  const grpc::Status result = stub_->ApplyPolicy(&context_, request, &change);
  EXPECT_EQ(result.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ControlServiceTest, CountsGarbageAndGoesOn) {
  for (const char* garbage : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "PRI * HTTP/1"}) {
    const UniqueFd fd = connect_unix(harness_.socket_path());
    ASSERT_GT(::send(fd.get(), garbage, std::strlen(garbage), MSG_NOSIGNAL), 0);
    char byte;
    EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0);
  }
  EXPECT_EQ(harness_.junk, 3);
  v1::CodecList codecs;
  EXPECT_TRUE(stub_->ListCodecs(&context_, {}, &codecs).ok());
}

TEST_F(ControlServiceTest, SurvivesGarbageBehindARightOpening) {
  std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  bytes.append(4'096, '\xee');
  const UniqueFd fd = connect_unix(harness_.socket_path());
  ASSERT_GT(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
  char received[256];
  while (::recv(fd.get(), received, sizeof received, 0) > 0) {
  }
  v1::CodecList codecs;
  EXPECT_TRUE(stub_->ListCodecs(&context_, {}, &codecs).ok());
}

TEST_F(ControlServiceTest, AnswersReadsWhileAChangeWaits) {
  harness_.port.hold(true);
  grpc::Status applied;
  std::thread changer([&] {
    v1::PolicyChange change;
    applied = stub_->ApplyPolicy(&context_, wish("maxmin:8"), &change);
  });
  harness_.port.await_change();
  grpc::ClientContext context;
  v1::CodecList codecs;
  EXPECT_TRUE(stub_->ListCodecs(&context, {}, &codecs).ok());
  harness_.port.hold(false);
  changer.join();
  EXPECT_TRUE(applied.ok());
}

TEST_F(ControlServiceTest, ReportsHealthAndItsServices) {
  EXPECT_EQ(raw_call("/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  EXPECT_THAT(
      raw_call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*"),
      HasSubstr("cgx.v1.Control"));
}

TEST(UserServersTest, KeepTheRightsOfEachConnection) {
  FakeOperatorPort port;
  port.show(two_users());
  Log log(LogSettings{.level = LogLevel::kError});
  const auto audit = AuditLog::open("", log);
  const ControlContext context{.port = port, .audit = **audit};
  UserServers servers(context, ControlOptions().idle_ns);
  // Twice as many users as there may be servers, first to last and again.
  for (uint32_t i = 0; i < 4 * kUserServersMax; ++i) {
    const uint32_t uid = 1000 * (i % (2 * kUserServersMax));
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    ASSERT_TRUE(servers.serve(UniqueFd(ends[0]), {.name = "x", .uid = uid}).ok());
    const auto stub = v1::Control::NewStub(grpc::CreateInsecureChannelFromFd("x", ends[1]));
    grpc::ClientContext call;
    v1::JobList jobs;
    ASSERT_TRUE(stub->ListJobs(&call, {}, &jobs).ok());
    EXPECT_EQ(jobs.communicators_size(), uid == 1000 ? 2 : uid == 2000 ? 1 : 0) << uid;
  }
}

// TCP

class ControlTls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new OpenDirectory();
    const std::string script =
        "cd " + *directory_ / "." +
        " && exec 2>/dev/null && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
        "-nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem && for name in localhost alice "
        "mallory; "
        "do openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name -keyout "
        "$name.key -out $name.csr && printf subjectAltName=DNS:$name > $name.ext && openssl x509 "
        "-req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $name.ext "
        "-out $name.pem; done && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
        "-nodes -days 2 -subj /CN=alice -keyout forged.key -out forged.pem";
    made_ = std::system(script.c_str()) == 0;
  }
  static void TearDownTestSuite() { delete directory_; }

  void SetUp() override {
    if (!made_) GTEST_SKIP() << "openssl is not installed";
    harness_ = std::make_unique<ControlHarness>(port_config());
    ASSERT_NE(harness_->service, nullptr);
  }
  static v1::ControlPort port_config() {
    v1::ControlPort config;
    config.set_listen("127.0.0.1:0");
    config.mutable_tls()->set_ca_file(*directory_ / "ca.pem");
    config.mutable_tls()->set_certificate_file(*directory_ / "localhost.pem");
    config.mutable_tls()->set_key_file(*directory_ / "localhost.key");
    config.add_operators("alice");
    return config;
  }
  std::shared_ptr<grpc::Channel> channel_of(const std::string& name) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = read_file(*directory_ / "ca.pem");
    if (!name.empty()) {
      options.pem_cert_chain = read_file(*directory_ / (name + ".pem"));
      options.pem_private_key = read_file(*directory_ / (name + ".key"));
    }
    const std::string target = "localhost:" + std::to_string(harness_->service->tcp_port());
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    return grpc::CreateCustomChannel(target, grpc::SslCredentials(options), arguments);
  }
  grpc::Status role_of(const std::string& name, std::string& role) {
    return role_over(channel_of(name), role);
  }
  static grpc::Status role_over(const std::shared_ptr<grpc::Channel>& channel, std::string& role) {
    const auto stub = v1::Control::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::DaemonStatus status;
    const grpc::Status result = stub->GetStatus(&context, {}, &status);
    role = status.role();
    return result;
  }

  static inline OpenDirectory* directory_ = nullptr;
  static inline bool made_ = false;
  std::unique_ptr<ControlHarness> harness_;
};

TEST_F(ControlTls, GivesListedCertificatesEverythingAndOthersTotals) {
  std::string role;
  ASSERT_TRUE(role_of("alice", role).ok());
  EXPECT_EQ(role, "operator");
  ASSERT_TRUE(role_of("mallory", role).ok());
  EXPECT_EQ(role, "other");
}

TEST_F(ControlTls, RefusesNoneOrForeignCertificates) {
  std::string role;
  EXPECT_EQ(role_of("", role).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(role_of("forged", role).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ControlTls, CountsWhoeverDoesNotSpeakTls) {
  const UniqueFd fd = connect_tcp(harness_->service->tcp_port());
  ASSERT_GT(::send(fd.get(), "PRI * HTTP/2.0", 14, MSG_NOSIGNAL), 0);
  EXPECT_TRUE(eventually([&] { return harness_->junk == 1; }));
}

TEST_F(ControlTls, ServesOperatorsBesideConnectionsThatSaidThreeBytes) {
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 150; ++i) {
    crowd.push_back(connect_tcp(harness_->service->tcp_port()));
    ::send(crowd.back().get(), "\x16\x03\x01", 3, MSG_NOSIGNAL);  // it may have gone already
  }
  std::string role;
  ASSERT_TRUE(role_of("alice", role).ok());
  EXPECT_EQ(role, "operator");
}

TEST_F(ControlTls, LeavesPlacesForOtherHostsBesideOneThatKeepsManyConnections) {
  std::vector<std::shared_ptr<grpc::Channel>> crowd;
  std::string role;
  for (int i = 0; i < 70; ++i) {
    crowd.push_back(channel_of("alice"));
    ASSERT_TRUE(role_over(crowd.back(), role).ok()) << i;
  }
  EXPECT_LE(harness_->most_over_tls, 65u) << "64, and one that waits";
  EXPECT_GE(harness_->most_over_tls, 60u);
  EXPECT_TRUE(role_over(crowd.front(), role).ok()) << "who was cut off may come again";
}

TEST_F(ControlTls, ShowsOutWhoeverAsksNothing) {
  harness_ = std::make_unique<ControlHarness>(port_config(), "", 300'000'000);
  ASSERT_NE(harness_->service, nullptr);
  const auto channel = channel_of("alice");
  std::string role;
  ASSERT_TRUE(role_over(channel, role).ok());
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(15);
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline)) << "it may stay";
  EXPECT_TRUE(role_over(channel, role).ok()) << "and may come again";
}

TEST_F(ControlTls, NamesAFileItCannotRead) {
  v1::ControlPort config = port_config();
  config.mutable_tls()->set_key_file("/nonexistent.key");
  FakeOperatorPort port;
  Log log(LogSettings{.level = LogLevel::kError});
  const auto audit = AuditLog::open("", log);
  const OpenDirectory directory;
  const UniqueFd listening = listen_unix(directory / "s");
  const auto created = ControlService::create(
      {.config = config, .unix_fd = listening.get(), .on_junk = [] {}}, port, **audit, log);
  EXPECT_THAT(created.status().message(), HasSubstr("/nonexistent.key"));
}

}  // namespace
}  // namespace cgx::daemon
