#include "daemon/pooled_site.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "daemon/clock.h"

namespace cgx::daemon {

using scheduler::Norms;
using scheduler::OperationSetup;
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

bool needs_the_frame_in_hand(const SiteJob& job) {
  const auto in_hand = [](const SiteContribution& from) { return from.frame.live != nullptr; };
  return job.frame.live != nullptr || std::any_of(job.from.begin(), job.from.end(), in_hand);
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
        worthwhile && !needs_the_frame_in_hand(job) && site_.give(*there_, ticket, job);
    return given ? std::nullopt : here_->ask(ticket, job);
  }
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

 private:
  PooledSite& site_;
  const OperationSetup& setup_;
  const std::unique_ptr<SiteOperation> here_, there_;
  mutable std::vector<Norms> norms_;
};

PooledSite::PooledSite(std::unique_ptr<Site> here, std::unique_ptr<Site> there)
    : here_(std::move(here)), there_(std::move(there)), thread_([this] { compute(); }) {
  pthread_setname_np(thread_.native_handle(), "cgxd-compute");
}

PooledSite::~PooledSite() {
  while (done_.load(std::memory_order_acquire) != asked_here_) std::this_thread::yield();
  slot(asked_here_).work = nullptr;
  asked_.store(asked_here_ + 1, std::memory_order_release);
  asked_.notify_one();
  thread_.join();
}

std::unique_ptr<SiteOperation> PooledSite::begin(const OperationSetup& setup) {
  return std::make_unique<Work>(*this, setup);
}

bool PooledSite::give(SiteOperation& work, Ticket ticket, const SiteJob& job) {
  if (asked_here_ - answered_ == kSlots) return false;
  Slot& to = slot(asked_here_);
  to.work = &work;
  to.ticket = ticket;
  to.job = job;
  to.from.assign(job.from.begin(), job.from.end());
  to.job.from = to.from;
  asked_.store(++asked_here_, std::memory_order_release);
  asked_.notify_one();
  return true;
}

int PooledSite::poll(SiteEvents& events, uint64_t now_ns) {
  (void)now_ns;
  int answered = 0;
  while (answered_ < done_.load(std::memory_order_acquire)) {
    const Ticket ticket = slot(answered_).ticket;
    const SiteAnswer answer = std::move(slot(answered_).answer);
    ++answered_;
    events.site_answered(ticket, answer);
    ++answered;
  }
  return answered;
}

void PooledSite::compute() {
  for (uint64_t taken = 0;; ++taken) {
    wait_for_job(taken);
    Slot& job = slot(taken);
    if (job.work == nullptr) return;
    job.answer = *job.work->ask(job.ticket, job.job);
    done_.store(taken + 1, std::memory_order_release);
  }
}

// The next job often follows at once.
uint64_t PooledSite::wait_for_job(uint64_t taken) const {
  const uint64_t until = monotonic_ns() + kSpinNs;
  uint64_t asked = asked_.load(std::memory_order_acquire);
  while (asked == taken && monotonic_ns() < until) asked = asked_.load(std::memory_order_acquire);
  while (asked == taken) {
    asked_.wait(taken, std::memory_order_acquire);
    asked = asked_.load(std::memory_order_acquire);
  }
  return asked;
}

}  // namespace cgx::daemon
