#include "daemon/gpu/worker_site.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "scheduler/planners/ceilings.h"

namespace cgx::daemon::gpu {

using scheduler::FrameBytes;
using scheduler::LocalSegment;
using scheduler::LossSample;
using scheduler::Norms;
using scheduler::OperationSetup;
using scheduler::Place;
using scheduler::Site;
using scheduler::SiteAnswer;
using scheduler::SiteContribution;
using scheduler::SiteEvents;
using scheduler::SiteJob;
using scheduler::SiteJobKind;
using scheduler::SiteOperation;
using scheduler::SiteResidual;
using scheduler::Slice;
using scheduler::Ticket;

namespace {

constexpr uint64_t kEndsWithinNs = 1'000'000'000;
constexpr uint64_t kLookNs = 100'000'000;
constexpr uint64_t kGoneWithinNs = 10'000'000'000;  // a process that has been killed
// A driver whose queue is full holds its caller up until a trainer's GPU has caught up.
constexpr uint64_t kBeatsWithinNs = 30'000'000'000;
constexpr uint64_t kLoadingShare = 4;  // of the time in which kernels are loaded counts a quarter

class WorkerResidual final : public SiteResidual {
 public:
  WorkerResidual(std::shared_ptr<Worker> worker, uint32_t number)
      : worker_(std::move(worker)), number_(number) {}
  ~WorkerResidual() override { worker_->drop_residual(number_); }
  uint32_t number() const { return number_; }

 private:
  const std::shared_ptr<Worker> worker_;
  const uint32_t number_;
};

JobKind kind_of(SiteJobKind kind) {
  switch (kind) {
    case SiteJobKind::kEncode:
      return JobKind::kEncode;
    case SiteJobKind::kDecode:
      return JobKind::kDecode;
    case SiteJobKind::kReduce:
      return JobKind::kReduce;
    case SiteJobKind::kCombine:
      return JobKind::kCombine;
    case SiteJobKind::kLocalReduce:
      return JobKind::kLocalReduce;
    case SiteJobKind::kKeep:
      return JobKind::kKeep;
    case SiteJobKind::kHash:
      return JobKind::kHash;
  }
  return JobKind::kHash;
}

// Of a segment; other jobs are about a part.
bool is_piece(SiteJobKind kind) {
  return kind == SiteJobKind::kKeep || kind == SiteJobKind::kHash;
}

bool encodes(SiteJobKind kind) {
  return kind == SiteJobKind::kEncode || kind == SiteJobKind::kReduce;
}

template <class T>
void put(std::vector<std::byte>& message, const T& value) {
  static_assert(sizeof(T) % kRingUnit == 0);
  const size_t at = message.size();
  message.resize(at + sizeof(T));
  std::memcpy(message.data() + at, &value, sizeof(T));
}

}  // namespace

// One operation: its jobs become messages, part by part and slice by slice.
class WorkerSite::Work final : public SiteOperation {
 public:
  Work(WorkerSite& site, const OperationSetup& setup)
      : site_(site), setup_(setup), number_(++site.operations_), stream_(number_ % kStreams) {
    if (setup.machines == 1) return;
    if (setup.norms) norms_.resize(setup.segments.size());
    if (setup.strengths) losses_.resize(setup.segments.size());
  }

  std::optional<SiteAnswer> ask(Ticket ticket, const SiteJob& job) override {
    std::vector<std::byte>& message = site_.message_;
    message.clear();
    put(message, head(kind_of(job.kind), ticket));
    written_ = slices_ = strengths_ = 0;
    loss_pieces_ = loss_values_ = 0;
    staged_bytes_ = 0;
    Asked asked{.work = this};
    if (!is_piece(job.kind)) {
      asked.part = job.part;
      asked.presence = job.presence;
    }
    ++open_;
    const Status status = write(job, asked, message);
    if (!status.ok()) {
      site_.refuse(ticket, std::move(asked), status);
      return std::nullopt;
    }
    asked.bytes = written_;
    if (staged_bytes_ > 0) site_.counting_(staged_bytes_);
    JobHead head;
    std::memcpy(&head, message.data(), sizeof(head));
    head.bytes = static_cast<uint32_t>(message.size());
    head.slices = slices_;
    head.strengths = strengths_;
    head.step = setup_.step;
    std::memcpy(message.data(), &head, sizeof(head));
    site_.give(ticket, std::move(asked), message);
    return std::nullopt;
  }
  // What waits for trainers is answered at once, the rest when the GPU has done it.
  void end() override {
    ended_by_ns_ = site_.now_ns_ + kEndsWithinNs;
    if (open_ == 0) return;
    site_.ended_by_ns_ = std::min(site_.ended_by_ns_, ended_by_ns_);
    tell(JobKind::kEnd);
  }
  void give_way() override {
    if (open_ > 0) tell(JobKind::kGiveWay);
  }
  std::optional<scheduler::AwaitedInput> awaited() const override {
    return awaited_ ? std::optional(awaited_->input) : std::nullopt;
  }
  // False: the job has no such input.
  bool held(Ticket ticket, const Asked& asked, uint32_t number, uint32_t input) {
    if (asked.presence == nullptr) return false;
    for (const Slice& slice : setup_.layout->slices(setup_.layout->part(asked.part))) {
      if (!asked.presence->test(slice.segment) || number-- > 0) continue;
      const std::vector<Place>& inputs = setup_.segments[slice.segment].inputs;
      if (input >= inputs.size()) return false;
      awaited_ = {ticket, {slice.segment, inputs[input].arena}};
      return true;
    }
    return false;
  }
  uint64_t ended_by_ns() const { return ended_by_ns_; }
  const std::vector<Norms>& norms() const override { return norms_; }
  const std::vector<LossSample>& losses() const override { return losses_; }

  // Moves ranges together. False: they are not as a worker writes them.
  static bool close_up(Asked& asked, std::span<const Measured> measured) {
    if (!asked.varies) return true;
    if (measured.size() != asked.ranges.size()) return false;
    uint64_t end = 0;
    for (size_t i = 0; i < measured.size(); ++i) {
      const Range& range = asked.ranges[i];
      const uint64_t used = range.variable ? measured[i].encoded_bytes : range.bytes_max;
      if (used > range.bytes_max) return false;
      const std::span<std::byte> to = asked.out.subspan(end);
      if (end != range.offset) std::memmove(to.data(), asked.out.data() + range.offset, used);
      end += scheduler::pad_range(to, used);
    }
    asked.bytes = static_cast<uint32_t>(end);
    return true;
  }

  void answered(Ticket ticket, const Asked& asked, const Findings& found) {
    --open_;
    if (awaited_ && awaited_->of == ticket) awaited_.reset();
    const std::span<const Measured> measured = found.measured;
    for (size_t i = 0; i < measured.size() && i < asked.segments.size(); ++i) {
      if (norms_.empty()) break;
      norms_[asked.segments[i]].intended_sq += measured[i].intended_sq;
      norms_[asked.segments[i]].sent_sq += measured[i].sent_sq;
    }
    for (size_t i = 0; i < found.losses.size() && i < asked.segments.size(); ++i) {
      if (!losses_.empty()) losses_[asked.segments[i]] += found.losses[i];
    }
  }

  std::string about(uint32_t segment) const {
    return "tensor '" + (*setup_.table)[setup_.group->segments[segment].tensor].name + "'";
  }

 private:
  // What is no job.
  void tell(JobKind kind) {
    std::vector<std::byte>& message = site_.message_;
    message.clear();
    JobHead told = head(kind, 0);
    told.bytes = sizeof(told);
    put(message, told);
    if (site_.lost_.ok()) site_.send(message);
  }

  JobHead head(JobKind kind, Ticket ticket) const {
    return {.kind = kind,
            .stream = static_cast<uint8_t>(stream_),
            .ticket = ticket,
            .operation = number_};
  }

  Status write(const SiteJob& job, Asked& asked, std::vector<std::byte>& message) {
    if (is_piece(job.kind)) {
      asked.about = job.segment;
      write_piece(job, message);
      return {};
    }
    rest_.clear();
    for (const SiteContribution& each : job.from) rest_.push_back(bytes_of(each.frame));
    if (job.kind == SiteJobKind::kDecode) rest_.push_back(bytes_of(job.frame));
    if (measures_losses(job)) {
      for (const CodecSpec& each : *setup_.strengths) put(message, each);
      strengths_ = static_cast<uint32_t>(setup_.strengths->size());
    }
    for (const Slice& slice : setup_.layout->slices(setup_.layout->part(job.part))) {
      if (!job.presence->test(slice.segment)) continue;
      if (asked.about == kNone) asked.about = slice.segment;
      CGX_RETURN_IF_ERROR(
          site_.takes(setup_.planned(slice).codec(job.in_rack), setup_.dtype(slice)));
      CGX_RETURN_IF_ERROR(write_slice(job, slice, asked, message));
      if (!norms_.empty() || strengths_ > 0) asked.segments.push_back(slice.segment);
    }
    return {};
  }

  // Contributions are noted before the head, which counts them.
  Status write_slice(const SiteJob& job, const Slice& slice, Asked& asked,
                     std::vector<std::byte>& message) {
    staged_.clear();
    CGX_RETURN_IF_ERROR(stage(job, slice));
    const LocalSegment& segment = setup_.segments[slice.segment];
    const bool reads = reads_own_ranks(job);
    const bool results = job.kind != SiteJobKind::kEncode && job.results;
    SliceHead head = head_of(segment, slice.first_element, slice.elements);
    head.spec = setup_.planned(slice).codec(job.in_rack);
    head.rack_spec = setup_.planned(slice).codec(/*in_rack=*/true);
    head.dtype = setup_.dtype(slice);
    if (encodes(job.kind)) write_target(job, slice, head, asked);
    head.inputs = static_cast<uint16_t>(reads ? segment.inputs.size() : 0);
    head.outputs = static_cast<uint16_t>(results ? segment.outputs.size() : 0);
    head.partial = job.kind == SiteJobKind::kReduce && !job.results;
    head.contributions = static_cast<uint32_t>(staged_.size());
    if (strengths_ > 0 && segment.measured && head.inputs > 0) choose_pieces(slice, head);
    put(message, head);
    const uint64_t offset = slice.first_element * dtype_bytes(head.dtype);
    for (const Place& input : std::span(segment.inputs).first(head.inputs)) {
      put(message, place(input, offset));
    }
    for (const Place& output : std::span(segment.outputs).first(head.outputs)) {
      put(message, place(output, offset));
    }
    for (const Staged& each : staged_) {
      put(message, each);
      staged_bytes_ += each.length;
    }
    staged_bytes_ += head.into.length;
    ++slices_;
    return {};
  }

  // A residual or a result as such, no part.
  void write_piece(const SiteJob& job, std::vector<std::byte>& message) {
    const LocalSegment& segment = setup_.segments[job.segment];
    SliceHead head = head_of(segment, job.first, job.count);
    head.outputs = job.kind == SiteJobKind::kHash ? 1 : 0;
    put(message, head);
    if (head.outputs > 0) put(message, place(segment.outputs.front(), job.first));
    ++slices_;
  }

  static SliceHead head_of(const LocalSegment& segment, uint64_t first, uint64_t count) {
    SliceHead head;
    head.elements = count;
    head.first_element = first;
    head.scale = segment.scale;
    head.residual_scale = segment.residual_scale;
    if (segment.residual == nullptr) return head;
    head.residual = static_cast<const WorkerResidual&>(*segment.residual).number();
    head.confirmed = static_cast<uint8_t>(segment.confirmed);
    head.writes = segment.drains ? 0 : 1;
    return head;
  }

  // Where a slice is encoded to; what is left of its last line is cleared here, unless nobody knows
  // yet where it ends.
  void write_target(const SiteJob& job, const Slice& slice, SliceHead& head, Asked& asked) {
    const auto phase =
        job.kind == SiteJobKind::kEncode ? scheduler::kFirstEncoding : scheduler::kSecondEncoding;
    const kernels::DrawKey key = scheduler::draw_key(setup_, slice, phase, job.in_rack);
    head.draw_stream = key.stream;
    head.draw_bucket = key.first_bucket;
    head.norms = !norms_.empty() && head.spec.codec != 0;
    const uint64_t range = slice.range(job.in_rack);
    const std::span<std::byte> all = site_.slabs_->bytes(job.into).subspan(job.offset);
    const std::span<std::byte> out = all.subspan(written_);
    head.into = site_.staging_->locate(out.first(range));
    if (setup_.layout->part(job.part).variable) {
      const bool varies = this->varies(slice, job.in_rack);
      asked.varies = asked.varies || varies;
      asked.out = all;
      asked.ranges.push_back({written_, static_cast<uint32_t>(range), varies});
    }
    written_ += static_cast<uint32_t>(scheduler::pad_range(out, range));
  }

  // A codec of racks writes as many bytes as the layout says, whatever the segment's own does.
  bool varies(const Slice& slice, bool in_rack) const {
    return slice.variable && !(in_rack && setup_.planned(slice).rack_spec);
  }

  // The own ranks' values, where they are encoded or added, as on the host.
  bool measures_losses(const SiteJob& job) const {
    return !losses_.empty() && job.kind != SiteJobKind::kLocalReduce && reads_own_ranks(job);
  }
  void choose_pieces(const Slice& slice, SliceHead& head) {
    const auto pieces = scheduler::loss_pieces(*setup_.strengths, slice.elements);
    const uint64_t values = pieces.count * pieces.elements;
    if (loss_pieces_ + pieces.count > kLossPiecesMax) return;
    if (loss_values_ + values > kLossValuesMax) return;
    loss_pieces_ += pieces.count;
    loss_values_ += values;
    head.loss_pieces = static_cast<uint32_t>(pieces.count);
    head.loss_elements = static_cast<uint32_t>(pieces.elements);
  }

  static bool reads_own_ranks(const SiteJob& job) {
    if (job.kind == SiteJobKind::kEncode || job.kind == SiteJobKind::kLocalReduce) return true;
    return std::any_of(job.from.begin(), job.from.end(),
                       [](const SiteContribution& each) { return each.own_ranks; });
  }

  Status stage(const SiteJob& job, const Slice& slice) {
    if (job.kind == SiteJobKind::kDecode) return stage_range(slice, rest_.front());
    for (size_t k = 0; k < job.from.size(); ++k) {
      const SiteContribution& from = job.from[k];
      if (from.own_ranks) {
        staged_.push_back({.kind = StagedKind::kOwnRanks});
      } else if (from.presence == nullptr || !from.presence->test(slice.segment)) {
        staged_.push_back({});
      } else {
        CGX_RETURN_IF_ERROR(stage_range(slice, rest_[k], from.in_rack));
      }
    }
    return {};
  }

  Status stage_range(const Slice& slice, std::span<const std::byte>& rest, bool in_rack = false) {
    CGX_ASSIGN_OR_RETURN(
        const std::span<const std::byte> range,
        scheduler::take_range(setup_.planned(slice), setup_.dtype(slice), slice, rest, in_rack));
    staged_.push_back(site_.staging_->locate(range));
    if (in_rack && setup_.planned(slice).rack_spec) staged_.back().kind = StagedKind::kInRack;
    return {};
  }

  std::span<const std::byte> bytes_of(const FrameBytes& frame) const {
    if (frame.length == 0) return {};
    CGX_ASSERT(frame.live == nullptr);
    return site_.slabs_->bytes(frame.slab).subspan(frame.offset, frame.length);
  }

  DevicePlace place(const Place& place, uint64_t further) const {
    return {.arena = static_cast<uint32_t>(site_.arenas_.name(place.arena)),
            .word = place.word,
            .offset = place.offset + further,
            .word_value = place.word_value};
  }

  struct Awaited {
    Ticket of = 0;
    scheduler::AwaitedInput input;
  };

  WorkerSite& site_;
  const OperationSetup& setup_;
  const uint32_t number_, stream_;
  std::optional<Awaited> awaited_;
  uint32_t open_ = 0;
  uint64_t ended_by_ns_ = UINT64_MAX;             // when what is open must be answered
  uint32_t written_ = 0, slices_ = 0;             // of the job that is being written
  uint32_t strengths_ = 0;                        // likewise, whose losses are measured,
  uint64_t loss_pieces_ = 0, loss_values_ = 0;    // and in how much of it
  uint64_t staged_bytes_ = 0;                     // likewise
  std::vector<std::span<const std::byte>> rest_;  // by contribution, what is left of its frame
  std::vector<Staged> staged_;                    // of a slice
  std::vector<Norms> norms_;
  std::vector<LossSample> losses_;
};

std::unique_ptr<SiteOperation> WorkerSite::begin(const OperationSetup& setup) {
  return std::make_unique<Work>(*this, setup);
}

scheduler::ResidualMaker WorkerSite::residual_maker() const {
  return [worker = worker_](uint64_t elements) -> Result<std::shared_ptr<SiteResidual>> {
    CGX_ASSIGN_OR_RETURN(const uint32_t number, worker->make_residual(elements));
    return std::shared_ptr<SiteResidual>(std::make_shared<WorkerResidual>(worker, number));
  };
}

void WorkerSite::refuse(Ticket ticket, Asked asked, Status why) {
  asked_[ticket] = std::move(asked);
  refused_.emplace_back(ticket, std::move(why));
}

void WorkerSite::give(Ticket ticket, Asked asked, std::vector<std::byte>& message) {
  if (!lost_.ok()) return refuse(ticket, std::move(asked), lost_);
  if (message.size() > worker_->jobs().longest()) {
    return refuse(ticket, std::move(asked),
                  resource_exhausted("a part of " + std::to_string(message.size()) +
                                     " bytes of places is more than a GPU worker's ring takes"));
  }
  asked_[ticket] = std::move(asked);
  send(message);
}

void WorkerSite::send(const std::vector<std::byte>& message) {
  const bool first = unsent_.empty() && worker_->flush();  // memory that it names comes before it
  if (!first || !worker_->jobs().try_push(message)) return unsent_.push_back(message);
  worker_->jobs().publish();
  worker_->ring_if_asleep();
}

void WorkerSite::flush() {
  if (!worker_->flush() || unsent_.empty()) return;
  while (!unsent_.empty() && worker_->jobs().try_push(unsent_.front())) unsent_.pop_front();
  worker_->jobs().publish();
  worker_->ring_if_asleep();
}

int WorkerSite::poll(SiteEvents& events, uint64_t now_ns) {
  now_ns_ = now_ns;
  int answered = 0;
  while (take_answer(events)) ++answered;
  flush();
  if (lost_.ok() && (worker_->over() || now_ns - looked_ns_ >= kLookNs)) {
    const uint64_t passed_ns = now_ns - std::exchange(looked_ns_, now_ns);
    const bool hangs = !beats(passed_ns);
    if (hangs) worker_->kill("has not answered for 30 s");
    // Its last words may have come between the two looks.
    if (hangs || !worker_->alive()) {
      while (take_answer(events)) ++answered;
      lose({StatusCode::kDEVICE_LOST, worker_->death()});
    }
  }
  if (asked_.empty() || ended_by_ns_ <= now_ns) ended_by_ns_ = first_ended_by_ns();
  if (ended_by_ns_ <= now_ns && worker_->loads()) ended_by_ns_ = now_ns + kLookNs;
  const bool late = ended_by_ns_ <= now_ns;
  if (late && lost_.ok()) {
    worker_->kill();
    lose({StatusCode::kDEVICE_LOST, worker_->name() + " did not end what had failed within 1 s"});
  }
  if (late) ended_by_ns_ = UINT64_MAX;
  const bool waits = !lost_.ok() && !asked_.empty();
  if (waits && (!worker_->alive() || now_ns >= gone_by_ns_)) refuse_asked();
  for (auto& [ticket, why] : std::exchange(refused_, {})) {
    answer(events, ticket, {.status = why});
    ++answered;
  }
  return answered;
}

// Whether the worker goes on, where it has something to do. A look that comes late counts little:
// this process has perhaps been stopped as well.
bool WorkerSite::beats(uint64_t passed_ns) {
  const uint32_t before = std::exchange(beat_, worker_->beat());
  const uint64_t counts_ns = std::min(passed_ns, 2 * kLookNs);
  silent_ns_ += worker_->loads() ? counts_ns / kLoadingShare : counts_ns;
  if (asked_.empty() || beat_ != before) silent_ns_ = 0;
  return silent_ns_ < kBeatsWithinNs;
}

// Of what was asked before an end and is not answered yet.
uint64_t WorkerSite::first_ended_by_ns() const {
  uint64_t first = UINT64_MAX;
  for (const auto& [ticket, asked] : asked_) first = std::min(first, asked.work->ended_by_ns());
  return first;
}

uint64_t WorkerSite::next_answer_ns() const {
  if (!refused_.empty() || !unsent_.empty()) return 0;
  if (!lost_.ok()) return asked_.empty() ? UINT64_MAX : gone_by_ns_;
  const bool looks = !asked_.empty() || worker_->waits();
  return looks ? std::min(ended_by_ns_, looked_ns_ + kLookNs) : ended_by_ns_;
}

bool WorkerSite::take_answer(SiteEvents& events) {
  if (!lost_.ok()) return false;
  const ByteConsumer::Pop pop = worker_->answers().try_pop(answer_);
  if (pop == ByteConsumer::Pop::kEmpty) return false;
  AnswerHead head;
  const bool whole = pop == ByteConsumer::Pop::kMessage && answer_.size() >= sizeof(head);
  if (whole) std::memcpy(&head, answer_.data(), sizeof(head));
  const uint64_t measured_bytes = uint64_t{head.measured} * sizeof(Measured);
  const uint64_t losses_bytes = uint64_t{head.losses} * sizeof(LossSample);
  const uint64_t text_at = sizeof(head) + measured_bytes + losses_bytes;
  if (!whole || text_at + head.text_bytes > answer_.size() || asked_.count(head.ticket) == 0) {
    return disbelieve("gave an answer that nobody asked for");
  }
  if (head.held != 0) return take_held(head);
  const auto* const text = reinterpret_cast<const char*>(answer_.data() + text_at);
  SiteAnswer given{.status = {},
                   .hash = head.hash,
                   .nonfinite_buckets = head.nonfinite_buckets,
                   .saturated = head.saturated};
  if (head.status != 0) {
    given.status = {static_cast<StatusCode>(head.status), std::string(text, head.text_bytes)};
    if (given.status.code() == StatusCode::kDEVICE_LOST) {
      given.status = {given.status.code(), worker_->name() + ": " + given.status.message()};
    }
  }
  const std::byte* const numbers = answer_.data() + sizeof(head);
  const Findings found{
      {reinterpret_cast<const Measured*>(numbers), head.measured},
      {reinterpret_cast<const LossSample*>(numbers + measured_bytes), head.losses}};
  if (given.status.ok() && !Work::close_up(asked_.at(head.ticket), found.measured)) {
    return disbelieve("encoded more bytes than there is room for");
  }
  const Status status = given.status;
  answer(events, head.ticket, std::move(given), found);
  if (status.code() == StatusCode::kDEVICE_LOST) lose(status);
  return true;
}

bool WorkerSite::take_held(const AnswerHead& head) {
  const Asked& asked = asked_.at(head.ticket);
  return asked.work->held(head.ticket, asked, head.slice, head.input) ||
         disbelieve("said that a job waits for what it does not have");
}

bool WorkerSite::disbelieve(const char* what) {
  worker_->kill();
  lose({StatusCode::kDEVICE_LOST, worker_->name() + " " + what});
  return false;
}

// Names the tensor; the answer may end whoever asked.
void WorkerSite::answer(SiteEvents& events, Ticket ticket, SiteAnswer answer,
                        const Findings& found) {
  const Asked asked = std::move(asked_.extract(ticket).mapped());
  asked.work->answered(ticket, asked, found);
  answer.bytes = asked.bytes;
  if (!answer.status.ok() && asked.about != kNone) {
    answer.status = {answer.status.code(),
                     asked.work->about(asked.about) + ": " + answer.status.message()};
  }
  events.site_answered(ticket, answer);
}

// Whoever finds its worker dead, or about to die, starts another, whose memory may come before the
// next look.
Status WorkerSite::lost() const {
  if (!lost_.ok() || !worker_->over()) return lost_;
  return {StatusCode::kDEVICE_LOST, worker_->death()};
}

void WorkerSite::lose(const Status& why) {
  lost_ = why;
  worker_->write_off();
  unsent_.clear();
  ended_by_ns_ = UINT64_MAX;
  gone_by_ns_ = now_ns_ + kGoneWithinNs;
}

// Once its process is dead: until then the GPU may run what it has begun, and whoever is answered
// may use its memory again.
void WorkerSite::refuse_asked() {
  gone_by_ns_ = UINT64_MAX;
  for (const auto& [ticket, asked] : asked_) {
    const bool known =
        std::any_of(refused_.begin(), refused_.end(),
                    [ticket = ticket](const auto& each) { return each.first == ticket; });
    if (!known) refused_.emplace_back(ticket, lost_);
  }
}

bool WorkerSite::prepare_sleep() {
  if (!lost_.ok()) return true;
  worker_->set_sleeping(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return worker_->answers().empty() && refused_.empty();
}

}  // namespace cgx::daemon::gpu
