// A peer daemon that is linked and says anything: frames with valid checksums and arbitrary fields,
// payloads and control messages, between the records of a trainer. The engine must end in
// completions or a named failure; sanitizers find the rest.
//
//   input := (choice u8, fields...)*  read from the fuzzer's bytes until they are used up
#include <cstdint>
#include <cstring>

#include "proto/wire/frame.h"
#include "scheduler/communicator/control.h"
#include "tests/sim/cluster.h"

namespace {

using cgx::wire::FrameHeader;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::vector<std::byte> take(size_t count) {
    std::vector<std::byte> taken;
    for (size_t i = 0; i < count && size_ > 0; ++i) taken.push_back(static_cast<std::byte>(byte()));
    return taken;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

FrameHeader plausible(cgx::sim::Cluster& cluster, Bytes& bytes) {
  const auto shown = cluster.engine(0).snapshot(static_cast<uint64_t>(cluster.now_ns()));
  FrameHeader header;
  header.source = 1;
  header.type = static_cast<cgx::wire::FrameType>(1 + bytes.byte() % 4);
  header.flags = bytes.byte() & 7;
  if (!shown.communicators.empty()) {
    const auto& communicator = shown.communicators[0];
    header.communicator = communicator.id;
    header.term = static_cast<uint32_t>(communicator.term) + bytes.byte() % 3;
    header.epoch = communicator.epoch;
    header.step = communicator.step + bytes.byte() % 4;
    if (!communicator.switches.empty()) header.plan_hash = communicator.switches.back().plan_hash;
  }
  header.group = bytes.byte() % 8;
  header.part = bytes.byte() % 8;
  header.round = bytes.byte() % 4;
  header.step_kind = static_cast<cgx::wire::StepKind>(bytes.byte() % 2);
  header.next_epoch = bytes.byte() % 4;
  header.switch_step = bytes.byte();
  header.started_step_end = bytes.byte();
  return header;
}

// Lengths the plan would accept are found faster when they are offered.
std::vector<std::byte> payload_of(Bytes& bytes) {
  static constexpr size_t kLengths[] = {0, 64, 128, 192, 1280, 1344, 2048, 4096};
  const uint8_t choice = bytes.byte();
  std::vector<std::byte> payload = bytes.take(choice & 0x7f);
  if (choice & 0x80) payload.resize(kLengths[bytes.byte() % 8], std::byte{0x3f});
  return payload;
}

void deliver(cgx::sim::Cluster& cluster, FrameHeader header, std::span<const std::byte> payload) {
  cgx::wire::seal(header, payload);
  cluster.engine(0).on_frame(cluster.peer_of(0, 1),
                             {std::as_bytes(std::span(&header, 1)), payload});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  cgx::scheduler::Policy policy;
  policy.group_bytes = 4096;
  policy.default_codec.flags = (bytes.byte() & 1) ? cgx::CodecSpec::kFeedback : 0;
  cgx::sim::Cluster cluster({.policy = policy, .arena_bytes = 1 << 16});
  cluster.create();
  std::vector<cgx::sim::Cluster::Tensor> tensors = {{.name = "a", .elements = 1500, .shape = {}},
                                                    {.name = "b", .elements = 3, .shape = {}},
                                                    {.name = "c", .elements = 5000, .shape = {}}};
  cluster.commit(tensors);
  uint64_t step = 0, call = 0;
  while (!bytes.empty()) {
    switch (bytes.byte() % 8) {
      case 0:
        (void)cluster.submit(0, step, bytes.byte() % 4, tensors[bytes.byte() % 3]);
        break;
      case 1:
        (void)cluster.end_step(0, step++);
        break;
      case 2:
        (void)cluster.call(0, call++, static_cast<cgx::DType>(bytes.byte() % 9),
                           static_cast<cgx::ReduceOp>(bytes.byte() % 3), bytes.byte() * 40u, 64);
        break;
      case 3: {
        FrameHeader header = plausible(cluster, bytes);
        header.type = cgx::wire::FrameType::kControl;
        deliver(cluster, header, bytes.take(bytes.byte()));
        break;
      }
      case 4:
        cluster.run_for(bytes.byte() * int64_t{10'000'000});
        break;
      case 5:
        cluster.request_redo(0);
        cluster.rank(0).attempt = bytes.byte() % 3;
        break;
      default: {
        const FrameHeader header = plausible(cluster, bytes);
        deliver(cluster, header, payload_of(bytes));
        break;
      }
    }
  }
  cluster.run_for(100'000'000);
  return 0;
}
