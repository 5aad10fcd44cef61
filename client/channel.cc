#include "client/channel.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include "client/deadline.h"

namespace cgx::client {
namespace {

constexpr uint32_t kWaitBit = 1, kEventBit = 2;

// Words of the header that both processes use.
std::atomic_ref<uint32_t> word_of(uint32_t& word) {
  return std::atomic_ref<uint32_t>(word);
}

Status check_memory(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(CGX_SHM_BYTES)) {
    return protocol_error("the daemon's session memory has fewer than the " +
                          std::to_string(CGX_SHM_BYTES) + " bytes of version " +
                          std::to_string(CGX_SHM_VERSION));
  }
  return {};
}

Status check_header(const cgx_shm_header& header) {
  if (header.magic != CGX_SHM_MAGIC) {
    return protocol_error("the daemon's session memory does not begin with the cgx magic");
  }
  if (header.version == CGX_SHM_VERSION) return {};
  return {StatusCode::kVERSION_MISMATCH,
          "the daemon's session memory has version " + std::to_string(header.version) +
              ", this library speaks " + std::to_string(CGX_SHM_VERSION)};
}

}  // namespace

Result<std::unique_ptr<Channel>> Channel::map(UniqueFd memory, UniqueFd doorbell,
                                              UniqueFd completion_event) {
  CGX_RETURN_IF_ERROR(check_memory(memory.get()));
  void* base = ::mmap(nullptr, CGX_SHM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      memory.get(), 0);
  if (base == MAP_FAILED) {
    return resource_exhausted(std::string("mapping the session memory: ") + std::strerror(errno));
  }
  ::madvise(base, CGX_SHM_BYTES, MADV_DONTFORK);
  std::unique_ptr<Channel> channel(
      new Channel(base, std::move(doorbell), std::move(completion_event)));
  CGX_RETURN_IF_ERROR(check_header(*channel->memory_.header));
  return channel;
}

Channel::Channel(void* base, UniqueFd doorbell, UniqueFd completion_event)
    : base_(base),
      memory_(base),
      doorbell_(std::move(doorbell)),
      event_(std::move(completion_event)),
      submits_(memory_.submits, &memory_.header->submit_tail, &memory_.header->submit_head),
      completions_(memory_.completions, &memory_.header->completion_tail,
                   &memory_.header->completion_head) {}

Channel::~Channel() {
  ::munmap(base_, CGX_SHM_BYTES);
}

uint32_t Channel::submit_room() const {
  const uint64_t used = submits_.pushed() - wire::load_acquire(memory_.header->submit_head);
  return used >= CGX_SUBMIT_CAPACITY ? 0 : CGX_SUBMIT_CAPACITY - static_cast<uint32_t>(used);
}

void Channel::push(const cgx_submit_record& record) {
  CGX_ASSERT(submits_.try_push(record));
}

void Channel::publish() {
  submits_.publish();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto sleeping = word_of(memory_.header->daemon_sleeping);
  if (sleeping.load(std::memory_order_relaxed) == 0) return;
  sleeping.store(0, std::memory_order_relaxed);  // one ring is enough
  const uint64_t one = 1;
  // It can only fail when the counter is full, and then the daemon is awake already.
  [[maybe_unused]] const ssize_t ignored = ::write(doorbell_.get(), &one, sizeof(one));
}

uint32_t Channel::beat() const {
  return word_of(memory_.header->daemon_beat).load(std::memory_order_relaxed);
}

uint64_t Channel::communicator_ms() const {
  return std::atomic_ref<uint64_t>(memory_.header->communicator_ms).load(std::memory_order_relaxed);
}

std::string Channel::text_of(const cgx_completion_record& record) const {
  if (record.text_number == 0 || record.text_slot >= CGX_TEXT_SLOTS) return {};
  cgx_text_slot& slot = memory_.texts[record.text_slot];
  char text[sizeof(slot.text)];
  if (word_of(slot.number).load(std::memory_order_acquire) != record.text_number) return {};
  std::memcpy(text, slot.text, sizeof(text));
  std::atomic_thread_fence(std::memory_order_acquire);
  if (word_of(slot.number).load(std::memory_order_relaxed) != record.text_number) return {};
  return std::string(text, ::strnlen(text, sizeof(text)));
}

void Channel::announce() {
  if (waiters_++ == 0) word_of(memory_.header->client_waits).fetch_or(kWaitBit);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Channel::withdraw() {
  if (--waiters_ == 0) word_of(memory_.header->client_waits).fetch_and(~kWaitBit);
}

uint32_t Channel::word() const {
  return word_of(memory_.header->wake_word).load(std::memory_order_acquire);
}

void Channel::sleep(uint32_t word, std::chrono::nanoseconds limit) const {
  const timespec span = to_timespec(limit);
  ::syscall(SYS_futex, &memory_.header->wake_word, FUTEX_WAIT, word, &span, nullptr, 0);
}

void Channel::wake_all() const {
  word_of(memory_.header->wake_word).fetch_add(1);  // for who has read it, but does not sleep yet
  ::syscall(SYS_futex, &memory_.header->wake_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int Channel::arm_event() {
  word_of(memory_.header->client_waits).fetch_or(kEventBit);
  return event_.get();
}

void Channel::clear_event() const {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t ignored = ::read(event_.get(), &count, sizeof(count));
}

void Channel::abandon_descriptors() {
  doorbell_.release();
  event_.release();
}

}  // namespace cgx::client
