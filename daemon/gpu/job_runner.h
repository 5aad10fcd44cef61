// Jobs on their way through a GPU: what cgxd asks for becomes tables and launches, what the device
// has done becomes answers.
//
//   job -> its places looked up -> tables in pinned memory -> launches, a word written
//   the word is there -> what the kernels noted in the tables -> answer
//
// An operation's jobs stay on one stream, and begin when their trainers' words are there
// (held_jobs.h). Thread rule: the worker's main thread. Nothing waits for the device.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/gpu/device_memory.h"
#include "daemon/gpu/job_message.h"
#include "daemon/gpu/table_ring.h"
#include "kernels/cuda/driver_lane.h"

namespace cgx::daemon::gpu {

struct Answer {
  AnswerHead head;
  std::vector<Measured> measured;
  std::vector<scheduler::LossSample> losses;
  std::string text;
};

class JobRunner {
 public:
  static Result<std::unique_ptr<JobRunner>> create(const device::Driver& driver,
                                                   kernels::cuda::DriverLane& lane,
                                                   DeviceMemory& memory);
  ~JobRunner();
  JobRunner(const JobRunner&) = delete;

  // False: the tables have no room before others are done; ask again with the same job.
  bool begin(const JobMessage& job);
  using Sink = std::function<void(const Answer&)>;
  int poll(const Sink& sink, uint64_t now_ns);
  // Memory in which sparse codecs work: for jobs of up to so many buckets, with so many bytes
  // beside what the buckets under way need.
  Status reserve_work(uint32_t buckets, uint64_t bytes);
  bool busy() const { return !pending_.empty(); }
  bool writes_words() const { return words_; }  // otherwise the device is asked for events
  // The context has failed: it answers nothing else any more.
  const Status& lost() const { return lost_; }
  // If that is what the driver answered, whatever it was asked for.
  const Status& look_at(const Status& answered);

 private:
  using Slice = JobSlice;
  using Job = JobMessage;
  struct Noted {  // by a launch, about a slice
    kernels::cuda::Outcome* outcome = nullptr;
    uint32_t slice = 0;
    bool counts = true;  // for the answer; otherwise only whether it could be decoded does
  };
  // A piece of a slice, in which losses are measured, and the scratch memory for that.
  struct LossPiece {
    uint32_t slice = 0;
    uint64_t of_elements = 0;  // that the slice has
    uint64_t elements = 0;
    uint64_t draw_bucket = 0;
    kernels::RawView source = {};
    std::byte* encoded = nullptr;
    uint64_t encoded_bytes = 0;
    float* lost = nullptr;
  };
  using Encodes = kernels::cuda::Segment<kernels::EncodeJob>;
  struct Losses {
    std::vector<LossPiece> pieces;
    // Tables of the pieces: encoded with each strength, and what that has lost; their parts, null
    // where there are no residuals.
    std::vector<const Encodes*> sent, lost;
    const Encodes *gradients = nullptr, *residuals = nullptr;
  };
  struct Pending {
    uint64_t ticket = 0;
    uint32_t stream = 0, value = 0;  // of the stream's word, when it is done
    uint64_t tables_end = 0;
    uint32_t slices = 0;
    bool measures = false, done = false;
    Status status;
    std::vector<Noted> noted;
    Losses losses;
    std::string what;                   // "encode of maxmin:4"
    std::span<const std::byte> copied;  // hash: the piece
    uint64_t begun_ns = 0;
  };
  struct Stream {
    device::CUstream stream = nullptr;
    uint32_t value = 0;  // told to be written last
    device::CUdeviceptr scratch = 0;
    device::CUdeviceptr work = 0;  // of sparse codecs
    uint64_t work_bytes = 0;
    std::deque<std::pair<uint32_t, device::CUevent>> events;  // where there are no words
  };

  JobRunner(const device::Driver& driver, kernels::cuda::DriverLane& lane, DeviceMemory& memory)
      : driver_(driver), lane_(lane), memory_(memory) {}
  Status open();

  Status prepare(const Job& job, Pending& pending);
  bool can_write_words();
  Status enqueue(Stream& stream, const std::string& what);
  Status launch(Stream& stream);
  Status mark(Stream& stream);
  Result<device::CUevent> take_event();
  bool reached(const Pending& pending);
  void look_for_errors(uint64_t now_ns);
  void look_for_errors(uint32_t stream, const std::string& what);
  void answer(const Pending& pending, const Sink& sink);

  template <class KernelJob>
  Status tabulate_all(const Job& job, Pending& pending);
  template <class KernelJob>
  Status tabulate(const Job& job, std::span<const uint32_t> slices, Pending& pending);
  template <class KernelJob>
  Status fill(const Slice& slice, KernelJob& made, Pending& pending);
  // Numbers the buckets of a table, and launches it behind what the job has launched so far.
  template <class KernelJob>
  Status add_launch(const Stream& stream, std::span<kernels::cuda::Segment<KernelJob>> segments,
                    bool norms = false);
  Result<kernels::RawView> rack_view(const Slice& slice, const Staged& from, Pending& pending);
  Result<void*> decoded(const Slice& slice, std::span<const std::byte> encoded, Pending& pending);
  Result<std::byte*> scratch(uint64_t bytes);
  Status give_work(const Stream& stream, kernels::cuda::Work& work) const;
  Status local_reduce(const Job& job);
  Status local_reduce(const Slice& slice, const Stream& stream);

  // job_losses.cc
  Status tabulate_losses(const Job& job, Pending& pending);
  Status choose_pieces(const Job& job, uint32_t slice, Losses& losses);
  Result<Encodes*> encode_pieces(const Losses& losses, const Stream& stream,
                                 const std::function<kernels::EncodeJob(const LossPiece&)>& job_of);
  Status tabulate_strength(const Job& job, const CodecSpec& spec, Losses& losses,
                           const Stream& stream);
  Status tabulate_residuals(Losses& losses, const Stream& stream);
  static scheduler::LossSample loss_of(const Losses& losses, size_t piece);
  static std::vector<scheduler::LossSample> losses_of(const Losses& losses, uint32_t slices);

  Status keep(const Job& job, const Stream& stream);
  Status copy_for_hash(const Job& job, Pending& pending);
  Result<kernels::RawView> raw_view(const Slice& slice, uint64_t first = 0);
  Status set_targets(const Slice& slice, uint64_t first, void* const*& targets, uint32_t& count);
  template <class KernelJob>
  Status set_residual(const Slice& slice, KernelJob& made);

  template <class T>
  Result<T*> table(uint64_t count) {
    T* const made = tables_->take<T>(count);
    if (made == nullptr) full_ = true;
    if (made == nullptr) return Status(StatusCode::kRESOURCE_EXHAUSTED, "no room for tables");
    return made;
  }

  const device::Driver& driver_;
  kernels::cuda::DriverLane& lane_;
  DeviceMemory& memory_;
  std::unique_ptr<TableRing> tables_;
  std::unique_ptr<TableRing> done_memory_;  // never given back
  bool words_ = false;                      // streams write words; otherwise events are asked
  uint32_t* done_ = nullptr;                // by stream, a cache line each
  device::CUdeviceptr done_on_device_ = 0;
  std::array<Stream, kStreams> streams_;
  std::vector<device::CUevent> free_events_;  // where there are no words
  std::deque<Pending> pending_;               // as they came
  using Launch = std::function<Status(device::CUstream)>;
  std::vector<Launch> launches_;  // of the job that begins
  struct Scratch {                // of its stream
    device::CUdeviceptr at = 0;
    uint64_t used = 0;
  };
  Scratch scratch_;
  bool full_ = false;
  Status lost_;
  uint64_t now_ns_ = 0, looked_ns_ = 0;
};

}  // namespace cgx::daemon::gpu
