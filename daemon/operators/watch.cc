#include "daemon/operators/watch.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/operators/concealed.h"

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

// What happened between two looks. Without events a step's time is what a second has of them.
Watch::Sample sample_of(const Watch::JobPast& before, const Watch::JobPast& now, uint64_t now_ns,
                        double seconds) {
  Watch::Sample sample{.time_ns = now_ns,
                       .step_ms = 0,
                       .exchange_ms = 0,
                       .raw_rate = rate(now.gradient_bytes, before.gradient_bytes, seconds),
                       .sent_rate = rate(now.sent_bytes, before.sent_bytes, seconds)};
  const double told = rate(now.steps_told, before.steps_told, 1);
  const double steps = rate(now.steps, before.steps, 1);
  if (told > 0) {
    sample.step_ms = 1e-6 * rate(now.step_ns, before.step_ns, told);
    sample.exchange_ms = 1e-6 * rate(now.exchange_ns, before.exchange_ns, told);
  } else if (now.step_ns == 0 && steps > 0) {
    sample.step_ms = 1e3 * seconds / steps;
  }
  return sample;
}

}  // namespace

Watch::Watch(OperatorPort& port, bool job_names)
    : port_(port), job_names_(job_names), thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "cgxd-watch");
}

Watch::~Watch() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

bool Watch::ended_within(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!ending_ && ended_.wait_until(mutex_, end)) {
  }
  return ending_;
}

void Watch::run() {
  MutexLock lock(mutex_);
  while (!ended_within(kEvents)) {
    take_events();
    if (monotonic_ns() - last_look_ns_ < kLookNs) continue;
    lock.unlock();
    Result<scheduler::Snapshot> snapshot = port_.snapshot(kSnapshotNs);
    if (snapshot.ok() && !job_names_) conceal(*snapshot);
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
    const JobPast before = std::exchange(
        past, {{}, one.watermark, one.gradient_bytes, one.wire_bytes_sent, 0, 0, 0, true});
    past.samples = before.samples;
    if (told != nullptr) {
      past.steps_told = told->steps;
      past.step_ns = told->step_ns;
      past.exchange_ns = told->exchange_ns;
    }
    if (!is_new && seconds > 0) keep(past, sample_of(before, past, now_ns, seconds));
  }
  for (const auto& one : snapshot.peers) {
    const auto [place, is_new] = links_.try_emplace(key_of(one));
    LinkPast& past = place->second;
    if (past.seen) continue;  // of a communicator that makes room for the next of its name
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
