// bench_inprocess: one rank with the daemon's engine and transport in its own process, on memfd
// pages. What cgxd is compared with to see what a separate process costs. Driven by the runner like
// the other workers (command.h).
//
// Single-threaded. Links are made without the mesh: transport endpoints and secrets go through
// files in a folder all machines see.
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "daemon/base/idle.h"
#include "kernels/codec.h"
#include "proto/wire/frame.h"
#include "scheduler/engine/engine.h"
#include "tests/bench/command.h"
#include "transport/ucx.h"

namespace {

using cgx::Result;
using cgx::Status;
using cgx::scheduler::Engine;
using cgx::scheduler::LinkId;

constexpr uint64_t kSpinNs = 20'000;
constexpr uint64_t kSetupDeadlineNs = 30'000'000'000;
constexpr uint32_t kCreate = 1, kCommit = 2;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void require(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_inprocess: %s: %s\n", what, status.to_string().c_str());
  std::exit(1);
}

cgx::wire::InstanceId instance_of(uint32_t machine) {
  return {0xbe4c4, machine + 1};
}
std::string address_of(uint32_t machine) {
  return "machine" + std::to_string(machine) + ":1";
}
uint64_t tag_of(uint32_t from, uint32_t to) {
  return 0x7a60000 + 256 * from + to + 1;
}

struct Placement {
  std::filesystem::path folder;  // shared by all machines
  std::string device;
  uint32_t rank = 0, ranks = 0;
};

// Gradients are on their way in it, not a heartbeat.
bool carries_data(const cgx::transport::Frame& frame) {
  cgx::wire::FrameHeader header;
  if (frame.header.size() < sizeof(header)) return false;
  std::memcpy(&header, frame.header.data(), sizeof(header));
  return header.type == cgx::wire::FrameType::kData && !frame.payload.empty();
}

// Passes everything on and notes when frames of gradients are handed over, by the clock both sides
// share.
class TimedTransport final : public cgx::transport::Transport {
 public:
  explicit TimedTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  cgx::transport::Caps caps() const override { return inner_->caps(); }
  Result<cgx::transport::Endpoint> local_endpoint() override { return inner_->local_endpoint(); }
  Result<cgx::transport::PeerId> connect(const cgx::transport::ConnectOptions& options) override {
    return inner_->connect(options);
  }
  void close(cgx::transport::PeerId peer) override { inner_->close(peer); }
  Status send(cgx::transport::PeerId to, const cgx::transport::Frame& frame,
              cgx::transport::SendToken token) override {
    if (carries_data(frame)) sent_ns.push_back(now_ns());
    return inner_->send(to, frame, token);
  }
  int progress() override { return inner_->progress(); }
  int event_fd() const override { return inner_->event_fd(); }
  bool arm() override { return inner_->arm(); }
  Totals totals() const override { return inner_->totals(); }

  std::vector<uint64_t> sent_ns;

 private:
  std::unique_ptr<Transport> inner_;
};

void print_list(FILE* out, const char* name, const std::vector<uint64_t>& list) {
  std::fprintf(out, "\"%s\": [", name);
  for (size_t i = 0; i < list.size(); i++) {
    std::fprintf(out, "%s%llu", i ? ", " : "", static_cast<unsigned long long>(list[i]));
  }
  std::fprintf(out, "]");
}

class Worker final : public cgx::transport::Events,
                     public cgx::scheduler::LinkPort,
                     public cgx::scheduler::EventSink,
                     public cgx::scheduler::SessionPort {
 public:
  Worker(const Placement& placement, size_t arena_bytes) : placement_(placement) {
    cgx::transport::UcxOptions options;
    const char* congestion = std::getenv("CGX_BENCH_CONGESTION");
    options.congestion = congestion ? congestion : "";
    if (!placement.device.empty()) options.devices = {placement.device};
    auto transport = cgx::transport::make_ucx_transport(options, *this);
    require(transport.status(), "transport");
    transport_ = std::make_unique<TimedTransport>(std::move(*transport));
    cgx::scheduler::EngineOptions engine_options;
    engine_options.instance = instance_of(placement.rank);
    engine_options.mesh_address = address_of(placement.rank);
    engine_options.name = "machine" + std::to_string(placement.rank);
    engine_options.lane = &cgx::kernels::best_lane();
    auto engine = Engine::create(engine_options,
                                 {.transport = transport_.get(), .links = this, .events = this});
    require(engine.status(), "engine");
    engine_ = std::move(*engine);
    engine_->do_work(now_ns());
    publish_endpoint();
    open_session(arena_bytes);
  }

  // A communicator and a tensor of this size, made when first asked for.
  void use_size(size_t bytes) {
    if (sizes_.count(bytes)) {
      current_ = &sizes_[bytes];
      return;
    }
    current_ = &sizes_[bytes];
    *current_ = {.comm = static_cast<uint32_t>(sizes_.size()), .offset = arena_used_};
    arena_used_ += (bytes + 4095) / 4096 * 4096;
    replies_.clear();
    create_communicator(bytes);
    register_and_commit(bytes);
  }

  float* data() { return reinterpret_cast<float*>(arena_ + current_->offset); }

  void allreduce() {
    cgx_submit_record record{};
    record.comm = current_->comm;
    record.step = ++current_->step;
    record.kind = CGX_SUBMIT_TENSOR;
    record.in_offset = record.out_offset = current_->offset;
    require(engine_->submit(session_, record), "submit");
    record.kind = CGX_SUBMIT_STEP_END;
    require(engine_->submit(session_, record), "step_end");
    finished_ = false;
    run_until([this] { return finished_; }, -1);
  }

  // Before a trace, on all machines: the first frames may come before this one is told to begin.
  void forget_times(FILE* out) {
    transport_->sent_ns.clear();
    received_ns_.clear();
    std::fprintf(out, "{}\n");
    std::fflush(out);
  }

  // One allreduce; when each frame was handed over and when each one came.
  void trace(FILE* out) {
    allreduce();
    std::fprintf(out, "{");
    print_list(out, "sent_ns", transport_->sent_ns);
    std::fprintf(out, ", ");
    print_list(out, "received_ns", received_ns_);
    std::fprintf(out, "}\n");
    std::fflush(out);
  }

  // Works until the runner has something to say.
  void serve_until_readable(int fd) {
    run_until(
        [fd] {
          pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
          return poll(&readable, 1, 0) > 0;
        },
        fd);
  }

  void on_frame(cgx::transport::PeerId from, const cgx::transport::Frame& frame) override {
    if (carries_data(frame)) received_ns_.push_back(now_ns());
    engine_->on_frame(from, frame);
  }
  void on_sent(cgx::transport::PeerId to, cgx::transport::SendToken token,
               const Status& status) override {
    engine_->on_sent(to, token, status);
  }
  void on_peer_down(cgx::transport::PeerId peer, const Status& why) override {
    engine_->on_peer_down(peer, why);
  }

  void open_link(LinkId link, const cgx::scheduler::LinkRequest& request) override {
    wanted_links_.push_back({link, static_cast<uint32_t>(request.instance[1] - 1)});
  }
  void close_link(LinkId) override {}
  void event(cgx::scheduler::EventLevel level, std::string_view text) override {
    if (level == cgx::scheduler::EventLevel::kInfo) return;
    std::fprintf(stderr, "bench_inprocess: %.*s\n", static_cast<int>(text.size()), text.data());
  }
  void complete(cgx_completion_record record, std::string_view text) override {
    if (record.outcome == CGX_OUTCOME_ERROR) {
      require({cgx::StatusCode::kINTERNAL, std::string(text)}, "completion");
    }
    finished_ |= record.kind == CGX_COMPLETE_STEP;
  }
  void reply(uint32_t request, const cgx::wire::Reply& reply) override {
    if (reply.code != cgx::StatusCode::kOK) require({reply.code, reply.message}, "reply");
    replies_[request] = reply;
  }

 private:
  struct Size {
    uint32_t comm = 0;
    uint64_t offset = 0;
    uint64_t step = 0;
  };
  struct WantedLink {
    LinkId link;
    uint32_t machine;
  };

  void open_session(size_t arena_bytes) {
    const int fd = memfd_create("bench", MFD_CLOEXEC);
    void* memory = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(arena_bytes)) == 0) {
      memory = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    }
    if (memory == MAP_FAILED) require({cgx::StatusCode::kRESOURCE_EXHAUSTED, "memfd"}, "arena");
    arena_ = static_cast<std::byte*>(memory);
    auto session = engine_->open_session({.job = "bench", .client = "bench"}, *this);
    require(session.status(), "session");
    session_ = *session;
    require(engine_->add_arena(session_, 0, {arena_, arena_bytes}), "add_arena");
  }

  void create_communicator(size_t bytes) {
    cgx::wire::CreateCommunicator message;
    message.comm = current_->comm;
    message.name = "bytes-" + std::to_string(bytes);
    message.rank = placement_.rank;
    message.first_step = 1;
    message.job_key[0] = std::byte{1};
    for (uint32_t i = 0; i < placement_.ranks; i++) {
      message.members.push_back({instance_of(i), address_of(i), {}});
    }
    engine_->create_communicator(session_, kCreate, message);
    run_until([this] { return replies_.count(kCreate) > 0; }, -1, now_ns() + kSetupDeadlineNs);
  }

  void register_and_commit(size_t bytes) {
    cgx::wire::RegisterTensors message;
    message.comm = current_->comm;
    auto& tensor = message.tensors.emplace_back();
    tensor.name = "gradient";
    tensor.op = cgx::ReduceOp::kAvg;
    tensor.elements = bytes / sizeof(float);
    tensor.shape = {tensor.elements / 64, 64};
    tensor.home_offset = current_->offset;
    engine_->register_tensors(session_, 0, message);
    engine_->commit(session_, kCommit, {.comm = current_->comm, .tensors = 1});
    run_until([this] { return replies_.count(kCommit) > 0; }, -1, now_ns() + kSetupDeadlineNs);
  }

  // Written under another name first, so that a reader sees all of it or nothing.
  void publish_endpoint() {
    auto endpoint = transport_->local_endpoint();
    require(endpoint.status(), "endpoint");
    settings_ = endpoint->settings;
    const auto path = placement_.folder / ("endpoint" + std::to_string(placement_.rank));
    const auto partial = path.string() + ".partial";
    std::ofstream(partial, std::ios::binary)
        .write(reinterpret_cast<const char*>(endpoint->address.data()),
               static_cast<std::streamsize>(endpoint->address.size()));
    std::filesystem::rename(partial, path);
  }

  int connect_wanted_links() {
    int connected = 0;
    for (size_t i = 0; i < wanted_links_.size();) {
      const WantedLink wanted = wanted_links_[i];
      std::ifstream file(placement_.folder / ("endpoint" + std::to_string(wanted.machine)),
                         std::ios::binary);
      if (!file) {
        i++;
        continue;
      }
      const std::vector<char> address((std::istreambuf_iterator<char>(file)), {});
      const auto* bytes = reinterpret_cast<const std::byte*>(address.data());
      auto peer = transport_->connect({.remote = {{bytes, bytes + address.size()}, settings_},
                                       .inbound_tag = tag_of(wanted.machine, placement_.rank),
                                       .outbound_tag = tag_of(placement_.rank, wanted.machine),
                                       .name = "machine " + std::to_string(wanted.machine)});
      require(peer.status(), "connect");
      wanted_links_.erase(wanted_links_.begin() + static_cast<ptrdiff_t>(i));
      engine_->link_up(wanted.link, *peer);
      connected++;
    }
    return connected;
  }

  // The daemon's loop: work while there is any, spin briefly, then sleep until an event or a timer.
  void run_until(const std::function<bool()>& done, int wake_fd,
                 uint64_t deadline_ns = UINT64_MAX) {
    cgx::daemon::IdleStrategy idle(kSpinNs);
    while (!done()) {
      const uint64_t now = now_ns();
      if (now > deadline_ns)
        require({cgx::StatusCode::kTIMED_OUT, "the others did not come"}, "set-up");
      const int work = transport_->progress() + engine_->do_work(now) + connect_wanted_links();
      const auto spin =
          engine_->operations_open() ? cgx::daemon::Spin::kBriefly : cgx::daemon::Spin::kNo;
      if (idle.after_round(now, work, spin) == cgx::daemon::IdleStrategy::Next::kWork) continue;
      if (!transport_->arm()) continue;
      sleep_until_event(wake_fd);
    }
  }

  void sleep_until_event(int wake_fd) {
    pollfd watched[2] = {{.fd = transport_->event_fd(), .events = POLLIN, .revents = 0},
                         {.fd = wake_fd, .events = POLLIN, .revents = 0}};
    const uint64_t now = now_ns(), next = engine_->next_deadline_ns();
    const uint64_t wait_ms =
        next <= now ? 0 : std::min<uint64_t>((next - now) / 1'000'000 + 1, 1000);
    poll(watched, wake_fd < 0 ? 1 : 2, wanted_links_.empty() ? static_cast<int>(wait_ms) : 1);
  }

  const Placement placement_;
  std::unique_ptr<TimedTransport> transport_;
  std::unique_ptr<Engine> engine_;
  cgx::scheduler::SessionId session_;
  std::string settings_;
  std::byte* arena_ = nullptr;
  uint64_t arena_used_ = 0;
  std::map<size_t, Size> sizes_;
  Size* current_ = nullptr;
  std::map<uint32_t, cgx::wire::Reply> replies_;
  std::vector<WantedLink> wanted_links_;
  std::vector<uint64_t> received_ns_;
  bool finished_ = false;
};

void allreduce(void* worker) {
  static_cast<Worker*>(worker)->allreduce();
}

}  // namespace

int main(int argc, char** argv) {
  cgx::transport::prepare_process();
  if (argc != 7) {
    std::fprintf(stderr, "usage: bench_inprocess COMMANDS FOLDER RANK RANKS BYTES_MAX DEVICE\n");
    return 2;
  }
  const Placement placement = {argv[2], argv[6], static_cast<uint32_t>(std::atoi(argv[3])),
                               static_cast<uint32_t>(std::atoi(argv[4]))};
  Worker worker(placement, static_cast<size_t>(std::atoll(argv[5])));
  command_channel runner = command_connect(argv[1], static_cast<int>(placement.rank));
  command order;
  for (;;) {
    worker.serve_until_readable(fileno(runner.in));
    if (!command_next(&runner, &order)) return 0;
    worker.use_size(order.bytes);
    const std::string_view verb = order.verb;
    if (verb == "forget") {
      worker.forget_times(runner.out);
      continue;
    }
    if (verb == "trace") {
      worker.trace(runner.out);
      continue;
    }
    command_measure(&runner, &order, worker.data(), worker.data(), static_cast<int>(placement.rank),
                    static_cast<int>(placement.ranks), 1.0 / placement.ranks, allreduce, &worker);
  }
}
