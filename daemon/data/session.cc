#include "daemon/data/session.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "proto/wire/text.h"

namespace cgx::daemon {
namespace {

// The notifier is a timerfd because setting one never blocks. An eventfd's O_NONBLOCK lies in the
// open file, which the client shares: it could clear the flag, fill the counter and stop the
// daemon.
void make_readable(int notifier) {
  constexpr itimerspec kPast{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  ::timerfd_settime(notifier, TFD_TIMER_ABSTIME, &kPast, nullptr);
}

// Some threads: any number of a client's may wait at a word that it shares, and waking them takes
// time from all jobs. A thread that is not woken looks again by itself before long.
void futex_wake(uint32_t& word) {
  constexpr int kWokenMax = 128;
  ::syscall(SYS_futex, &word, FUTEX_WAKE, kWokenMax, 0, 0, 0);
}

UniqueFd duplicate(const UniqueFd& fd) {
  return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace

Result<ChannelEnds> make_session_channel() {
  CGX_ASSIGN_OR_RETURN(OwnMemfd memory, make_session_memory());
  ChannelEnds ends;
  ends.ours.memory = std::move(memory.region);
  ends.ours.doorbell = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ends.ours.notifier = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  ends.theirs.memory = std::move(memory.fd);
  ends.theirs.doorbell = duplicate(ends.ours.doorbell);
  ends.theirs.notifier = duplicate(ends.ours.notifier);
  if (!ends.theirs.doorbell || !ends.theirs.notifier) {
    return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "descriptors of a session");
  }
  cgx_shm_header& header = *wire::SessionMemory(ends.ours.memory.bytes().data()).header;
  header.magic = CGX_SHM_MAGIC;
  header.version = CGX_SHM_VERSION;
  header.daemon_sleeping = 1;  // until the data agent has looked for the first time
  return ends;
}

Session::Session(SessionChannel channel, Reply reply)
    : channel_(std::move(channel)),
      memory_(channel_.memory.bytes().data()),
      submits_(memory_.submits, &memory_.header->submit_tail, &memory_.header->submit_head),
      completions_(memory_.completions, &memory_.header->completion_tail,
                   &memory_.header->completion_head),
      reply_(std::move(reply)) {}

void Session::complete(cgx_completion_record record, std::string_view text) {
  if (muted_) return;
  if (!text.empty()) {
    record.text_number = store_text(text);
    record.text_slot = record.text_number % CGX_TEXT_SLOTS;
  }
  if (!overflow_.empty() || !completions_.try_push(record)) overflow_.push_back(record);
}

// A failure is told once per tensor: one slot holds it for all of them.
uint32_t Session::store_text(std::string_view text) {
  if (text == last_text_) return texts_;
  last_text_ = text;
  if (++texts_ == 0) ++texts_;
  cgx_text_slot& slot = memory_.texts[texts_ % CGX_TEXT_SLOTS];
  std::atomic_ref<uint32_t> number(slot.number);
  number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  const std::string fits = wire::shortened(text, sizeof(slot.text) - 1);
  std::memcpy(slot.text, fits.c_str(), fits.size() + 1);
  number.store(texts_, std::memory_order_release);
  return texts_;
}

void Session::reply(uint32_t request, const wire::Reply& reply) {
  if (!muted_) reply_(request, reply);
}

void Session::refill() {
  while (!overflow_.empty() && completions_.try_push(overflow_.front())) overflow_.pop_front();
}

Status Session::publish(int* work) {
  refill();
  if (completions_.pushed() != published_) {
    *work += static_cast<int>(completions_.pushed() - published_);
    published_ = completions_.pushed();
    completions_.publish();
    wake_client();
  }
  if (overflow_.size() <= kOverflowMax) return {};
  return protocol_error(std::to_string(overflow_.size()) +
                        " completions wait behind a full ring the client does not empty");
}

void Session::wake_client() {
  cgx_shm_header& header = *memory_.header;
  std::atomic_ref<uint32_t>(header.wake_word).fetch_add(1, std::memory_order_seq_cst);
  const uint32_t waits =
      std::atomic_ref<uint32_t>(header.client_waits).load(std::memory_order_seq_cst);
  if (waits & 1) futex_wake(header.wake_word);
  if (waits & 2) make_readable(channel_.notifier.get());
}

void Session::beat() {
  if (++beats_ == 0) ++beats_;  // 0 means that nobody beats
  std::atomic_ref<uint32_t>(memory_.header->daemon_beat).store(beats_, std::memory_order_relaxed);
}

void Session::tell_communicator_ms(uint64_t communicator_ms) {
  std::atomic_ref<uint64_t>(memory_.header->communicator_ms)
      .store(communicator_ms, std::memory_order_relaxed);
}

void Session::set_sleeping(uint32_t value) {
  std::atomic_ref<uint32_t>(memory_.header->daemon_sleeping)
      .store(value, std::memory_order_seq_cst);
}

}  // namespace cgx::daemon
