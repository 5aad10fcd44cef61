#include "tests/sim/slow_site.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace cgx::sim {

using namespace scheduler;

class SlowSite::Work final : public SiteOperation {
 public:
  Work(SlowSite& site, const OperationSetup& about, std::unique_ptr<SiteOperation> work)
      : setup(about), host(std::move(work)), site_(site) {}
  // Nobody may let go of an operation whose jobs are under way.
  ~Work() override {
    for (const auto& [due, waiting] : site_.waiting_) CGX_ASSERT(waiting.work != this);
  }

  std::optional<SiteAnswer> ask(Ticket ticket, const SiteJob& job) override {
    site_.take(*this, ticket, job);
    return std::nullopt;
  }
  void end() override { site_.hurry(*this); }
  void give_way() override {
    if (site_.options_.waits_for_ranks) site_.give_way(*this);
  }
  std::optional<AwaitedInput> awaited() const override { return site_.awaited(*this); }
  const std::vector<Norms>& norms() const override { return host->norms(); }
  const std::vector<LossSample>& losses() const override { return host->losses(); }

  const OperationSetup& setup;
  const std::unique_ptr<SiteOperation> host;

 private:
  SlowSite& site_;
};

SlowSite::SlowSite(std::unique_ptr<Site> host, SlowSiteOptions options,
                   std::function<uint64_t()> now_ns)
    : host_(std::move(host)), options_(std::move(options)), now_ns_(std::move(now_ns)) {}

SlowSite::~SlowSite() = default;

std::unique_ptr<SiteOperation> SlowSite::begin(const OperationSetup& setup) {
  return std::make_unique<Work>(*this, setup, host_->begin(setup));
}

void SlowSite::take(Work& work, Ticket ticket, const SiteJob& job) {
  ++jobs_;
  const auto takes = static_cast<uint64_t>(options_.takes_ns(work.setup, job));
  uint64_t due = now_ns_() + takes;
  if (options_.one_core) due = busy_until_ns_ = std::max(busy_until_ns_, now_ns_()) + takes;
  Waiting waiting{.work = &work, .ticket = ticket, .job = job};
  waiting.from.assign(job.from.begin(), job.from.end());
  if (options_.fails_at != 0 && jobs_ >= options_.fails_at) {
    waiting.answer = SiteAnswer{.status = {StatusCode::kDEVICE_LOST, "the site was lost"}};
  } else if (options_.consumes) {
    waiting.answer = run(waiting);
  }
  waiting_.emplace(due, std::move(waiting));
}

SiteAnswer SlowSite::run(Waiting& waiting) {
  waiting.job.from = waiting.from;
  const std::optional<SiteAnswer> answer = waiting.work->host->ask(waiting.ticket, waiting.job);
  CGX_ASSERT(answer.has_value());
  return *answer;
}

// What is under way is answered within a second.
void SlowSite::hurry(const Work& work) {
  constexpr uint64_t kSoonNs = 900'000'000;
  const uint64_t latest = now_ns_() + kSoonNs;
  for (auto it = waiting_.upper_bound(latest); it != waiting_.end();) {
    const auto current = it++;
    if (current->second.work != &work) continue;
    auto moved = waiting_.extract(current);
    moved.key() = latest;
    waiting_.insert(std::move(moved));
  }
}

// The first that reads what a rank has submitted, for the first time.
const SlowSite::Waiting* SlowSite::first_reading(const Work& work) const {
  const Waiting* first = nullptr;
  for (const auto& [due, waiting] : waiting_) {
    const bool reads =
        waiting.job.kind == SiteJobKind::kEncode || waiting.job.kind == SiteJobKind::kLocalReduce;
    if (waiting.work != &work || !reads) continue;
    if (first == nullptr || waiting.ticket < first->ticket) first = &waiting;
  }
  return first;
}

// In the first segment that it reads.
std::optional<AwaitedInput> SlowSite::awaited(const Work& work) const {
  const Waiting* const first = options_.waits_for_ranks ? first_reading(work) : nullptr;
  if (first == nullptr) return {};
  for (const Slice& slice : work.setup.layout->slices(work.setup.layout->part(first->job.part))) {
    const std::vector<Place>& inputs = work.setup.segments[slice.segment].inputs;
    if (!inputs.empty()) return AwaitedInput{slice.segment, inputs.front().arena};
  }
  return {};
}

// That one, and what was asked after it.
void SlowSite::give_way(const Work& work) {
  const Waiting* const reading = first_reading(work);
  const Ticket first = reading == nullptr ? std::numeric_limits<Ticket>::max() : reading->ticket;
  std::vector<Waiting> cancelled;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const bool behind = it->second.work == &work && it->second.ticket >= first;
    if (behind) cancelled.push_back(it->second);
    it = behind ? waiting_.erase(it) : std::next(it);
  }
  for (Waiting& waiting : cancelled) {
    waiting.answer = SiteAnswer{.status = {StatusCode::kCANCELLED, "the operation has failed"}};
    waiting_.emplace(now_ns_(), std::move(waiting));
  }
}

int SlowSite::poll(SiteEvents& events, uint64_t now_ns) {
  int answered = 0;
  while (!waiting_.empty() && waiting_.begin()->first <= now_ns) {
    auto done = waiting_.extract(waiting_.begin());
    Waiting& waiting = done.mapped();
    const SiteAnswer answer = waiting.answer ? *waiting.answer : run(waiting);
    events.site_answered(waiting.ticket, answer);
    ++answered;
  }
  return answered;
}

uint64_t SlowSite::next_answer_ns() const {
  return waiting_.empty() ? UINT64_MAX : waiting_.begin()->first;
}

int64_t price_ns(const OperationSetup& setup, const SiteJob& job) {
  if (job.kind == SiteJobKind::kHash) return static_cast<int64_t>(job.count);
  if (job.kind == SiteJobKind::kKeep) return static_cast<int64_t>(4 * job.count);
  return static_cast<int64_t>(setup.layout->part(job.part).raw_bytes);
}

}  // namespace cgx::sim
