#include "tests/conformance/site_suite.h"

#include <xmmintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cgx::scheduler {
namespace {

constexpr CodecSpec kMaxMin{.codec = 3, .bits = 4, .bucket = 512};
constexpr CodecSpec kFeedback{.codec = 3, .bits = 4, .flags = CodecSpec::kFeedback, .bucket = 512};
constexpr uint64_t kSecond = 1'000'000'000;

CodecSpec topk(float amount) {
  return {.codec = 12, .flags = CodecSpec::kFeedback, .bucket = kSparseBucket, .amount = amount};
}

float gradient(uint64_t i) {
  return static_cast<float>(static_cast<int64_t>(i * 2654435761u % 8191) - 4095) / 64.0f;
}

}  // namespace

SiteConformance::SiteConformance()
    : table_({{.name = "weight", .elements = kElements}}),
      values_(kElements),
      reference_(kernels::best_lane(), arenas_, *slabs_) {
  for (uint64_t i = 0; i < kElements; ++i) values_[i] = gradient(i);
  arena_ = arenas_.add(std::as_writable_bytes(std::span(values_)));
  EXPECT_TRUE(slabs_->reserve(64).ok());
  site_ = GetParam().wrap(std::make_unique<HostSite>(kernels::best_lane(), arenas_, *slabs_),
                          [this] { return now_ns_; });
}

void SiteConformance::site_answered(Ticket ticket, const SiteAnswer& answer) {
  EXPECT_FALSE(asking_) << "answered from inside ask()";
  EXPECT_TRUE(answers_.emplace(ticket, answer).second) << "ticket " << ticket << " came twice";
}

OperationSetup SiteConformance::setup(const CodecSpec& spec, SiteResidual* residual) {
  groups_.reserve(16);
  const Group& group = groups_.emplace_back(Group{.segments = {{0, spec}}});
  layouts_.push_back(std::make_unique<GroupLayout>(GroupLayout::create(group, table_, 2, {})));
  OperationSetup setup{.layout = layouts_.back().get(), .group = &group, .table = &table_};
  setup.machines = 2;
  LocalSegment& segment = setup.segments.emplace_back();
  segment.inputs = segment.outputs = {Place{arena_, 0}};
  segment.residual = residual;
  return setup;
}

Ticket SiteConformance::ask(SiteOperation& work, const SiteJob& job) {
  const Ticket ticket = ++last_ticket_;
  asking_ = true;
  const std::optional<SiteAnswer> answer = work.ask(ticket, job);
  asking_ = false;
  if (answer) site_answered(ticket, *answer);
  return ticket;
}

std::vector<Ticket> SiteConformance::ask_for_all(SiteOperation& work, const OperationSetup& about) {
  std::vector<Ticket> tickets;
  const PartRange parts = about.layout->shard(1);
  for (uint32_t part = parts.first; part < parts.end(); ++part) {
    tickets.push_back(
        ask(work, {.kind = SiteJobKind::kEncode, .part = part, .presence = &all_, .into = slab()}));
  }
  return tickets;
}

bool SiteConformance::wait_for(Ticket ticket, uint64_t limit_ns) {
  const uint64_t limit = now_ns_ + limit_ns;
  while (answers_.count(ticket) == 0) {
    const uint64_t next = site_->next_answer_ns();
    if (next > limit) return false;
    now_ns_ = std::max(now_ns_ + 1, next);
    site_->poll(*this, now_ns_);
  }
  return true;
}

SiteAnswer SiteConformance::run(SiteOperation& work, const SiteJob& job) {
  const Ticket ticket = ask(work, job);
  EXPECT_TRUE(wait_for(ticket, 60 * kSecond));
  return answers_[ticket];
}

SlabId SiteConformance::slab() {
  return slabs_->take(in_use_, false);
}

std::vector<std::byte> SiteConformance::written(SlabId slab, const SiteAnswer& answer) const {
  const auto bytes = slabs_->bytes(slab).first(answer.bytes);
  return {bytes.begin(), bytes.end()};
}

void SiteConformance::set_gradient(const std::function<float(uint64_t)>& value) {
  for (uint64_t i = 0; i < kElements; ++i) values_[i] = value(i);
}

std::vector<LossSample> SiteConformance::losses_of(const OperationSetup& about) {
  const auto work = site_->begin(about);
  for (const Ticket ticket : ask_for_all(*work, about)) {
    EXPECT_TRUE(wait_for(ticket, 60 * kSecond));
    EXPECT_TRUE(answers_[ticket].status.ok()) << answers_[ticket].status.to_string();
  }
  return work->losses();
}

uint64_t SiteConformance::elements_of(const OperationSetup& about, uint32_t machine) {
  const PartRange parts = about.layout->shard(machine);
  uint64_t elements = 0;
  for (uint32_t part = parts.first; part < parts.end(); ++part) {
    for (const Slice& slice : about.layout->slices(about.layout->part(part))) {
      elements += slice.elements;
    }
  }
  return elements;
}

TEST_P(SiteConformance, AnswersEachTicketOnceAndNeverFromInsideAsk) {
  const OperationSetup about = setup(kMaxMin);
  const auto work = site_->begin(about);
  const std::vector<Ticket> tickets = ask_for_all(*work, about);
  ASSERT_GT(tickets.size(), 1u);
  for (const Ticket ticket : tickets) EXPECT_TRUE(wait_for(ticket, 60 * kSecond));
  for (int i = 0; i < 10; ++i) site_->poll(*this, now_ns_ += kSecond);
  EXPECT_EQ(answers_.size(), tickets.size());
  EXPECT_EQ(site_->next_answer_ns(), UINT64_MAX);
}

// Encode, decode, reduce, hash: what the host does, byte for byte.
TEST_P(SiteConformance, ComputesWhatTheHostComputes) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  const OperationSetup about = setup(kMaxMin);
  const auto play = [&](Site& site) {
    for (uint64_t i = 0; i < kElements; ++i) values_[i] = gradient(i);
    std::vector<std::byte> all;
    const auto work = site.begin(about);
    const SlabId sent = slab(), reduced = slab();
    const SiteAnswer encoded = run(*work, {.kind = SiteJobKind::kEncode,
                                           .part = theirs(),
                                           .presence = &all_,
                                           .into = sent,
                                           .offset = 64});
    EXPECT_TRUE(encoded.status.ok());
    const auto bytes = slabs_->bytes(sent).subspan(64, encoded.bytes);
    all.assign(bytes.begin(), bytes.end());
    const FrameBytes frame{.slab = sent, .offset = 64, .length = encoded.bytes};
    EXPECT_TRUE(
        run(*work,
            {.kind = SiteJobKind::kDecode, .part = theirs(), .presence = &all_, .frame = frame})
            .status.ok());
    // The peer's part of the own shard: as if it had encoded the same.
    const SlabId theirs = slab();
    const SiteAnswer other =
        run(*work, {.kind = SiteJobKind::kEncode, .presence = &all_, .into = theirs});
    const SiteContribution from[] = {
        {.own_ranks = true}, {.frame = {.slab = theirs, .length = other.bytes}, .presence = &all_}};
    const SiteAnswer answer = run(
        *work, {.kind = SiteJobKind::kReduce, .presence = &all_, .from = from, .into = reduced});
    EXPECT_TRUE(answer.status.ok());
    const std::vector<std::byte> result = written(reduced, answer);
    all.insert(all.end(), result.begin(), result.end());
    const auto memory = std::as_bytes(std::span(values_));
    all.insert(all.end(), memory.begin(), memory.end());
    const SiteAnswer hashed = run(*work, {.kind = SiteJobKind::kHash, .count = memory.size()});
    EXPECT_EQ(hashed.hash, wire::checksum(memory));
    for (const SlabId used : {sent, reduced, theirs}) slabs_->release(used);
    return all;
  };
  EXPECT_EQ(play(*site_), play(reference_));
}

// A library that is loaded beside us may have made denormals zeros in this thread.
TEST_P(SiteConformance, KeepsDenormalsWhateverTheThreadDidBefore) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  std::fill(values_.begin(), values_.end(), 1e-40f);
  OperationSetup about = setup({});
  about.segments[0].inputs.push_back(about.segments[0].inputs.front());
  const auto work = site_->begin(about);
  const SlabId out = slab();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zeros
  const SiteAnswer answer =
      run(*work, {.kind = SiteJobKind::kEncode, .part = theirs(), .presence = &all_, .into = out});
  _mm_setcsr(before);
  const std::vector<std::byte> bytes = written(out, answer);
  float sum = 0;
  ASSERT_GE(bytes.size(), sizeof(sum));
  std::memcpy(&sum, bytes.data(), sizeof(sum));
  EXPECT_EQ(sum, 2 * 1e-40f);
}

TEST_P(SiteConformance, ResidualsStartAtZeroAndAreKeptApart) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  const auto one = site_->residual_maker()(kElements).value(),
             two = site_->residual_maker()(kElements).value();
  const auto encode = [&](SiteResidual* residual, uint32_t confirmed) {
    OperationSetup about = setup(residual == nullptr ? kMaxMin : kFeedback, residual);
    about.segments[0].confirmed = confirmed;
    const auto work = site_->begin(about);
    const SlabId out = slab();
    const SiteAnswer answer = run(
        *work, {.kind = SiteJobKind::kEncode, .part = theirs(), .presence = &all_, .into = out});
    std::vector<std::byte> bytes = written(out, answer);
    slabs_->release(out);
    return bytes;
  };
  const std::vector<std::byte> without = encode(nullptr, 0);
  EXPECT_EQ(encode(one.get(), 0), without) << "a fresh residual is zero";
  EXPECT_EQ(encode(one.get(), 0), without) << "what was written is in the other slot";
  EXPECT_NE(encode(one.get(), 1), without) << "there it is";
  EXPECT_EQ(encode(two.get(), 1), without) << "nobody wrote this one";
}

TEST_P(SiteConformance, KeepsAResidualThatNoJobWrites) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  const auto residual = site_->residual_maker()(kElements).value();
  OperationSetup about = setup(kFeedback, residual.get());
  const SlabId out = slab();
  const SiteJob encode{
      .kind = SiteJobKind::kEncode, .part = theirs(), .presence = &all_, .into = out};
  const auto first = site_->begin(about);
  run(*first, encode);  // writes slot 1
  about.segments[0].confirmed = 1;
  const auto second = site_->begin(about);
  const SiteAnswer with = run(*second, encode);
  const std::vector<std::byte> expected = written(out, with);
  const auto third = site_->begin(about);
  EXPECT_TRUE(run(*third, {.kind = SiteJobKind::kKeep, .count = kElements}).status.ok());
  about.segments[0].confirmed = 0;
  const auto fourth = site_->begin(about);
  const SiteAnswer kept = run(*fourth, encode);
  EXPECT_EQ(written(out, kept), expected);
}

TEST_P(SiteConformance, AFrameInHandNeedsToLiveOnlyAsLongAsItSays) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  const OperationSetup about = setup(kMaxMin);
  const auto work = site_->begin(about);
  const SlabId sent = slab();
  const SiteAnswer encoded =
      run(*work, {.kind = SiteJobKind::kEncode, .part = theirs(), .presence = &all_, .into = sent});
  std::vector<std::byte> hand = written(sent, encoded);
  FrameBytes frame{.length = encoded.bytes};
  if (site_->consumes_inside()) {
    frame.live = hand.data();
  } else {
    frame.slab = sent;
  }
  const Ticket ticket = ask(
      *work, {.kind = SiteJobKind::kDecode, .part = theirs(), .presence = &all_, .frame = frame});
  std::fill(hand.begin(), hand.end(), std::byte{0xFF});
  ASSERT_TRUE(wait_for(ticket, 60 * kSecond));
  EXPECT_TRUE(answers_[ticket].status.ok());
  EXPECT_NEAR(values_.back(), gradient(kElements - 1), 9.0f);
}

TEST_P(SiteConformance, SaysWhatIsCorruptAndGoesOn) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  const OperationSetup about = setup(kMaxMin);
  const auto work = site_->begin(about);
  const SlabId sent = slab();
  const SiteJob encode{
      .kind = SiteJobKind::kEncode, .part = theirs(), .presence = &all_, .into = sent};
  const SiteAnswer encoded = run(*work, encode);
  const SiteJob decode{.kind = SiteJobKind::kDecode,
                       .part = theirs(),
                       .presence = &all_,
                       .frame = {.slab = sent, .length = encoded.bytes}};
  const float unit = -3.0f, low = 1e30f;  // zero-exact, with a zero that no code has
  std::memcpy(slabs_->bytes(sent).data(), &unit, sizeof unit);
  std::memcpy(slabs_->bytes(sent).data() + sizeof unit, &low, sizeof low);
  EXPECT_EQ(run(*work, decode).status.code(), StatusCode::kCORRUPT);
  run(*work, encode);
  EXPECT_TRUE(run(*work, decode).status.ok());
}

TEST_P(SiteConformance, AnswersWithinASecondOfTheEnd) {
  const OperationSetup about = setup(kMaxMin);
  const auto work = site_->begin(about);
  const std::vector<Ticket> tickets = ask_for_all(*work, about);
  work->end();
  const uint64_t ended_ns = now_ns_;
  for (const Ticket ticket : tickets) EXPECT_TRUE(wait_for(ticket, kSecond));
  EXPECT_LE(now_ns_, ended_ns + kSecond);
}

TEST_P(SiteConformance, MeasuresNormsOnlyWhenAsked) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  OperationSetup about = setup(kMaxMin);
  const SlabId out = slab();
  const SiteJob encode{
      .kind = SiteJobKind::kEncode, .part = theirs(), .presence = &all_, .into = out};
  const auto plain = site_->begin(about);
  run(*plain, encode);
  EXPECT_TRUE(plain->norms().empty());
  about.norms = true;
  const auto measured = site_->begin(about);
  run(*measured, encode);
  ASSERT_EQ(measured->norms().size(), 1u);
  EXPECT_GT(measured->norms()[0].intended_sq, measured->norms()[0].sent_sq * 0.9);
  EXPECT_GT(measured->norms()[0].sent_sq, 0);
}

// Of every four values one is 6 and three are 2, so a quarter sends all but the latter. In the next
// step these come back at half their size, and are 3 in all.
TEST_P(SiteConformance, MeasuresWhatStrengthsLoseAndWhatResidualsAdd) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  set_gradient([](uint64_t i) { return (i % 4 == 0 ? 6.0f : 2.0f) * (i % 8 < 4 ? 1.0f : -1.0f); });
  const auto residual = site_->residual_maker()(kElements).value();
  OperationSetup about = setup(topk(0.25f), residual.get());
  EXPECT_TRUE(losses_of(about).empty()) << "nobody has asked";
  about.segments[0].confirmed = 1;
  about.segments[0].residual_scale = 0.5f;
  about.strengths = std::make_shared<const std::vector<CodecSpec>>(
      std::vector<CodecSpec>{topk(0.25f), topk(0.125f)});
  EXPECT_EQ(losses_of(about).at(0).values, 0) << "of this tensor nobody has asked";
  about.segments[0].measured = true;
  const LossSample loss = losses_of(about).at(0);
  const double fours = static_cast<double>(elements_of(about, 1)) / 4, most = 1e-4 * fours;
  EXPECT_EQ(loss.values, 4 * fours);
  EXPECT_EQ(loss.nonfinite, 0);
  EXPECT_NEAR(loss.gradient, (36 + 3 * 4) * fours, most);
  EXPECT_NEAR(loss.residual, 3 * fours, most);
  EXPECT_NEAR(loss.intended, (36 + 3 * 9) * fours, most);
  EXPECT_NEAR(loss.lost[0], 3 * 9 * fours, most);
  EXPECT_NEAR(loss.lost[1], (36 / 2 + 3 * 9) * fours, most);
}

// One of the eight pieces of a part that are looked at has a value that is no number.
TEST_P(SiteConformance, CountsValuesThatAreNotFiniteApart) {
  if (!site_->reads_frames()) GTEST_SKIP() << "it computes nothing";
  OperationSetup about = setup(kMaxMin);
  about.strengths = std::make_shared<const std::vector<CodecSpec>>(std::vector<CodecSpec>{kMaxMin});
  about.segments[0].measured = true;
  const Slice& slice = about.layout->slices(about.layout->part(theirs())).front();
  set_gradient([&](uint64_t i) { return i == slice.first_element ? NAN : 2.0f; });
  const LossSample loss = losses_of(about).at(0);
  const auto all = static_cast<double>(elements_of(about, 1));
  const double wrong = static_cast<double>(slice.elements) / 8;
  EXPECT_NEAR(loss.nonfinite, wrong, 1e-6 * all);
  EXPECT_NEAR(loss.values, all - wrong, 1e-6 * all);
  EXPECT_NEAR(loss.intended, 4 * (all - wrong), 1e-4 * all);
}

}  // namespace cgx::scheduler
