// What other daemons say before they have proved anything, and whoever else reaches the mesh's
// port, to a daemon that waits for a peer. Any bytes are refused by name or understood; what is
// understood is bounded and is said again as it was; and nothing of it makes or ends the link.
//
//   input := (message u8, length u16, its bytes (proto/messages/mesh.proto))*
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/fleet/mesh_messages.h"
#include "daemon/mesh/mesh_agent.h"

namespace {

using namespace cgx::daemon;  // NOLINT: of a program of one file
namespace v1 = cgx::v1;

constexpr const char kStranger[] = "127.0.0.1";
constexpr size_t kSaidMax = 80 << 10;

// Asks for a link whose other side would dial; only that side knows the key.
class Waiting final : public LinksPort, private MeshDialer, private cgx::scheduler::EventSink {
 public:
  Waiting()
      : agent_(
            {.instance = {2, 2}, .name = "waiting", .program = "cgxd 1", .address = "127.0.0.1:2"},
            {*this, *this, counters_, *this}) {
    CGX_ASSERT(agent_.on_start().ok());
    LinkWish wish{.serial = 1, .request = {.job = "job", .uid = 1}, .local = {{}, "loopback/1"}};
    wish.request.job_key.fill(std::byte('k'));
    wish.request.instance = {1, 1};
    wish.request.mesh_address = "127.0.0.1:1";
    CGX_ASSERT(agent_.want(std::move(wish)));
    work();
  }

  void take(const Greeting& greeting) {
    agent_.greeted(kStranger, greeting, [this](const Challenge& challenge) { said_ = challenge; });
    work();
  }
  // Who is none the less given something to prove answers that.
  void take(Proof proof) {
    if (proof.nonce == Nonce{}) proof.nonce = said_.nonce;
    agent_.proved(kStranger, proof, [](const Acceptance&) {});
    work();
  }
  void take(Arrival arrival) {
    if (arrival.nonce == Nonce{}) arrival.nonce = said_.nonce;
    agent_.arrived(kStranger, arrival, [](const Verdict&) {});
    work();
  }
  template <typename Answer>
  void take(const Answer&) {}  // to what we never asked

 private:
  void work() {
    while (agent_.do_work(kSecond) > 0) {
    }
  }

  void connect_link(LinkSerial, cgx::transport::ConnectOptions) override { CGX_ASSERT(false); }
  void link_made(LinkSerial) override { CGX_ASSERT(false); }
  void link_refused(LinkSerial, cgx::Status) override { CGX_ASSERT(false); }

  void greet(const std::string&, const Greeting&, MeshAnswer<Challenge> answer) override {
    answer(nobody());
  }
  void prove(const std::string&, const Proof&, MeshAnswer<Acceptance> answer) override {
    answer(nobody());
  }
  void arrive(const std::string&, const Arrival&, MeshAnswer<Verdict> answer) override {
    answer(nobody());
  }
  void forget(const std::string&) override {}
  uint64_t expire(uint64_t) override { return kNever; }
  static cgx::Status nobody() { return {cgx::StatusCode::kUNAVAILABLE, "nobody is there"}; }

  void event(cgx::scheduler::EventLevel, std::string_view) override {}

  EdgeCounters counters_;
  Challenge said_;
  MeshAgent agent_;
};

template <typename Message>
void take(Waiting& waiting, std::span<const uint8_t> bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto taken = from_message(message);
  CGX_ASSERT(taken.ok() || !taken.status().message().empty());
  if (!taken.ok()) return;
  const Message said = to_message(*taken);
  CGX_ASSERT(said.ByteSizeLong() < kSaidMax);
  const auto again = from_message(said);
  CGX_ASSERT(again.ok());
  CGX_ASSERT(to_message(*again).SerializePartialAsString() == said.SerializePartialAsString());
  waiting.take(*taken);
}

void take(Waiting& waiting, uint8_t kind, std::span<const uint8_t> bytes) {
  switch (kind % 6) {
    case 0:
      return take<v1::GreetRequest>(waiting, bytes);
    case 1:
      return take<v1::GreetReply>(waiting, bytes);
    case 2:
      return take<v1::ProveRequest>(waiting, bytes);
    case 3:
      return take<v1::ProveReply>(waiting, bytes);
    case 4:
      return take<v1::ArriveRequest>(waiting, bytes);
    default:
      return take<v1::ArriveReply>(waiting, bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  google::protobuf::SetLogHandler(nullptr);
  std::span<const uint8_t> rest(data, size);
  Waiting waiting;
  while (rest.size() >= 3) {
    const uint8_t kind = rest[0];
    const size_t length = std::min<size_t>(rest[1] | rest[2] << 8, rest.size() - 3);
    take(waiting, kind, rest.subspan(3, length));
    rest = rest.subspan(3 + length);
  }
  return 0;
}
