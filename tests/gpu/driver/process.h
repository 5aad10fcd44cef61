// The stand-in as one process sees it: what it was told, its contexts and what lives in them.
// `mutex` guards everything that is neither atomic nor constant after cuInit; nobody waits for a
// stream with it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/driver/memory.h"
#include "tests/gpu/driver/settings.h"
#include "tests/gpu/driver/stream.h"
#include "tests/gpu/driver/words.h"

namespace cgx::standin {

using namespace cgx::device;  // the driver's own types

constexpr int kAccused = 66;  // how a strict process ends that was accused

struct Context {
  int device;   // the number that all processes share
  int ordinal;  // this process's
  int references = 0;
  std::atomic<unsigned> error = CUDA_SUCCESS;  // sticky
  std::shared_ptr<Stream> legacy;              // the default stream
};

struct OwnedStream {
  std::shared_ptr<Stream> stream;
  Context* context;
};

// Host memory that the device may use.
struct HostRange {
  struct Piece {
    uintptr_t begin, end;
    uint64_t identity;  // of the file or of this process's memory at address 0 of the file's view
  };
  size_t bytes;
  bool allocated;
  std::vector<Piece> pieces;
  std::shared_ptr<int> used = std::make_shared<int>();  // whoever works there keeps it
};

struct Handle {
  std::shared_ptr<Memory> memory;
  uint32_t references;
};

struct Module;  // kernels.h

struct Process {
  std::mutex mutex;
  Settings settings;
  Ledger* ledger = nullptr;
  bool started = false;
  int pid = 0;
  Space space;
  std::vector<std::unique_ptr<Context>> contexts;  // by ordinal
  std::map<uintptr_t, HostRange> host;
  std::map<uintptr_t, size_t> reservations;
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  CUmemGenericAllocationHandle next_handle = 0x1000;
  std::map<CUstream, OwnedStream> streams;
  std::map<std::pair<Context*, uint64_t>, std::shared_ptr<Stream>> of_threads;  // default ones
  std::vector<std::shared_ptr<Stream>> closing;
  std::shared_ptr<Stream> captured;  // last, in the mode that other threads' calls break
  std::map<CUevent, std::shared_ptr<Event>> events;
  std::map<CUmodule, std::shared_ptr<Module>> modules;
  uint64_t streams_made = 0;
  std::atomic<uint64_t> calls[static_cast<size_t>(Call::kCount)] = {};

  std::mutex accusing;
  std::string violations;

  size_t used_bytes(int device) const;
  std::shared_ptr<Stream> make_stream(bool waits_for_default);
  // The default stream of this thread.
  std::shared_ptr<Stream> stream_of_thread(Context* context);
  // All but the default stream.
  std::vector<std::shared_ptr<Stream>> streams_of(Context* context) const;
};

Process& process();

// Every function of the driver begins with this: counts, faults on demand, what is lost or not
// started. An answer instead of the function's own, if any.
enum class Need : uint8_t { kNothing, kStart, kContext };
std::optional<CUresult> enter(Call call, Need need = Need::kContext);
#define CGX_ENTER(...) \
  if (const auto answer = ::cgx::standin::enter(__VA_ARGS__); answer) return *answer

// Whether what this thread calls minds what others capture.
extern thread_local unsigned capture_mode;

// The contexts of this thread, the current one last. Outlives the thread's other objects: programs
// call the driver while they end.
struct ContextStack {
  static constexpr size_t kMost = 16;
  Context* held[kMost];
  size_t count;
  bool push(Context* context);
  Context* pop();  // null from an empty one
};
ContextStack& context_stack();
Context* current_context();
Context* context_of(CUdevice ordinal);

void accuse(const std::string& what);
// If work that is enqueued uses what the call takes away. The caller locks.
void accuse_if_used(Call call, const Mapping& mapping);
void accuse_if_used(Call call, const HostRange& range);
// What lives now, one a line.
std::string alive();

// Where an address of a call lies, for the device's threads; keeps it there.
struct Target {
  enum class Kind : uint8_t { kDevice, kHost, kUnknown } kind = Kind::kUnknown;
  uint8_t* at = nullptr;
  std::shared_ptr<void> keep;
  uint64_t place = 0;  // the same for all processes that see these bytes
};
Target find_target(uintptr_t address, size_t bytes);

// Host functions that streams call may not call the driver.
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
};

}  // namespace cgx::standin
