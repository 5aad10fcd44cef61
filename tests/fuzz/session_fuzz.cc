// A trainer that says anything: messages and submit records, plausible and not, while a second
// thread scribbles over everything it shares with the daemon. Sanitizers find what should not be
// touched.
//
//   input := scribbles u8, (choice u8, fields...)*
//   body of a message := length u8 (255: length u16), bytes
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "daemon/data/session.h"
#include "kernels/codec.h"
#include "scheduler/engine/engine.h"

namespace {

using cgx::daemon::Session;

constexpr size_t kArenaBytes = 64 * 1024;
constexpr uint64_t kRoundNs = 1'000'000;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() { return size_ == 0 ? 0 : (--size_, *data_++); }
  size_t length() {
    const size_t length = byte();
    return length < 255 ? length : byte() | size_t{byte()} << 8;
  }
  std::vector<std::byte> take(size_t count) {
    std::vector<std::byte> taken;
    while (taken.size() < count && size_ > 0) taken.push_back(static_cast<std::byte>(byte()));
    return taken;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// One engine, one session, one communicator of one rank with two committed tensors.
class Trainer {
 public:
  Trainer()
      : ends_(make_ends()),
        memory_(ends_.ours.memory.bytes().data()),
        shared_(ends_.ours.memory.bytes()),
        session_(std::move(ends_.ours), [](uint32_t, const cgx::wire::Reply&) {}) {
    cgx::scheduler::EngineOptions options;
    options.lane = &cgx::kernels::best_lane();
    options.limits.tensors = 64;
    engine_ = std::move(cgx::scheduler::Engine::create(options, {})).value();
    id_ = engine_->open_session({.job = "fuzz", .client = "fuzz"}, session_).value();
    (void)engine_->add_arena(id_, 0, arena_);
    cgx::wire::CreateCommunicator create{.name = "dp", .first_step = 1};
    create.members.resize(1);
    engine_->create_communicator(id_, 1, create);
    cgx::wire::RegisterTensors tensors{.tensors = {{.name = "a", .elements = 3000, .shape = {3000}},
                                                   {.name = "b", .elements = 5, .shape = {5}}}};
    tensors.tensors[1].home_offset = 16 * 1024;
    engine_->register_tensors(id_, 0, tensors);
    engine_->commit(id_, 2, {.comm = 0, .tensors = 2});
    for (int i = 0; i < 10; ++i) round();
  }

  void round() {
    int work = 0;
    const auto submit = [this](const cgx_submit_record& record) {
      return engine_->submit(id_, record);
    };
    if (!session_.poll(submit, &work).ok()) close();
    now_ns_ += kRoundNs;
    engine_->do_work(now_ns_);
    if (!session_.publish(&work).ok()) close();
  }
  void close() {
    if (closed_) return;
    closed_ = true;
    session_.mute();
    engine_->close_session(id_, cgx::protocol_error("fuzz"));
  }
  bool closed() const { return closed_; }
  void drain() {
    close();
    for (int i = 0; i < 1000 && engine_->session_in_use(id_); ++i) round();
    if (engine_->session_in_use(id_)) std::abort();  // its memory could never be unmapped
  }

  void push(const cgx_submit_record& record) {
    std::memcpy(&memory_.submits[tail_ % CGX_SUBMIT_CAPACITY], &record, sizeof(record));
    cgx::wire::store_release(memory_.header->submit_tail, ++tail_);
  }
  void set_word(uint8_t which, uint64_t value) {
    uint64_t* const words[] = {&memory_.header->submit_tail, &memory_.header->completion_head,
                               &memory_.header->completion_tail, &memory_.header->submit_head};
    cgx::wire::store_release(*words[which % 4], value);
  }
  template <typename Message, typename Handler>
  void message(std::span<const std::byte> body, Handler handler) {
    const auto decoded = cgx::wire::decode_body<Message>(body);
    if (decoded.ok()) handler(*decoded);
  }
  cgx::scheduler::Engine& engine() { return *engine_; }
  cgx::scheduler::SessionId id() const { return id_; }
  std::span<std::byte> rings() const { return shared_; }
  std::span<std::byte> arena() { return arena_; }

 private:
  static cgx::daemon::ChannelEnds make_ends() {
    auto ends = cgx::daemon::make_session_channel();
    if (!ends.ok()) std::abort();
    return std::move(ends).value();
  }

  cgx::daemon::ChannelEnds ends_;
  cgx::wire::SessionMemory memory_;
  std::span<std::byte> shared_;
  std::vector<std::byte> arena_ = std::vector<std::byte>(kArenaBytes);
  Session session_;
  std::unique_ptr<cgx::scheduler::Engine> engine_;
  cgx::scheduler::SessionId id_;
  uint64_t now_ns_ = 1'000'000'000;
  uint64_t tail_ = 0;
  bool closed_ = false;
};

// The second thread: flips bytes of rings, cursors and arena until told to stop.
class Scribbler {
 public:
  Scribbler(Trainer& trainer, uint64_t seed, bool cursors)
      : thread_([this, &trainer, seed, cursors] { run(trainer, seed, cursors); }) {}
  ~Scribbler() {
    stop_.store(true);
    thread_.join();
  }

 private:
  void run(Trainer& trainer, uint64_t seed, bool cursors) {
    const std::span<std::byte> rings = trainer.rings(), arena = trainer.arena();
    for (uint64_t state = seed | 1; !stop_.load(std::memory_order_relaxed);) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t draw = state >> 24;
      const size_t first = cursors ? 0 : CGX_SHM_SUBMIT_OFFSET;
      std::byte& target = (draw & 1) ? rings[first + (draw >> 1) % (rings.size() - first)]
                                     : arena[(draw >> 1) % arena.size()];
      std::atomic_ref(target).store(static_cast<std::byte>(state >> 56), std::memory_order_relaxed);
    }
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

cgx_submit_record plausible(Bytes& bytes) {
  cgx_submit_record record{};
  record.kind = bytes.byte() % 7;
  record.flags = bytes.byte() & 3;
  record.dtype = bytes.byte() % 9;
  record.op = bytes.byte() % 3;
  record.comm = bytes.byte() % 2;
  record.step = 1 + bytes.byte() % 4;
  record.tensor = bytes.byte() % 3;
  record.attempt = bytes.byte() % 2;
  record.count = bytes.byte() * 64u;
  record.gradient_unit = bytes.byte() / 16.0;
  record.in_offset = bytes.byte() * 512u;
  record.out_offset = bytes.byte() * 512u;
  const uint8_t more = bytes.byte();  // what is not built yet, now and then
  record.in_arena = more & 1;
  if ((more & 14) == 2) record.collective = bytes.byte() % 12;
  if ((more & 14) == 4) record.root = record.peer = record.tag = bytes.byte();
  if ((more & 14) == 6) record.rows = record.indices_offset = bytes.byte();
  if ((more & 14) == 8) record.word = record.word_value = bytes.byte();
  return record;
}

void message(Trainer& trainer, Bytes& bytes) {
  namespace wire = cgx::wire;
  cgx::scheduler::Engine& engine = trainer.engine();
  const cgx::scheduler::SessionId id = trainer.id();
  const uint8_t kind = bytes.byte();
  const std::vector<std::byte> body = bytes.take(bytes.length());
  switch (kind % 7) {
    case 0:
      return trainer.message<wire::CreateCommunicator>(
          body, [&](const auto& decoded) { engine.create_communicator(id, 7, decoded); });
    case 1:
      return trainer.message<wire::RegisterTensors>(
          body, [&](const auto& decoded) { engine.register_tensors(id, 8, decoded); });
    case 2:
      return engine.commit(id, 9, {.comm = kind / 6u % 2, .tensors = bytes.byte()});
    case 3:
      return engine.redo_step(id, 10, {.comm = kind / 6u % 2});
    case 4:
      return engine.close_communicator(id, 12, {.comm = kind / 6u % 2});
    case 5:
      return engine.meet(id, 11, {.comm = kind / 6u % 2, .name = "dp", .rank = bytes.byte() % 3u});
    case 6:
      return trainer.message<wire::DropArena>(
          body, [&](const auto& decoded) { (void)engine.drop_arena(id, decoded.arena); });
  }
}

void act(Trainer& trainer, Bytes& bytes) {
  const uint8_t choice = bytes.byte();
  switch (choice % 8) {
    case 0: {
      cgx_submit_record record{};
      const auto raw = bytes.take(sizeof(record));
      if (!raw.empty()) std::memcpy(&record, raw.data(), raw.size());
      return trainer.push(record);
    }
    case 1:
      return trainer.set_word(bytes.byte(), uint64_t{bytes.byte()} << (choice / 8));
    case 2:
      return message(trainer, bytes);
    default:
      return trainer.push(plausible(bytes));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  Trainer trainer;
  const uint8_t scribbles = bytes.byte();
  {
    const Scribbler scribbler(trainer, scribbles, (scribbles & 3) == 0);
    while (!bytes.empty() && !trainer.closed()) {
      act(trainer, bytes);
      trainer.round();
    }
  }
  trainer.drain();
  return 0;
}
