#include "daemon/gpu/job_runner.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "proto/wire/frame.h"

namespace cgx::daemon::gpu {
namespace {

namespace cuda = kernels::cuda;
using device::CUdeviceptr;
using kernels::CombineJob;
using kernels::Contribution;
using kernels::DecodeJob;
using kernels::EncodeJob;
using kernels::RawView;
using kernels::ReduceJob;

constexpr uint32_t kNotANumber = 0x7fc00000;
constexpr uint64_t kLine = 64;  // where values in scratch memory begin
constexpr uint32_t kDoneBytes = 64;
constexpr uint64_t kLookNs = 1'000'000, kIdleLookNs = 1'000'000'000;

const char* words_of(JobKind kind) {
  switch (kind) {
    case JobKind::kEncode:
      return "encode";
    case JobKind::kDecode:
      return "decode";
    case JobKind::kReduce:
      return "reduce";
    case JobKind::kCombine:
      return "combine";
    case JobKind::kLocalReduce:
      return "local reduce";
    case JobKind::kKeep:
      return "keeping a residual";
    case JobKind::kHash:
      return "hashing a result";
    case JobKind::kEnd:
    case JobKind::kGiveWay:
      break;
  }
  return "no job";
}

template <class Job>
constexpr bool kHasNorms = requires(Job job) {
  job.norms;
};

}  // namespace

Result<std::unique_ptr<JobRunner>> JobRunner::create(const device::Driver& driver,
                                                     cuda::DriverLane& lane, DeviceMemory& memory) {
  std::unique_ptr<JobRunner> runner(new JobRunner(driver, lane, memory));
  CGX_RETURN_IF_ERROR(runner->open());
  return runner;
}

Status JobRunner::open() {
  CGX_ASSIGN_OR_RETURN(tables_, TableRing::create(driver_, kTableBytes));
  CGX_ASSIGN_OR_RETURN(done_memory_, TableRing::create(driver_, kStreams * kDoneBytes));
  std::byte* const words = done_memory_->take<std::byte>(kStreams * kDoneBytes);
  std::memset(words, 0, kStreams * kDoneBytes);
  done_ = reinterpret_cast<uint32_t*>(words);
  done_on_device_ = reinterpret_cast<CUdeviceptr>(done_memory_->on_device(words));
  for (Stream& each : streams_) {
    CGX_RETURN_IF_ERROR(driver_.check(
        driver_.cuStreamCreate(&each.stream, device::CU_STREAM_NON_BLOCKING), "making a stream"));
    CGX_RETURN_IF_ERROR(
        driver_.check(driver_.cuMemAlloc(&each.scratch, kScratchBytes), "scratch memory"));
  }
  words_ = can_write_words();
  return {};
}

// A driver that has the function may have a device that has not.
bool JobRunner::can_write_words() {
  return driver_.lacks(device::Feature::kWords).ok() &&
         driver_.cuStreamWriteValue32(streams_[0].stream, done_on_device_, 0,
                                      device::CU_STREAM_WRITE_VALUE_DEFAULT) ==
             device::CUDA_SUCCESS;
}

JobRunner::~JobRunner() {
  for (Stream& each : streams_) {
    if (each.stream != nullptr) driver_.cuStreamDestroy(each.stream);
    if (each.scratch != 0) driver_.cuMemFree(each.scratch);
    if (each.work != 0) driver_.cuMemFree(each.work);
    for (const auto& [value, event] : each.events) driver_.cuEventDestroy(event);
  }
  for (device::CUevent each : free_events_) driver_.cuEventDestroy(each);
}

Status JobRunner::reserve_work(uint32_t buckets, uint64_t bytes) {
  CGX_RETURN_IF_ERROR(lane_.load("sparse"));
  const uint64_t teams = std::min(buckets, lane_.device().multiprocessors);
  const uint64_t wanted = bytes + teams * cuda::kSparseTeamBytes;
  for (Stream& each : streams_) {
    if (each.work_bytes >= wanted) continue;
    CGX_ASSIGN_OR_RETURN(const CUdeviceptr made,
                         memory_.allocate(wanted, "work memory of sparse codecs, " +
                                                      std::to_string(wanted) + " bytes"));
    if (each.work != 0) memory_.free_later(each.work);
    each.work = made;
    each.work_bytes = wanted;
  }
  return {};
}

Status JobRunner::give_work(const Stream& stream, cuda::Work& work) const {
  if (work.bytes > stream.work_bytes) {
    return internal_error("a job needs " + std::to_string(work.bytes) +
                          " bytes of work memory, its plan reserved " +
                          std::to_string(stream.work_bytes));
  }
  work.memory = reinterpret_cast<uint8_t*>(stream.work);
  return {};
}

bool JobRunner::begin(const Job& job) {
  Pending pending{.ticket = job.head.ticket, .stream = job.head.stream};
  pending.slices = job.head.slices;
  pending.what = words_of(job.head.kind);
  if (!job.slices.empty()) pending.what += " of " + kernels::to_string(job.slices[0].head.spec);
  pending.begun_ns = now_ns_;
  const uint64_t mark_before = tables_->mark();
  full_ = false;
  launches_.clear();
  scratch_ = {streams_[pending.stream].scratch, 0};
  pending.status = lost_.ok() ? prepare(job, pending) : lost_;
  if (full_ && !pending_.empty()) {
    tables_->take_back(mark_before);
    return false;
  }
  Stream& stream = streams_[pending.stream];
  if (pending.status.ok()) pending.status = enqueue(stream, pending.what);
  look_at(pending.status);
  pending.value = stream.value;
  pending.tables_end = tables_->mark();
  pending_.push_back(std::move(pending));
  return true;
}

const Status& JobRunner::look_at(const Status& answered) {
  if (answered.code() == StatusCode::kDEVICE_LOST && lost_.ok()) lost_ = answered;
  return answered;
}

// All tables before the first launch: what has begun is not begun again. Kernels are loaded here,
// too.
Status JobRunner::prepare(const Job& job, Pending& pending) {
  if (!job.strengths.empty()) CGX_RETURN_IF_ERROR(tabulate_losses(job, pending));
  switch (job.head.kind) {
    case JobKind::kEncode:
      return tabulate_all<EncodeJob>(job, pending);
    case JobKind::kDecode:
      return tabulate_all<DecodeJob>(job, pending);
    case JobKind::kReduce:
      return tabulate_all<ReduceJob>(job, pending);
    case JobKind::kCombine:
      return tabulate_all<CombineJob>(job, pending);
    case JobKind::kLocalReduce:
      return local_reduce(job);
    case JobKind::kKeep:
      return keep(job, streams_[pending.stream]);
    case JobKind::kHash:
      return copy_for_hash(job, pending);
    case JobKind::kEnd:
    case JobKind::kGiveWay:
      break;
  }
  return internal_error("no such job");
}

// What was launched is waited for even if something behind it was refused: it uses the tables. A
// kernel that failed meanwhile shows in whatever is asked of the driver next.
Status JobRunner::enqueue(Stream& stream, const std::string& what) {
  const Status launched = launch(stream);
  const Status marked = mark(stream);
  if (marked.ok()) return launched;
  lost_ = {StatusCode::kDEVICE_LOST, what + ": " + marked.message()};
  return lost_;
}

Status JobRunner::launch(Stream& stream) {
  for (const Launch& each : launches_) CGX_RETURN_IF_ERROR(each(stream.stream));
  return {};
}

Status JobRunner::mark(Stream& stream) {
  ++stream.value;
  const auto number = static_cast<uint64_t>(&stream - streams_.data());
  if (words_) {
    return driver_.check(
        driver_.cuStreamWriteValue32(stream.stream, done_on_device_ + number * kDoneBytes,
                                     stream.value, device::CU_STREAM_WRITE_VALUE_DEFAULT),
        "noting that a job is done");
  }
  CGX_ASSIGN_OR_RETURN(const device::CUevent event, take_event());
  stream.events.emplace_back(stream.value, event);
  return driver_.check(driver_.cuEventRecord(event, stream.stream), "recording an event");
}

// One that has passed, or a new one where as many are under way as never before.
Result<device::CUevent> JobRunner::take_event() {
  device::CUevent event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  CGX_RETURN_IF_ERROR(driver_.check(driver_.cuEventCreate(&event, device::CU_EVENT_DISABLE_TIMING),
                                    "making an event"));
  return event;
}

bool JobRunner::reached(const Pending& pending) {
  if (!lost_.ok()) return true;
  Stream& stream = streams_[pending.stream];
  uint32_t& word = done_[pending.stream * kDoneBytes / sizeof(uint32_t)];
  while (!stream.events.empty()) {
    const auto [value, event] = stream.events.front();
    if (driver_.cuEventQuery(event) != device::CUDA_SUCCESS) break;
    free_events_.push_back(event);
    stream.events.pop_front();
    word = value;
  }
  const uint32_t now = std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire);
  return static_cast<int32_t>(now - pending.value) >= 0;
}

int JobRunner::poll(const Sink& sink, uint64_t now_ns) {
  now_ns_ = now_ns;
  int answered = 0;
  for (Pending& each : pending_) {
    if (each.done || !reached(each)) continue;
    each.done = true;
    answer(each, sink);
    ++answered;
  }
  while (!pending_.empty() && pending_.front().done) {
    tables_->give_back(pending_.front().tables_end);
    pending_.pop_front();
  }
  if (answered > 0 && pending_.empty()) memory_.free_unused();
  if (answered == 0) look_for_errors(now_ns);
  return answered;
}

// A kernel that fails writes no word. A context may fail without one: under MPS another's does it.
void JobRunner::look_for_errors(uint64_t now_ns) {
  if (now_ns - looked_ns_ < (pending_.empty() ? kIdleLookNs : kLookNs)) return;
  looked_ns_ = now_ns;
  if (pending_.empty()) return look_for_errors(0, "a GPU without work");
  std::array<bool, kStreams> looked{};
  for (const Pending& each : pending_) {
    if (!std::exchange(looked[each.stream], true)) look_for_errors(each.stream, each.what);
  }
}

void JobRunner::look_for_errors(uint32_t stream, const std::string& what) {
  if (!lost_.ok()) return;
  const device::CUresult answer = driver_.cuStreamQuery(streams_[stream].stream);
  if (answer == device::CUDA_SUCCESS || answer == device::CUDA_ERROR_NOT_READY) return;
  lost_ = {StatusCode::kDEVICE_LOST, driver_.check(answer, what).message()};
}

void JobRunner::answer(const Pending& pending, const Sink& sink) {
  Answer answer;
  Status status = lost_.ok() ? pending.status : lost_;
  answer.head.ticket = pending.ticket;
  if (pending.measures) answer.measured.resize(pending.slices);
  if (status.ok()) answer.losses = losses_of(pending.losses, pending.slices);
  for (const Noted& each : pending.noted) {
    if (!status.ok()) break;
    const cuda::Outcome& outcome = *each.outcome;
    if (each.counts) answer.head.nonfinite_buckets += outcome.nonfinite_buckets;
    if (each.counts) answer.head.saturated += outcome.saturated;
    if (outcome.bad_bucket != UINT64_MAX) {
      status = {StatusCode::kCORRUPT, pending.what + ": bucket " +
                                          std::to_string(outcome.bad_bucket) +
                                          " is not what an encoder writes"};
    }
    if (!pending.measures || !each.counts) continue;
    answer.measured[each.slice] = {outcome.intended_sq, outcome.sent_sq, outcome.encoded_bytes};
  }
  if (status.ok() && !pending.copied.empty()) answer.head.hash = wire::checksum(pending.copied);
  answer.head.status = static_cast<uint16_t>(status.code());
  answer.text = status.message();
  sink(answer);
}

// Tables and launches

template <class KernelJob>
Status JobRunner::tabulate_all(const Job& job, Pending& pending) {
  std::vector<uint32_t> left(job.slices.size());
  for (uint32_t i = 0; i < left.size(); ++i) left[i] = i;
  while (!left.empty()) {  // those of one codec after those of another
    const CodecSpec spec = job.slices[left.front()].head.spec;
    const DType dtype = job.slices[left.front()].head.dtype;
    const auto same = [&](uint32_t index) {
      CodecSpec other = job.slices[index].head.spec;
      other.bucket = spec.bucket;
      // Small floats share kernels, other types have their own.
      return other == spec && sum_dtype(job.slices[index].head.dtype) == sum_dtype(dtype);
    };
    const auto end = std::stable_partition(left.begin(), left.end(), same);
    const std::vector<uint32_t> now(left.begin(), end);
    CGX_RETURN_IF_ERROR(tabulate<KernelJob>(job, now, pending));
    left.erase(left.begin(), end);
  }
  return {};
}

template <class KernelJob>
Status JobRunner::tabulate(const Job& job, std::span<const uint32_t> slices, Pending& pending) {
  using Segment = cuda::Segment<KernelJob>;
  CGX_ASSIGN_OR_RETURN(Segment* const segments, table<Segment>(slices.size()));
  bool norms = false;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = job.slices[slices[i]];
    new (&segments[i]) Segment{};
    CGX_RETURN_IF_ERROR(fill(slice, segments[i].job, pending));
    if constexpr (std::is_same_v<KernelJob, ReduceJob>) {
      if (slice.outputs.empty()) segments[i].job.target_count = 0;
    }
    norms = norms || slice.head.norms != 0;
    pending.noted.push_back({&segments[i].outcome, slices[i], /*counts=*/true});
  }
  const bool sparse = kernels::find_codec(segments[0].job.spec.codec)->sparse;
  if (kHasNorms<KernelJob> && (norms || sparse)) pending.measures = true;  // those that encode
  return add_launch(streams_[pending.stream], std::span(segments, slices.size()),
                    norms && kHasNorms<KernelJob>);
}

template <class KernelJob>
Status JobRunner::add_launch(const Stream& of, std::span<cuda::Segment<KernelJob>> segments,
                             bool norms) {
  auto described = cuda::describe_table<KernelJob>(lane_.device(), segments,
                                                   tables_->on_device(segments.data()));
  CGX_RETURN_IF_ERROR(lane_.load(described.spec, described.dtype));
  if (described.work.bytes > 0) CGX_RETURN_IF_ERROR(give_work(of, described.work));
  if (norms) {
    CGX_ASSIGN_OR_RETURN(cuda::Norms* const found, table<cuda::Norms>(described.buckets));
    described.norms = tables_->on_device(found);
  }
  launches_.push_back([this, described](device::CUstream stream) {
    if constexpr (std::is_same_v<KernelJob, EncodeJob>) return lane_.encode(described, stream);
    if constexpr (std::is_same_v<KernelJob, DecodeJob>) return lane_.decode(described, stream);
    if constexpr (std::is_same_v<KernelJob, ReduceJob>) return lane_.reduce(described, stream);
    if constexpr (std::is_same_v<KernelJob, CombineJob>) return lane_.combine(described, stream);
  });
  return {};
}
template Status JobRunner::add_launch(const Stream& of, std::span<Encodes> segments, bool norms);

Result<RawView> JobRunner::raw_view(const Slice& slice, uint64_t first) {
  const SliceHead& head = slice.head;
  const uint64_t width = dtype_bytes(head.dtype);
  CGX_ASSIGN_OR_RETURN(const void** const ranks, table<const void*>(slice.inputs.size()));
  for (size_t i = 0; i < slice.inputs.size(); ++i) {
    CGX_ASSIGN_OR_RETURN(void* const at, memory_.at(slice.inputs[i], head.elements * width));
    ranks[i] = static_cast<std::byte*>(at) + first * width;
  }
  RawView view{.ranks = tables_->on_device(ranks),
               .rank_count = static_cast<uint32_t>(slice.inputs.size()),
               .dtype = head.dtype,
               .scale = head.scale,
               .residual_scale = head.residual_scale};
  if (head.residual == 0) return view;
  CGX_ASSIGN_OR_RETURN(
      const float* const residual,
      memory_.residual(head.residual, head.confirmed, head.first_element, head.elements));
  view.residual_in = residual + first;
  return view;
}

Status JobRunner::set_targets(const Slice& slice, uint64_t first, void* const*& targets,
                              uint32_t& count) {
  const uint64_t width = dtype_bytes(slice.head.dtype);
  CGX_ASSIGN_OR_RETURN(void** const made, table<void*>(slice.outputs.size()));
  for (size_t i = 0; i < slice.outputs.size(); ++i) {
    CGX_ASSIGN_OR_RETURN(void* const at, memory_.at(slice.outputs[i], slice.head.elements * width));
    made[i] = static_cast<std::byte*>(at) + first * width;
  }
  targets = tables_->on_device(made);
  count = static_cast<uint32_t>(slice.outputs.size());
  return {};
}

template <class KernelJob>
Status JobRunner::set_residual(const Slice& slice, KernelJob& made) {
  const SliceHead& head = slice.head;
  if (head.residual == 0 || head.writes == 0) return {};
  const auto slot = [&](uint32_t number) {
    return memory_.residual(head.residual, number, head.first_element, head.elements);
  };
  CGX_ASSIGN_OR_RETURN(float* const out, slot(1 - head.confirmed));
  made.residual_out = out;
  if constexpr (requires { made.residual_in; }) {
    CGX_ASSIGN_OR_RETURN(made.residual_in, slot(head.confirmed));
    made.residual_scale = head.residual_scale;
  }
  return {};
}

// What came with the codec of racks, as values: as it is, or decoded into scratch memory before.
Result<RawView> JobRunner::rack_view(const Slice& slice, const Staged& from, Pending& pending) {
  CGX_ASSIGN_OR_RETURN(const std::span<std::byte> encoded, memory_.staged(from));
  CGX_ASSIGN_OR_RETURN(const void** const values, table<const void*>(1));
  *values = encoded.data();
  if (slice.head.rack_spec.codec != 0) {
    CGX_ASSIGN_OR_RETURN(*values, decoded(slice, encoded, pending));
  } else if (encoded.size() / sizeof(float) < slice.head.elements) {
    return internal_error("fewer values than a slice has");
  }
  return RawView{.ranks = tables_->on_device(values), .rank_count = 1};
}

Result<std::byte*> JobRunner::scratch(uint64_t bytes) {
  if (bytes > kScratchBytes - scratch_.used) return internal_error("no room in scratch memory");
  std::byte* const taken = reinterpret_cast<std::byte*>(scratch_.at) + scratch_.used;
  scratch_.used += (bytes + kLine - 1) / kLine * kLine;
  return taken;
}

Result<void*> JobRunner::decoded(const Slice& slice, std::span<const std::byte> encoded,
                                 Pending& pending) {
  CGX_ASSIGN_OR_RETURN(void* const values, scratch(slice.head.elements * sizeof(float)));
  using Segment = cuda::Segment<DecodeJob>;
  CGX_ASSIGN_OR_RETURN(Segment* const segment, table<Segment>(1));
  CGX_ASSIGN_OR_RETURN(void** const target, table<void*>(1));
  *target = values;
  new (segment) Segment{};
  DecodeJob& made = segment->job;
  made.spec = slice.head.rack_spec;
  made.encoded = encoded;
  made.elements = slice.head.elements;
  made.targets = tables_->on_device(target);
  made.target_count = 1;
  pending.noted.push_back({&segment->outcome, 0, /*counts=*/false});
  CGX_RETURN_IF_ERROR(add_launch(streams_[pending.stream], std::span(segment, 1)));
  return values;
}

template <class KernelJob>
Status JobRunner::fill(const Slice& slice, KernelJob& made, Pending& pending) {
  const SliceHead& head = slice.head;
  made.spec = head.spec;
  made.elements = head.elements;
  CGX_RETURN_IF_ERROR(set_residual(slice, made));
  if constexpr (requires { made.key; }) {
    made.key = {head.draw_stream, head.draw_bucket};
    made.norms = head.norms != 0;
    CGX_ASSIGN_OR_RETURN(made.encoded, memory_.staged(head.into));
  }
  if constexpr (requires { made.source; }) {
    CGX_ASSIGN_OR_RETURN(made.source, raw_view(slice));
  }
  if constexpr (requires { made.targets; }) {
    made.dtype = head.partial ? sum_dtype(head.dtype) : head.dtype;
    CGX_RETURN_IF_ERROR(set_targets(slice, 0, made.targets, made.target_count));
  }
  if constexpr (std::is_same_v<KernelJob, DecodeJob>) {
    if (slice.contributions.size() != 1) return internal_error("a decode of no frame");
    CGX_ASSIGN_OR_RETURN(made.encoded, memory_.staged(slice.contributions.front()));
  }
  if constexpr (requires { made.contributions; }) {
    CGX_ASSIGN_OR_RETURN(Contribution* const from, table<Contribution>(slice.contributions.size()));
    for (size_t i = 0; i < slice.contributions.size(); ++i) {
      const Staged& each = slice.contributions[i];
      new (&from[i]) Contribution{};
      if (each.kind == StagedKind::kOwnRanks) {
        from[i].kind = Contribution::Kind::kRaw;
        CGX_ASSIGN_OR_RETURN(from[i].raw, raw_view(slice));
      } else if (each.kind == StagedKind::kInRack) {
        from[i].kind = Contribution::Kind::kRaw;
        CGX_ASSIGN_OR_RETURN(from[i].raw, rack_view(slice, each, pending));
      } else if (each.length > 0) {
        from[i].kind = Contribution::Kind::kEncoded;
        CGX_ASSIGN_OR_RETURN(from[i].encoded, memory_.staged(each));
      }
    }
    made.contributions = {tables_->on_device(from), slice.contributions.size()};
  }
  return {};
}

// What has no kernel of its own

// One machine only: the sum, encoded as it is into scratch memory and decoded from there. It loses
// nothing, so nothing is left of a residual but where values are not finite.
Status JobRunner::local_reduce(const Job& job) {
  for (const Slice& slice : job.slices) {
    CGX_RETURN_IF_ERROR(local_reduce(slice, streams_[job.head.stream]));
  }
  return {};
}

Status JobRunner::local_reduce(const Slice& slice, const Stream& stream) {
  CodecSpec raw;
  raw.bucket = std::min(slice.head.spec.bucket, kBucketMax);
  const uint64_t width = std::max<uint64_t>(sizeof(float), dtype_bytes(slice.head.dtype));
  const uint64_t piece = kScratchBytes / width / raw.bucket * raw.bucket;
  for (uint64_t first = 0; first < slice.head.elements; first += piece) {
    const uint64_t elements = std::min(piece, slice.head.elements - first);
    using Segment = cuda::Segment<ReduceJob>;
    CGX_ASSIGN_OR_RETURN(Segment* const segment, table<Segment>(1));
    CGX_ASSIGN_OR_RETURN(Contribution* const own, table<Contribution>(1));
    new (own) Contribution{.kind = Contribution::Kind::kRaw, .raw = {}, .encoded = {}};
    CGX_ASSIGN_OR_RETURN(own->raw, raw_view(slice, first));
    new (segment) Segment{};
    ReduceJob& made = segment->job;
    made.spec = raw;
    made.contributions = {tables_->on_device(own), 1};
    made.elements = elements;
    made.dtype = slice.head.dtype;
    made.encoded = {reinterpret_cast<std::byte*>(stream.scratch), elements * width};
    CGX_RETURN_IF_ERROR(set_targets(slice, first, made.targets, made.target_count));
    CGX_RETURN_IF_ERROR(set_residual(slice, made));
    if (made.residual_out != nullptr) made.residual_in += first, made.residual_out += first;
    CGX_RETURN_IF_ERROR(add_launch(stream, std::span(segment, 1)));
  }
  return {};
}

// Carried over, in this step's units: a copy, or what the raw codec leaves of a result that is not
// finite, which is the residual in those units.
Status JobRunner::keep(const Job& job, const Stream& stream) {
  if (job.slices.size() != 1) return internal_error("keeping no residual");
  const SliceHead& head = job.slices.front().head;
  const auto slot = [&](uint32_t number) {
    return memory_.residual(head.residual, number, head.first_element, head.elements);
  };
  CGX_ASSIGN_OR_RETURN(float* const from, slot(head.confirmed));
  CGX_ASSIGN_OR_RETURN(float* const to, slot(1 - head.confirmed));
  const uint64_t bytes = head.elements * sizeof(float);
  if (head.residual_scale == 1.0f) {
    launches_.push_back([this, to, from, bytes](device::CUstream on) {
      return driver_.check(
          driver_.cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to),
                                    reinterpret_cast<CUdeviceptr>(from), bytes, on),
          "keeping a residual");
    });
    return {};
  }
  CGX_ASSIGN_OR_RETURN(std::byte* const result, scratch(bytes));
  launches_.push_back([this, result, count = head.elements](device::CUstream on) {
    return driver_.check(
        driver_.cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(result), kNotANumber, count, on),
        "keeping a residual");
  });
  using Segment = cuda::Segment<DecodeJob>;
  CGX_ASSIGN_OR_RETURN(Segment* const segment, table<Segment>(1));
  new (segment) Segment{};
  DecodeJob& made = segment->job;
  made.elements = head.elements;
  made.encoded = {result, bytes};
  made.residual_in = from;
  made.residual_out = to;
  made.residual_scale = head.residual_scale;
  return add_launch(stream, std::span(segment, 1));
}

Status JobRunner::copy_for_hash(const Job& job, Pending& pending) {
  if (job.slices.size() != 1 || job.slices[0].outputs.size() != 1) {
    return internal_error("hashing nothing");
  }
  const uint64_t bytes = job.slices[0].head.elements;
  CGX_ASSIGN_OR_RETURN(void* const from, memory_.at(job.slices[0].outputs[0], bytes));
  CGX_ASSIGN_OR_RETURN(std::byte* const to, table<std::byte>(bytes));
  pending.copied = {to, bytes};
  launches_.push_back([this, to, from, bytes](device::CUstream stream) {
    return driver_.check(
        driver_.cuMemcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, stream),
        "fetching what is to be hashed");
  });
  return {};
}

}  // namespace cgx::daemon::gpu
