// cgxd's end of a worker: the process cgxd-gpu of one (job, GPU), what is said to it, and the
// staging memory that both have.
//
// Thread rule: start(), add_arena(), close_arena(), make_residual(), reserve_work(), load_kernels()
// and add_staging() wait for the worker and are called on users' and planners' threads, the last
// four for a second or so at most, on a thread where no other plan waits; the rings are the data
// thread's; everything else may be called from anywhere and waits for nobody. The process ends with
// the last reference.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/shared_region.h"
#include "daemon/gpu/jobs.h"
#include "proto/wire/mutex.h"
#include "scheduler/communicator/snapshot.h"
#include "scheduler/exchange/buffer_pool.h"
#include "scheduler/shares.h"

namespace cgx::daemon::gpu {

// A worker's share of limits.gpu_workers, until its process is gone.
struct WorkerPlace {
  std::string holder;
  std::atomic<bool> ends{false};  // nobody uses the worker any more
};

struct WorkerOptions {
  std::string program;  // cgxd-gpu
  std::string job;
  uint32_t uid = 0;
  std::string holder;  // whose share it takes (daemon/base/holder.h)
  wire::DeviceId device{};
  std::shared_ptr<WorkerPlace> place = {};  // Workers fill it in
};

// Of a worker's program that posix_spawn() has not started.
Status spawn_status(const std::string& program, int error);

// Memory of frames on their way to and from a GPU, in blocks that grow with the plans; what the
// worker cannot pin is none. Blocks are looked up on the data thread while others are made.
class Staging final : public scheduler::SlabMemory {
 public:
  explicit Staging(std::shared_ptr<class Worker> worker) : worker_(std::move(worker)) {
    blocks_.reserve(kBlocksMax);
  }
  Result<std::byte*> map(uint64_t bytes) override;
  void unmap(std::byte* memory, uint64_t bytes) override;
  bool asks() const override { return true; }
  // REQUIRES: they lie in one block.
  Staged locate(std::span<const std::byte> bytes) const;

 private:
  static constexpr size_t kBlocksMax = 4096;
  struct Block {
    const std::byte* memory = nullptr;
    uint64_t bytes = 0;
    uint32_t number = 0;  // to the worker
  };
  const Block* find(const std::byte* memory) const;

  const std::shared_ptr<Worker> worker_;
  std::vector<Block> blocks_;
  std::atomic<size_t> there_{0};  // of them
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  static Result<std::shared_ptr<Worker>> start(const WorkerOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  struct Patience {
    int ms;
    const char* lost;  // what is said of a worker that took longer
  };
  struct AddedArena {
    uint32_t number = 0;
    uint64_t pattern = 0;  // what the worker has written in it
  };
  Result<AddedArena> add_arena(const wire::AddArena& message, int words, int memory);
  void drop_arena(uint32_t number);
  Status close_arena(uint32_t number);  // the same, and waits until the worker has
  void free_words(uint32_t number);
  Result<uint32_t> make_residual(uint64_t elements);
  void drop_residual(uint32_t number);
  // Of sparse codecs, before a plan whose jobs have up to so many buckets runs.
  Status reserve_work(uint32_t buckets, uint64_t bytes);
  Status load_kernels(const CodecSpec& spec);
  Result<uint32_t> add_staging(uint64_t bytes, int fd);  // its number
  void drop_staging(uint32_t number);
  // Packets that found no room yet go out. False: some still wait, and no job may go before them.
  bool flush();
  bool waits() const { return waits_.load(); }

  // What the data thread does with it.
  ByteProducer& jobs() { return *jobs_; }
  ByteConsumer& answers() { return *answers_; }
  void ring_if_asleep();
  void set_sleeping(bool sleeping);
  bool loads() const;     // kernels
  uint32_t beat() const;  // changes while it has jobs, unless it hangs or its driver does
  int notifier() const { return notifier_.get(); }
  int pidfd() const { return pidfd_.get(); }

  void kill(const char* why = nullptr);  // "did not answer within 1 s"; null: it says so itself
  bool alive() const;
  // It has died, or is about to: nobody else gets it.
  bool over() const { return over_.load() || found_dead_.load(); }
  void write_off() { over_ = true; }
  void see_off();             // once it is over: waits until it is gone, or for 5 s
  std::string death() const;  // "cgxd-gpu (process 7, GPU ...) of job 'a' was killed by signal 9"
  const wire::DeviceId& device() const { return options_.device; }
  const std::shared_ptr<WorkerPlace>& place() const { return options_.place; }
  scheduler::GpuSnapshot shown() const;  // without its arenas
  std::string name() const;

 private:
  Worker(const WorkerOptions& options, std::string visible);
  static Result<std::shared_ptr<Worker>> start_seeing(const WorkerOptions& options,
                                                      const std::string& visible,
                                                      uint64_t until_ns);
  Status open_channel();
  Status spawn(int socket);
  Status greet(uint64_t until_ns);
  Result<WorkerPacket> ask(WorkerPacket packet, std::initializer_list<int> fds,
                           const Patience& patience);
  Status tell(const WorkerPacket& packet, std::initializer_list<int> fds = {});
  Status send(const WorkerPacket& packet, std::initializer_list<int> fds) CGX_REQUIRES(sending_);
  void send_waiting() CGX_REQUIRES(sending_);
  bool hears(int timeout_ms);

  const WorkerOptions options_;
  const std::string visible_;  // its GPU, as CUDA_VISIBLE_DEVICES says it; empty: all GPUs are
  std::string driver_;         // what it said of its GPU when it started
  bool mps_ = false, asks_events_ = false;
  std::atomic<const char*> killed_for_{nullptr};
  mutable std::atomic<bool> found_dead_{false};  // by whoever asked for something
  std::atomic<bool> over_{false};
  OwnMemfd channel_;
  UniqueFd doorbell_, notifier_, socket_, pidfd_;
  int pid_ = 0;
  ChannelHead* head_ = nullptr;
  std::unique_ptr<ByteProducer> jobs_;
  std::unique_ptr<ByteConsumer> answers_;
  Mutex asking_;  // one question at a time
  uint32_t requests_ CGX_GUARDED_BY(asking_) = 0;
  struct Unsent {
    WorkerPacket packet;
    std::vector<UniqueFd> fds;
  };
  Mutex sending_;  // taken last
  std::deque<Unsent> unsent_ CGX_GUARDED_BY(sending_);
  std::atomic<bool> waits_{false};    // something is unsent
  std::atomic<uint32_t> numbers_{0};  // of arenas, residuals and blocks of staging memory
};

// An arena that a worker has imported; goes with the last one who names it.
class DeviceArena {
 public:
  DeviceArena(std::shared_ptr<Worker> worker, uint32_t number, const wire::AddArena& message)
      : worker_(std::move(worker)),
        number_(number),
        place_(message.arena),
        bytes_(message.bytes),
        way_(message.way) {}
  ~DeviceArena() {
    if (!closed_) worker_->drop_arena(number_);
  }
  DeviceArena(const DeviceArena&) = delete;

  // For its last owner; waits for the worker. One that has died has closed it.
  Status close() {
    closed_ = true;
    const Status status = worker_->close_arena(number_);
    return status.code() == StatusCode::kDEVICE_LOST ? Status() : status;
  }
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  uint32_t number() const { return number_; }
  uint32_t place() const { return place_; }  // among its session's arenas
  uint64_t bytes() const { return bytes_; }
  wire::ArenaWay way() const { return way_; }

 private:
  const std::shared_ptr<Worker> worker_;
  const uint32_t number_, place_;
  const uint64_t bytes_;
  const wire::ArenaWay way_;
  bool closed_ = false;
};

// The workers there are, by user, job and GPU. Thread rule: any thread.
class Workers {
 public:
  explicit Workers(std::string program = {}, uint32_t most = UINT32_MAX)
      : program_(std::move(program)), most_(most) {}
  // The running one, or a new one, of this program. Waits while it starts, and where there are as
  // many as there may be, while some of them end. RESOURCE_EXHAUSTED where none does.
  Result<std::shared_ptr<Worker>> of(WorkerOptions wanted);
  scheduler::Share share();  // of processes: that start, run or end

 private:
  struct Entry {
    uint32_t uid;
    std::string job;
    wire::DeviceId device;
    std::weak_ptr<Worker> worker;
    std::shared_ptr<Mutex> starting;
  };
  std::shared_ptr<Mutex> gate(const WorkerOptions& of);
  Entry* find(const WorkerOptions& of) CGX_REQUIRES(mutex_);
  scheduler::Share share_beside(const WorkerPlace* own) CGX_REQUIRES(mutex_);
  bool some_end(const WorkerPlace* own) const CGX_REQUIRES(mutex_);
  Result<std::shared_ptr<WorkerPlace>> take_place(const std::string& holder,
                                                  const WorkerPlace* own);

  const std::string program_;  // empty: beside this one
  const uint32_t most_;
  Mutex mutex_;
  std::vector<Entry> entries_ CGX_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<WorkerPlace>> places_ CGX_GUARDED_BY(mutex_);
};

}  // namespace cgx::daemon::gpu
