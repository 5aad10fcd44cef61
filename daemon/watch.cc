#include "daemon/watch.h"

#include <pthread.h>

#include <algorithm>

#include "daemon/clock.h"

namespace cgx::daemon {
namespace {

constexpr auto kEvents = std::chrono::milliseconds(200);  // the recorder holds some 65,000
constexpr uint64_t kLookNs = 1 * kSecond;
constexpr uint64_t kSnapshotNs = 1 * kSecond;

double rate(uint64_t now, uint64_t before, double seconds) {
  return now < before ? 0 : static_cast<double>(now - before) / seconds;
}

template <typename Past, typename Sample>
void keep(Past& past, const Sample& sample) {
  past.samples.push_back(sample);
  if (past.samples.size() > Watch::kSamplesMax) past.samples.pop_front();
}

}  // namespace

Watch::Watch(OperatorPort& port) : port_(port), thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "cgxd-watch");
}

Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kEvents, [this] { return ending_; })) {
    take_events();
    if (monotonic_ns() - last_look_ns_ < kLookNs) continue;
    lock.unlock();
    const Result<scheduler::Snapshot> snapshot = port_.snapshot(kSnapshotNs);
    lock.lock();
    if (snapshot.ok()) take_snapshot(*snapshot, monotonic_ns());
  }
}

bool Watch::take_events() {
  const auto reading = port_.events(next_event_);
  if (!reading.ok()) return false;
  for (const scheduler::Event& event : reading->events) tally_.take(event);
  next_event_ = reading->end();
  return true;
}

void Watch::take_snapshot(const scheduler::Snapshot& snapshot, uint64_t now_ns) {
  const double seconds =
      last_look_ns_ == 0 ? 0 : static_cast<double>(now_ns - last_look_ns_) * 1e-9;
  last_look_ns_ = now_ns;
  for (auto& [key, past] : jobs_) past.seen = false;
  for (auto& [key, past] : links_) past.seen = false;
  for (const auto& one : snapshot.communicators) {
    const auto [place, is_new] = jobs_.try_emplace({one.index, one.created_ns});
    JobPast& past = place->second;
    const Tally::Job* const told = tally_.find(one.index, one.created_ns);
    const uint64_t steps_told = told == nullptr ? 0 : told->steps;
    const uint64_t exchange_ns = told == nullptr ? 0 : told->exchange_ns;
    if (!is_new && seconds > 0) {
      const double steps = rate(one.watermark, past.steps, 1);
      const double news = rate(steps_told, past.steps_told, 1);
      keep(past,
           Sample{.time_ns = now_ns,
                  .step_ms = steps == 0 ? 0 : 1e3 * seconds / steps,
                  .exchange_ms = news == 0 ? 0 : 1e-6 * rate(exchange_ns, past.exchange_ns, news),
                  .raw_rate = rate(one.gradient_bytes, past.gradient_bytes, seconds),
                  .sent_rate = rate(one.wire_bytes_sent, past.sent_bytes, seconds)});
    }
    past = {std::move(past.samples),
            one.watermark,
            one.gradient_bytes,
            one.wire_bytes_sent,
            steps_told,
            exchange_ns,
            true};
  }
  for (const auto& one : snapshot.peers) {
    const auto [place, is_new] = links_.try_emplace({one.job, one.address});
    LinkPast& past = place->second;
    if (!is_new && seconds > 0) {
      keep(past, LinkSample{now_ns, rate(one.bytes_sent, past.sent, seconds),
                            rate(one.bytes_received, past.received, seconds)});
    }
    past = {std::move(past.samples), one.bytes_sent, one.bytes_received, true};
  }
  std::erase_if(jobs_, [](const auto& each) { return !each.second.seen; });
  std::erase_if(links_, [](const auto& each) { return !each.second.seen; });
}

}  // namespace cgx::daemon
