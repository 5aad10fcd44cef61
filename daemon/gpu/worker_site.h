// The site of ranks whose tensors lie on one GPU: each job goes to its worker, and is answered when
// the GPU has done it.
//
//   ask() -> job -> ring -> worker ... -> ring -> answer -> poll() -> SiteEvents
//
// Frames lie in staging memory that the worker has too. A worker that dies, does not answer within
// a second of end(), or stands still for half a minute with jobs to do, is lost: whatever was asked
// is answered DEVICE_LOST when its process is dead, or after 10 s, and everything that is asked
// from then on at once. Thread rule: as every site.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/gpu/worker.h"
#include "scheduler/exchange/place.h"
#include "scheduler/exchange/plan_facts.h"
#include "scheduler/exchange/site.h"

namespace cgx::daemon::gpu {

class WorkerSite final : public scheduler::Site {
 public:
  // Told of the encoded bytes that a job writes or reads in staging memory.
  using Counting = std::function<void(uint64_t staged_bytes)>;
  WorkerSite(std::shared_ptr<Worker> worker, std::shared_ptr<Staging> staging,
             std::shared_ptr<scheduler::SlabStore> slabs, const scheduler::ArenaTable& arenas,
             Counting counting)
      : worker_(std::move(worker)),
        staging_(std::move(staging)),
        slabs_(std::move(slabs)),
        arenas_(arenas),
        counting_(std::move(counting)) {}

  bool consumes_inside() const override { return false; }
  std::unique_ptr<scheduler::SiteOperation> begin(const scheduler::OperationSetup& setup) override;
  scheduler::ResidualMaker residual_maker() const override;
  scheduler::SitePreparer preparer() const override;
  bool residuals_elsewhere() const override { return true; }
  Status takes(const CodecSpec& spec, DType dtype) const override;
  Status fits(const scheduler::JobLists& lists) const override;
  uint64_t scratch_bytes() const override { return kScratchBytes; }
  int poll(scheduler::SiteEvents& events, uint64_t now_ns) override;
  uint64_t next_answer_ns() const override;
  Status lost() const override;

  // Before the data thread sleeps: the worker rings from now on. False: there are answers already.
  bool prepare_sleep();
  void woken() { worker_->set_sleeping(false); }

 private:
  class Work;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Range {  // that is encoded
    uint32_t offset = 0, bytes_max = 0;
    bool variable = false;
  };
  struct Asked {
    Work* work = nullptr;
    uint32_t about = kNone;          // segment, to be named where it fails
    uint32_t bytes = 0;              // that are encoded
    std::vector<uint32_t> segments;  // by slice, where norms or losses were asked for
    uint32_t part = 0;               // of it, where it is about one,
    const scheduler::Presence* presence = nullptr;
    std::span<std::byte> out;   // where sizes vary: what the ranges are in,
    std::vector<Range> ranges;  // by slice, as far apart as they can be
    bool varies = false;        // one of them does
  };
  struct Findings {  // by slice
    std::span<const Measured> measured;
    std::span<const scheduler::LossSample> losses;
  };

  void give(scheduler::Ticket ticket, Asked asked, std::vector<std::byte>& message);
  void send(const std::vector<std::byte>& message);
  void refuse(scheduler::Ticket ticket, Asked asked, Status why);
  bool take_answer(scheduler::SiteEvents& events);
  bool take_held(const AnswerHead& head);
  bool disbelieve(const char* what);  // of its answers none is taken any more
  void flush();
  bool beats(uint64_t passed_ns);
  void lose(const Status& why);
  void refuse_asked();
  uint64_t first_ended_by_ns() const;
  void answer(scheduler::SiteEvents& events, scheduler::Ticket ticket, scheduler::SiteAnswer answer,
              const Findings& found = {});

  const std::shared_ptr<Worker> worker_;
  const std::shared_ptr<Staging> staging_;
  const std::shared_ptr<scheduler::SlabStore> slabs_;
  const scheduler::ArenaTable& arenas_;
  const Counting counting_;
  std::unordered_map<scheduler::Ticket, Asked> asked_;
  std::vector<std::pair<scheduler::Ticket, Status>> refused_;
  std::deque<std::vector<std::byte>> unsent_;
  std::vector<std::byte> answer_;
  std::vector<std::byte> message_;  // that is being written
  uint32_t operations_ = 0;
  uint64_t now_ns_ = 0;
  uint64_t ended_by_ns_ = UINT64_MAX;  // when something that was ended must be answered
  uint64_t gone_by_ns_ = UINT64_MAX;   // the process of a worker that is lost, at the latest
  uint64_t looked_ns_ = 0;             // whether the worker lives
  uint32_t beat_ = 0;                  // of the worker, then
  uint64_t silent_ns_ = 0;             // so long it has had the same one, with something to do
  Status lost_;
};

}  // namespace cgx::daemon::gpu
