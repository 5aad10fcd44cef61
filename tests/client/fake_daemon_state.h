// What the fake daemon remembers of sessions, members and communicators. Only its two sources
// include it.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/client/fake_daemon.h"

namespace cgx::testing {

inline std::atomic_ref<uint32_t> word_of(uint32_t& word) {
  return std::atomic_ref<uint32_t>(word);
}

struct Mapping {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  Mapping(int fd, uint64_t size) : bytes(size) {
    void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    base = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  }
  ~Mapping() {
    if (base) ::munmap(base, bytes);
  }
};

struct FakeDaemon::Session {
  cgx::UniqueFd socket, doorbell, event;
  std::string job;
  std::unique_ptr<Mapping> memory;
  std::unique_ptr<wire::SubmitConsumer> submits;
  std::unique_ptr<wire::CompletionProducer> completions;
  std::vector<std::unique_ptr<Mapping>> arenas;
  std::set<Comm*> comms;
  uint32_t texts = 0;
  bool greeted = false, gone = false;

  cgx_shm_header& header() { return *reinterpret_cast<cgx_shm_header*>(memory->base); }
  std::byte* at(uint8_t arena, uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return nullptr;
    if (arena >= arenas.size() || offset > arenas[arena]->bytes ||
        bytes > arenas[arena]->bytes - offset) {
      return nullptr;
    }
    return arenas[arena]->base + offset;
  }
  void wake() {
    if (!greeted) return;
    completions->publish();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    word_of(header().wake_word).fetch_add(1);
    const uint32_t waits = word_of(header().client_waits).load();
    if (waits & 1) {
      ::syscall(SYS_futex, &header().wake_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
    const uint64_t one = 1;
    if (waits & 2) static_cast<void>(::write(event.get(), &one, sizeof(one)) == 0);
  }
};

struct FakeDaemon::Member {
  Session* session = nullptr;
  uint32_t handle = 0;
  uint32_t create_request = 0, commit_request = 0, redo_request = 0;
  std::vector<wire::TensorDescription> tensors;
  struct Said {
    bool present = false;
    cgx_submit_record record{};
  };
  struct Step {
    std::map<uint32_t, Said> said;  // by tensor
    std::set<uint32_t> failed;      // tensors answered with the failure
    bool ended = false, reported = false;
    uint64_t cookie = 0;
  };
  std::map<uint64_t, Step> steps;
  std::map<uint64_t, cgx_submit_record> calls;
  std::set<uint64_t> dropped;  // steps
};

struct FakeDaemon::Comm {
  std::string name;
  std::vector<Member> members;  // by rank
  size_t committed = 0;
  uint32_t attempt = 0;
  uint64_t first_step = 0;
  uint64_t failed_step = 0;
  bool joined = false, has_failed = false;
  Status failure;
  std::map<uint64_t, std::set<uint32_t>> done;  // step -> tensors completed
};

}  // namespace cgx::testing
