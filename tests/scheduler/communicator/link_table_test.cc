// Links between daemons: shared, used again, given up for everybody at once.
#include "scheduler/communicator/link_table.h"

#include <gtest/gtest.h>

#include <string>

namespace cgx::scheduler {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kQuiet = kSecond;
constexpr auto kWords = LinkTable::Cargo::kWords, kPart = LinkTable::Cargo::kPart;

struct Port final : LinkPort {
  std::vector<LinkId> opened, closed;
  void open_link(LinkId link, const LinkRequest&) override { opened.push_back(link); }
  void close_link(LinkId link) override { closed.push_back(link); }
};

struct NoTransport final : transport::Transport {
  std::vector<uint32_t> closed;  // peers
  std::string_view name() const override { return "none"; }
  transport::Caps caps() const override { return {}; }
  Result<transport::Endpoint> local_endpoint() override { return transport::Endpoint(); }
  Result<transport::PeerId> connect(const transport::ConnectOptions&) override {
    return transport::PeerId();
  }
  void close(transport::PeerId peer) override { closed.push_back(peer.index); }
  Status send(transport::PeerId, const transport::Frame&, transport::SendToken) override {
    return {};
  }
  int progress() override { return 0; }
  int event_fd() const override { return -1; }
  bool arm() override { return true; }
  Totals totals() const override { return {}; }
};

// Machine 0 of a communicator over `machines` machines.
struct User final : LinkUser {
  Members who;
  wire::JobKey key{};
  bool alive = true, joining = false;
  std::vector<std::string> told;

  explicit User(uint32_t machines = 2) {
    for (uint32_t k = 0; k < machines; ++k) {
      wire::InstanceId& instance = who.instances.emplace_back();
      instance[0] = k + 1;
      who.lowest_rank.push_back(k);
      who.addresses.push_back("10.0.0." + std::to_string(k));
      who.devices.emplace_back();
    }
  }
  const Members& members() const override { return who; }
  const wire::JobKey& job_key() const override { return key; }
  bool living() const override { return alive; }
  bool needs_links() const override { return joining; }
  void say(const char* what, uint32_t machine) { told.push_back(what + std::to_string(machine)); }
  void link_up(uint32_t machine, transport::PeerId) override { say("up ", machine); }
  void link_lost(uint32_t machine, const Status&) override { say("lost ", machine); }
  void link_remade(uint32_t machine) override { say("remade ", machine); }
  void receive(const wire::FrameHeader&, std::span<const std::byte>) override {}
};

using Said = std::vector<std::string>;

struct Links : ::testing::Test {
  Port port;
  NoTransport transport;
  LinkTable links{&port, &transport};
  uint64_t now = 100 * kSecond;

  void open(User& user) { links.open(user, now, kQuiet); }
};

TEST_F(Links, AreSharedByTheCommunicatorsOfAJobAndByNoOthers) {
  User first(3), second(2), stranger(2);
  stranger.key[0] = std::byte{1};
  open(first);
  EXPECT_EQ(port.opened, (std::vector<LinkId>{0, 1}));
  links.up(0, {.index = 7}, now);
  open(second);
  open(stranger);
  EXPECT_EQ(port.opened, (std::vector<LinkId>{0, 1, 2}));
  EXPECT_EQ(first.told, Said{"up 1"});
  EXPECT_EQ(second.told, Said{"up 1"});
  EXPECT_TRUE(stranger.told.empty());
  EXPECT_EQ(links.uses(0).size(), 2u);
  links.peer_down({.index = 7}, {StatusCode::kPEER_LOST, "gone"});
  EXPECT_EQ(first.told, (Said{"up 1", "lost 1"}));
  EXPECT_EQ(second.told, (Said{"up 1", "lost 1"}));
}

TEST_F(Links, LingerAndThenTheirPlaceIsTakenAgain) {
  User user;
  open(user);
  links.up(0, {.index = 7}, now);
  links.leave(user, now);
  links.close_idle(now + 2 * kSecond);
  EXPECT_EQ(links.open_count(), 1u);
  EXPECT_EQ(links.next_closing_ns(), now + 3 * kSecond);
  links.close_idle(now + 3 * kSecond);
  EXPECT_EQ(links.open_count(), 0u);
  EXPECT_EQ(port.closed, std::vector<LinkId>{0});
  EXPECT_EQ(transport.closed, std::vector<uint32_t>{7});
  User next;
  open(next);
  EXPECT_EQ(port.opened, (std::vector<LinkId>{0, 0}));
}

// Whoever once had thousands leaves nothing behind that each later round would look through.
TEST_F(Links, GiveUpPlacesThatNobodyNeeds) {
  User many(1001), few(2);
  few.key[0] = std::byte{1};
  open(many);
  open(few);
  EXPECT_EQ(links.places(), 1001u);
  links.leave(many, now);
  links.close_idle(now + 3 * kSecond);
  EXPECT_EQ(links.open_count(), 1u);
  EXPECT_EQ(links.places(), 1001u) << "the last of them is used";
  links.leave(few, now + 3 * kSecond);
  EXPECT_EQ(links.next_closing_ns(), now + 6 * kSecond);
  links.close_idle(now + 6 * kSecond);
  EXPECT_EQ(links.places(), 0u);
  EXPECT_EQ(links.next_closing_ns(), UINT64_MAX);
}

// Used again, it is not idle any more.
TEST_F(Links, ThatAreUsedAgainStayOpen) {
  User first, second;
  open(first);
  links.up(0, {.index = 7}, now);
  links.leave(first, now);
  links.heard({.index = 7}, now);
  open(second);
  EXPECT_EQ(links.next_closing_ns(), UINT64_MAX);
  links.close_idle(now + 60 * kSecond);
  EXPECT_EQ(links.open_count(), 1u);
  EXPECT_EQ(port.opened, std::vector<LinkId>{0});
}

TEST_F(Links, WaitForTheirLastFramesBeforeTheyClose) {
  User user;
  open(user);
  links.up(0, {.index = 7}, now);
  links.sending({.index = 7}, kPart);
  links.leave(user, now);
  links.close_idle(now + 29 * kSecond);
  EXPECT_EQ(links.open_count(), 1u);
  links.sent({.index = 7}, kPart);
  links.close_idle(now + 29 * kSecond);
  EXPECT_EQ(links.open_count(), 0u);
}

TEST_F(Links, KeepTheirPlaceUntilTheirLastFramesHaveLeft) {
  User first, second(3);
  open(first);
  links.up(0, {.index = 7, .generation = 1}, now);
  links.sending({.index = 7, .generation = 1}, kPart);
  links.peer_down({.index = 7, .generation = 1}, {StatusCode::kPEER_LOST, "gone"});
  links.leave(first, now);
  open(second);
  EXPECT_EQ(port.opened, (std::vector<LinkId>{0, 1, 2})) << "a frame of the first is on its way";
  links.up(1, {.index = 7, .generation = 2}, now);
  links.sent({.index = 7, .generation = 1}, kPart);
  User third;
  third.key[0] = std::byte{1};
  open(third);
  EXPECT_EQ(port.opened.back(), LinkId{0});
}

TEST_F(Links, ThatNobodyWatchedAndNobodyHeardAreMadeAnew) {
  User failed;
  open(failed);
  links.up(0, {.index = 7}, now);
  failed.alive = false;
  now += kQuiet;
  User soon;
  open(soon);
  EXPECT_EQ(port.opened.size(), 1u) << "heard not long ago";
  links.leave(soon, now);
  now += kQuiet;
  User late;
  open(late);
  EXPECT_EQ(port.opened.size(), 2u);
  EXPECT_EQ(transport.closed, std::vector<uint32_t>{7});
  EXPECT_TRUE(late.told.empty()) << "the new one has yet to come up";
}

TEST_F(Links, KnowWhenTheyCarriedAnythingForWhomever) {
  User first, second, stranger;
  open(first);
  links.up(0, {.index = 7}, now);
  open(second);
  links.heard({.index = 7}, now + 1);
  EXPECT_EQ(links.carried_ns(first, 1), now + 1);
  links.heard_bytes({.index = 7}, now + 2);
  links.heard_bytes({.index = 8}, now + 3);
  EXPECT_EQ(links.carried_ns(first, 1), now + 2);
  EXPECT_EQ(links.carried_ns(second, 1), now + 2);
  EXPECT_EQ(links.carried_ns(stranger, 1), 0u);
}

TEST_F(Links, KnowWhetherPartsAreUnderWay) {
  User user;
  open(user);
  EXPECT_FALSE(links.under_way(user, 1));
  links.up(0, {.index = 7}, now);
  links.sending({.index = 7}, kWords);
  EXPECT_FALSE(links.under_way(user, 1)) << "there is always a heartbeat";
  links.sending({.index = 7}, kPart);
  links.sending({.index = 7}, kPart);
  links.sent({.index = 7}, kPart);
  links.sent({.index = 7}, kWords);
  EXPECT_TRUE(links.under_way(user, 1));
  links.sent({.index = 7}, kPart);
  EXPECT_FALSE(links.under_way(user, 1));
}

TEST_F(Links, HeardOfAreUsedAgainHoweverLongAgoTheyWereMade) {
  User failed;
  open(failed);
  links.up(0, {.index = 7}, now);
  failed.alive = false;
  now += 60 * kSecond;
  EXPECT_EQ(links.heard({.index = 7}, now), LinkId{0});
  User next;
  open(next);
  EXPECT_EQ(next.told, Said{"up 1"});
  EXPECT_EQ(links.heard({.index = 8}, now), std::nullopt);
}

TEST_F(Links, LostWhileSomebodyJoinsOverAnOldOneAreMadeAnewForIt) {
  User old, joining;
  open(old);
  links.up(0, {.index = 7}, now);
  joining.joining = true;
  open(joining);
  links.lose(old, 1, {StatusCode::kPEER_LOST, "silent"});
  EXPECT_EQ(old.told, (Said{"up 1", "lost 1"}));
  EXPECT_EQ(joining.told, (Said{"up 1", "remade 1"}));
  links.up(1, {.index = 8}, now);
  EXPECT_EQ(joining.told.back(), "up 1");
  links.lose(joining, 1, {StatusCode::kPEER_LOST, "silent"});
  EXPECT_EQ(joining.told.back(), "lost 1") << "once";
}

TEST_F(Links, RefusedTellTheirUsersAndAreNotClosedTwice) {
  User user;
  open(user);
  links.refused(0, {StatusCode::kAUTH_FAILED, "another key"});
  links.refused(0, {StatusCode::kAUTH_FAILED, "another key"});
  EXPECT_EQ(user.told, Said{"lost 1"});
  EXPECT_TRUE(port.closed.empty()) << "the port said so itself";
  EXPECT_TRUE(transport.closed.empty()) << "it was never up";
}

}  // namespace
}  // namespace cgx::scheduler
