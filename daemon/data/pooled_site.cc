#include "daemon/data/pooled_site.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "daemon/base/clock.h"

namespace cgx::daemon {

using scheduler::Norms;
using scheduler::OperationSetup;
using scheduler::Site;
using scheduler::SiteAnswer;
using scheduler::SiteContribution;
using scheduler::SiteEvents;
using scheduler::SiteJob;
using scheduler::SiteJobKind;
using scheduler::SiteOperation;
using scheduler::Ticket;

namespace {

// Handing a part over costs about what so many bytes do.
constexpr uint64_t kWorthwhileBytes = 64 * 1024;
constexpr uint64_t kSpinNs = 20'000;
constexpr uint64_t kBeginsWithinNs = 50'000;

bool needs_the_frame_in_hand(const SiteJob& job) {
  const auto in_hand = [](const SiteContribution& from) { return from.frame.live != nullptr; };
  return job.frame.live != nullptr || std::any_of(job.from.begin(), job.from.end(), in_hand);
}

// How often the calling thread had to leave its core although it had work.
uint64_t preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

bool about_a_part(SiteJobKind kind) {
  return kind != SiteJobKind::kKeep && kind != SiteJobKind::kHash;
}

}  // namespace

// One operation at both: what its codecs lost is the sum.
class PooledSite::Work final : public SiteOperation {
 public:
  Work(PooledSite& site, const OperationSetup& setup)
      : site_(site),
        setup_(setup),
        here_(site.here_->begin(setup)),
        there_(site.there_->begin(setup)) {}

  std::optional<SiteAnswer> ask(Ticket ticket, const SiteJob& job) override {
    const bool worthwhile =
        about_a_part(job.kind) && setup_.layout->part(job.part).raw_bytes >= kWorthwhileBytes;
    const bool given =
        worthwhile && !needs_the_frame_in_hand(job) && site_.give(*this, ticket, job);
    return given ? std::nullopt : here_->ask(ticket, job);
  }
  SiteAnswer compute_here(Ticket ticket, const SiteJob& job) { return *here_->ask(ticket, job); }
  SiteAnswer compute_there(Ticket ticket, const SiteJob& job) { return *there_->ask(ticket, job); }
  void end() override {
    here_->end();
    there_->end();
  }
  // REQUIRES: every ticket is back.
  const std::vector<Norms>& norms() const override {
    norms_ = here_->norms();
    for (size_t i = 0; i < norms_.size(); ++i) {
      norms_[i].intended_sq += there_->norms()[i].intended_sq;
      norms_[i].sent_sq += there_->norms()[i].sent_sq;
    }
    return norms_;
  }
  const std::vector<scheduler::LossSample>& losses() const override {
    losses_ = here_->losses();
    for (size_t i = 0; i < losses_.size(); ++i) losses_[i] += there_->losses()[i];
    return losses_;
  }

 private:
  PooledSite& site_;
  const OperationSetup& setup_;
  const std::unique_ptr<SiteOperation> here_, there_;
  mutable std::vector<Norms> norms_;
  mutable std::vector<scheduler::LossSample> losses_;
};

PooledSite::PooledSite(std::unique_ptr<Site> here, std::unique_ptr<Site> there)
    : here_(std::move(here)), there_(std::move(there)), thread_([this] { compute(); }) {
  pthread_setname_np(thread_.native_handle(), "cgxd-compute");
}

PooledSite::~PooledSite() {
  stop();
}

void PooledSite::stop() {
  if (!thread_.joinable()) return;
  for (Slot& each : slots_) {
    while (each.state.load(std::memory_order_acquire) == State::kBegun) std::this_thread::yield();
    State asked = State::kAsked;
    if (each.state.compare_exchange_strong(asked, State::kFree) || asked != State::kBegun) {
      each.work = nullptr;
      each.state.store(State::kAsked, std::memory_order_release);
    }
  }
  asked_.fetch_add(1, std::memory_order_release);
  asked_.notify_one();
  thread_.join();
}

std::unique_ptr<SiteOperation> PooledSite::begin(const OperationSetup& setup) {
  return std::make_unique<Work>(*this, setup);
}

bool PooledSite::give(Work& work, Ticket ticket, const SiteJob& job) {
  if (asked_here_ - answered_ == kSlots || !core_.free(now_ns_)) return false;
  Slot& to = slot(asked_here_++);
  to.work = &work;
  to.asked_ns = now_ns_;
  to.ticket = ticket;
  to.job = job;
  to.from.assign(job.from.begin(), job.from.end());
  to.job.from = to.from;
  to.state.store(State::kAsked, std::memory_order_release);
  asked_.fetch_add(1, std::memory_order_release);
  asked_.notify_one();
  return true;
}

int PooledSite::poll(SiteEvents& events, uint64_t now_ns) {
  now_ns_ = now_ns;
  int answered = 0;
  while (answered_ < asked_here_) {
    Slot& next = slot(answered_);
    const bool done = next.state.load(std::memory_order_acquire) == State::kDone;
    if (!done && !take_back(next)) break;
    core_.answered(now_ns, now_ns - std::min(now_ns, next.asked_ns), !done);
    const Ticket ticket = next.ticket;
    const SiteAnswer answer = std::move(next.answer);
    next.state.store(State::kFree, std::memory_order_relaxed);
    ++answered_;
    events.site_answered(ticket, answer);
    ++answered;
  }
  if (answered > 0 && core_.window_is_over(now_ns)) core_.preempted(now_ns, preemptions());
  return answered;
}

// True: it had not been begun, and is done now.
bool PooledSite::take_back(Slot& slot) {
  if (now_ns_ < slot.asked_ns + kBeginsWithinNs) return false;
  State asked = State::kAsked;
  if (!slot.state.compare_exchange_strong(asked, State::kBegun, std::memory_order_acquire)) {
    return false;
  }
  ++taken_back_;
  slot.answer = slot.work->compute_here(slot.ticket, slot.job);
  return true;
}

void PooledSite::compute() {
  for (uint64_t seen = 0;; ++seen) {
    wait_for_job(seen);
    Slot& job = slot(seen);
    State asked = State::kAsked;
    if (!job.state.compare_exchange_strong(asked, State::kBegun, std::memory_order_acquire)) {
      continue;  // taken back
    }
    if (job.work == nullptr) return;
    job.answer = job.work->compute_there(job.ticket, job.job);
    job.state.store(State::kDone, std::memory_order_release);
  }
}

// The next job often follows at once.
void PooledSite::wait_for_job(uint64_t seen) const {
  const uint64_t until = monotonic_ns() + kSpinNs;
  while (asked_.load(std::memory_order_acquire) == seen && monotonic_ns() < until) {
  }
  asked_.wait(seen, std::memory_order_acquire);
}

scheduler::SiteMaker pooled_site(uint32_t threads) {
  if (threads == 1) return {};
  return [](std::unique_ptr<Site> here) -> std::unique_ptr<Site> {
    std::unique_ptr<Site> there = here->twin();
    return std::make_unique<PooledSite>(std::move(here), std::move(there));
  };
}

}  // namespace cgx::daemon
