// A rank in a few calls over the raw session: what libcgx does, without its checks.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/shared_region.h"
#include "proto/wire/ring.h"
#include "tests/daemon/ipc/raw_client.h"

namespace cgx::daemon {

class MiniRank {
 public:
  static constexpr uint64_t kArenaBytes = 64 * 1024;

  MiniRank(const std::string& socket, const std::string& job) : client_(socket) {
    client_.send(wire::Hello{job, "mini"}, 1);
    auto welcome = client_.receive();
    EXPECT_TRUE(welcome && welcome->fds.size() == 3);
    instance_ = wire::decode_body<wire::Welcome>(welcome->body).value().instance;
    memory_fd_ = std::move(welcome->fds[0]);
    doorbell_ = std::move(welcome->fds[1]);
    region_ = map(memory_fd_.get(), CGX_SHM_BYTES);
    memory_ = std::make_unique<wire::SessionMemory>(region_.bytes().data());
    cgx_shm_header* header = memory_->header;
    submits_ = std::make_unique<wire::SubmitProducer>(memory_->submits, &header->submit_tail,
                                                      &header->submit_head);
    completions_ = std::make_unique<wire::CompletionConsumer>(
        memory_->completions, &header->completion_tail, &header->completion_head);
    add_arena();
  }

  // Joins `ranks` ranks of this machine: one tensor of `elements` floats, summed.
  void start_joining(uint32_t rank, uint32_t ranks, const std::string& name = "dp") {
    wire::CreateCommunicator create{.name = name, .rank = rank, .first_step = 1};
    create.members.resize(ranks, {.instance = instance_, .mesh_address = "", .device = {}});
    client_.send(create, 10);
  }
  wire::Reply finish_joining() { return client_.receive_reply(); }
  wire::Reply commit(uint64_t elements) {
    wire::TensorDescription tensor{.name = "g", .elements = elements, .shape = {elements}};
    client_.send(wire::RegisterTensors{.tensors = {tensor}}, 0);
    client_.send(wire::Commit{.tensors = 1}, 11);
    return client_.receive_reply();
  }

  void submit(uint64_t step) {
    push({.kind = CGX_SUBMIT_TENSOR, .step = step});
    push({.kind = CGX_SUBMIT_STEP_END, .step = step});
  }
  void push(const cgx_submit_record& record) {
    EXPECT_TRUE(submits_->try_push(record));
    submits_->publish();
    ring();
  }
  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::atomic_ref<uint32_t> sleeping(memory_->header->daemon_sleeping);
    if (sleeping.load() != 0) ::eventfd_write(doorbell_.get(), 1);
  }
  // The next completion; kind 0: none within 10 s.
  cgx_completion_record completion() {
    cgx_completion_record record{};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < deadline) {
      if (completions_->try_pop(record) == wire::CompletionConsumer::Pop::kRecord) {
        completions_->release();
        return record;
      }
      std::this_thread::yield();
    }
    ADD_FAILURE() << "no completion within 10 s";
    return {};
  }
  std::string text(const cgx_completion_record& record) const {
    return memory_->texts[record.text_slot % CGX_TEXT_SLOTS].text;
  }

  float* data() { return reinterpret_cast<float*>(arena_.bytes().data()); }
  cgx_shm_header& header() { return *memory_->header; }
  RawClient& client() { return client_; }

 private:
  static SharedRegion map(int fd, size_t bytes) {
    return std::move(SharedRegion::map(fd, bytes, SharedRegion::Populate::kNo)).value();
  }
  void add_arena() {
    const UniqueFd memfd = make_arena(kArenaBytes);
    arena_ = map(memfd.get(), kArenaBytes);
    client_.send(wire::AddArena{.arena = 0, .bytes = kArenaBytes}, 2, {memfd.get()});
    EXPECT_EQ(client_.receive_reply().code, StatusCode::kOK);
  }

  RawClient client_;
  wire::InstanceId instance_{};
  UniqueFd memory_fd_, doorbell_;
  SharedRegion region_, arena_;
  std::unique_ptr<wire::SessionMemory> memory_;
  std::unique_ptr<wire::SubmitProducer> submits_;
  std::unique_ptr<wire::CompletionConsumer> completions_;
};

}  // namespace cgx::daemon
