#include "daemon/operators/events_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/daemon/operators/fake_operator_port.h"

namespace cgx::daemon {
namespace {

using scheduler::Event;
using scheduler::EventKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Caller kOperator{.name = "uid 0", .uid = 0, .is_operator = true};
const Caller kOwner{.name = "uid 1000", .uid = 1000};
const Caller kStranger{.name = "uid 3000", .uid = 3000};
constexpr ClockPair kNow{.monotonic_ns = 10'000, .unix_ns = 1'700'000'000'000'010'000};

Event event_of(uint16_t communicator, uint64_t time_ns) {
  return {.time_ns = time_ns, .kind = EventKind::kready, .communicator = communicator};
}

// resnet/dp (1) and resnet/tp (2) of user 1000, bert/dp (3) of user 2000, and one that is gone (7).
scheduler::RecorderReader::Reading some_events() {
  return {.first = 40,
          .events = {event_of(7, 100), event_of(1, 1000), event_of(3, 2000), event_of(2, 3000),
                     event_of(1, 4000)}};
}

Result<v1::EventList> shown_to(const Caller& caller, const v1::ListEventsRequest& request = {}) {
  return events_of(some_events(), two_users(), request, caller, kNow);
}

std::vector<std::string> names(const Result<v1::EventList>& list) {
  std::vector<std::string> names;
  for (const v1::Event& event : list->events()) {
    names.push_back(std::to_string(event.number()) + " " + event.job() + "/" +
                    event.communicator());
  }
  return names;
}

v1::ListEventsRequest of(const std::string& job, const std::string& communicator) {
  v1::ListEventsRequest request;
  request.mutable_target()->set_job(job);
  request.mutable_target()->set_communicator(communicator);
  return request;
}

TEST(EventsView, ShowsOperatorsEverythingAndOwnersTheirs) {
  EXPECT_THAT(names(shown_to(kOperator)),
              ElementsAre("40 /#7", "41 resnet/dp", "42 bert/dp", "43 resnet/tp", "44 resnet/dp"));
  EXPECT_THAT(names(shown_to(kOwner)), ElementsAre("41 resnet/dp", "43 resnet/tp", "44 resnet/dp"));
  EXPECT_THAT(names(shown_to(kStranger)), IsEmpty());
}

TEST(EventsView, ShowsWhatIsAskedFor) {
  EXPECT_THAT(names(shown_to(kOperator, of("resnet", "dp"))),
              ElementsAre("41 resnet/dp", "44 resnet/dp"));
  EXPECT_THAT(names(shown_to(kOperator, of("", "#7"))), ElementsAre("40 /#7"));
  EXPECT_THAT(names(shown_to(kOperator, of("", "#8"))), IsEmpty());
  EXPECT_EQ(shown_to(kOwner, of("bert", "")).status().code(), StatusCode::kNOT_FOUND);
  EXPECT_EQ(shown_to(kOwner, of("", "#7")).status().code(), StatusCode::kNOT_FOUND);
}

TEST(EventsView, CutsToTheNewestThatMatch) {
  v1::ListEventsRequest request = of("resnet", "");
  request.set_last(2);
  EXPECT_THAT(names(shown_to(kOperator, request)), ElementsAre("43 resnet/tp", "44 resnet/dp"));
}

TEST(EventsView, SaysWhereToGoOnAndWhatWasLost) {
  v1::ListEventsRequest request;
  request.set_from(30);
  const Result<v1::EventList> list = shown_to(kOwner, request);
  EXPECT_EQ(list->next(), 45u);
  EXPECT_EQ(list->lost(), 10u);
  request.set_from(40);
  EXPECT_EQ(shown_to(kOwner, request)->lost(), 0u);
}

// The index of one that is gone may be another user's now.
TEST(EventsView, GivesNobodyWhatWasBeforeThem) {
  scheduler::Snapshot snapshot = two_users();
  snapshot.communicators[0].created_ns = 2'000;
  const auto list = events_of(some_events(), snapshot, {}, kOwner, kNow);
  EXPECT_THAT(names(list), ElementsAre("43 resnet/tp", "44 resnet/dp"));
}

TEST(EventsView, TellsWhatAnEventHolds) {
  const std::vector<Event> events = {{.time_ns = 9'000,
                                      .step = 12,
                                      .kind = EventKind::kencode,
                                      .communicator = 1,
                                      .group = 3,
                                      .a = 4096,
                                      .b = 700},
                                     {.time_ns = 9'000,
                                      .step = 5,
                                      .kind = EventKind::kreceived,
                                      .communicator = 1,
                                      .group = Event::kCall,
                                      .peer = 2,
                                      .a = 80,
                                      .b = 1},
                                     {.time_ns = 9'500,
                                      .kind = EventKind::kfailed,
                                      .communicator = 1,
                                      .a = static_cast<uint32_t>(StatusCode::kPEER_LOST),
                                      .b = 1}};
  const auto list = events_of({.first = 0, .events = events}, two_users(), {}, kOperator, kNow);
  ASSERT_EQ(list->events_size(), 3);
  EXPECT_THAT(list->events(0).ShortDebugString(),
              HasSubstr("kind: \"encode\" step: 12 group: 3 values { name: \"bytes\" value: 4096 } "
                        "values { name: \"ns\" value: 700 }"));
  EXPECT_EQ(list->events(0).unix_ns(), 1'700'000'000'000'009'000);
  EXPECT_THAT(list->events(1).ShortDebugString(),
              HasSubstr("kind: \"received\" call: 5 machine: 2 values { name: \"bytes\""));
  EXPECT_THAT(list->events(2).ShortDebugString(), HasSubstr("text: \"PEER_LOST\""));
}

}  // namespace
}  // namespace cgx::daemon
