#include "tests/gpu/driver/process.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "tests/gpu/driver/control.h"

namespace cgx::standin {
namespace {

thread_local ContextStack contexts_of_thread;
thread_local int host_functions = 0;

// Of this thread alone: the system uses its own numbers again.
uint64_t number_of_thread() {
  static std::atomic<uint64_t> last = 0;
  thread_local const uint64_t number = ++last;
  return number;
}

Process* make_process() {
  auto* const made = new Process;  // for as long as device threads may run
  made->pid = getpid();
  if (const char* words = std::getenv("CGX_STANDIN")) {
    const std::string wrong = made->settings.apply(words);
    if (!wrong.empty()) {
      std::fprintf(stderr, "CGX_STANDIN: %s\n", wrong.c_str());
      _exit(2);
    }
  }
  return made;
}

// The result that a test has asked for. A fault that has come is none any more.
std::optional<CUresult> fault_of(Process& p, Call call) {
  const std::lock_guard lock(p.mutex);
  for (auto fault = p.settings.faults.begin(); fault != p.settings.faults.end(); ++fault) {
    if (fault->call != call) continue;
    const CUresult result = fault->result;
    if (fault->nth == 0) return result;
    if (--fault->nth > 0) continue;
    p.settings.faults.erase(fault);
    return result;
  }
  return std::nullopt;
}

std::chrono::milliseconds delay_of(Process& p, Call call) {
  const std::lock_guard lock(p.mutex);
  for (const Delay& each : p.settings.slow) {
    if (each.call == call) return std::chrono::milliseconds(each.ms);
  }
  return std::chrono::milliseconds(0);
}

// As what a driver calls potentially unsafe.
bool breaks_captures(Call call) {
  constexpr Call kUnsafe[] = {
      Call::cuMemAlloc,   Call::cuMemFree,          Call::cuMemHostRegister,
      Call::cuMemcpyDtoH, Call::cuMemcpyHtoD,       Call::cuStreamQuery,
      Call::cuEventQuery, Call::cuEventSynchronize, Call::cuStreamSynchronize};
  return std::find(std::begin(kUnsafe), std::end(kUnsafe), call) != std::end(kUnsafe);
}

bool breaks_a_capture(Process& p, Call call) {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !breaks_captures(call)) return false;
  const std::lock_guard lock(p.mutex);
  if (p.captured != nullptr) p.captured->break_capture();
  return p.captured != nullptr;
}

CUresult state_of(Process& p, Need need) {
  if (need == Need::kNothing) return CUDA_SUCCESS;
  if (!p.started || getpid() != p.pid) return CUDA_ERROR_NOT_INITIALIZED;
  if (need == Need::kStart) return CUDA_SUCCESS;
  const Context* const context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (p.ledger->lost(context->device)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  return static_cast<CUresult>(context->error.load());
}

// A line for each function that was called, in FOLDER/program.pid.
void write_counts(const Process& p) {
  if (p.settings.counts.empty()) return;
  std::ofstream file(p.settings.counts + "/" + program_invocation_short_name + "." +
                     std::to_string(p.pid));
  for (size_t i = 0; i < static_cast<size_t>(Call::kCount); ++i) {
    const uint64_t count = p.calls[i].load();
    if (count > 0) file << name_of(static_cast<Call>(i)) << " " << count << "\n";
  }
}

void accuse_used(Call call, size_t bytes) {
  accuse(std::string(name_of(call)) + ": " + std::to_string(bytes) +
         " bytes are taken away while work that is enqueued uses them");
}

void at_end() __attribute__((destructor));
void at_end() {
  Process& p = process();
  if (getpid() != p.pid || !p.started) return;
  write_counts(p);
  const bool lost = std::any_of(p.contexts.begin(), p.contexts.end(), [&](const auto& context) {
    return context->legacy != nullptr && p.ledger->lost(context->device);
  });
  const std::string left = lost ? "" : alive();  // nothing of a lost device can be given back
  for (size_t from = 0, to; (to = left.find('\n', from)) != left.npos; from = to + 1) {
    accuse("leaked: " + left.substr(from, to - from));
  }
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(p.mutex);
    for (const auto& context : p.contexts) {
      for (auto& stream : p.streams_of(context.get())) streams.push_back(std::move(stream));
    }
    p.streams.clear();
    p.of_threads.clear();
  }
  for (const auto& context : p.contexts) {
    if (context->legacy != nullptr) context->legacy->close(true);
  }
  for (const auto& stream : streams) stream->close(true);
  for (const auto& stream : p.closing) stream->close(true);
  streams.clear();  // their threads end
  for (const auto& context : p.contexts) context->legacy.reset();
  p.closing.clear();
  p.captured.reset();
  if (p.violations.empty() || !p.settings.strict) return;
  std::fflush(nullptr);
  _exit(kAccused);
}

}  // namespace

Process& process() {
  static Process* const made = make_process();
  return *made;
}

thread_local unsigned capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::optional<CUresult> enter(Call call, Need need) {
  Process& p = process();
  p.calls[static_cast<size_t>(call)].fetch_add(1);
  if (host_functions > 0) {
    accuse(std::string(name_of(call)) + " is called by a host function of a stream");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  std::this_thread::sleep_for(delay_of(p, call));
  if (const auto fault = fault_of(p, call)) return fault;
  if (breaks_a_capture(p, call)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUresult state = state_of(p, need);
  return state == CUDA_SUCCESS ? std::nullopt : std::optional(state);
}

bool ContextStack::push(Context* context) {
  if (count == kMost) return false;
  held[count++] = context;
  return true;
}
Context* ContextStack::pop() {
  return count == 0 ? nullptr : held[--count];
}
ContextStack& context_stack() {
  return contexts_of_thread;
}
Context* current_context() {
  return contexts_of_thread.count == 0 ? nullptr
                                       : contexts_of_thread.held[contexts_of_thread.count - 1];
}
Context* context_of(CUdevice ordinal) {
  Process& p = process();
  const bool known = ordinal >= 0 && static_cast<size_t>(ordinal) < p.contexts.size();
  return known ? p.contexts[ordinal].get() : nullptr;
}

void accuse(const std::string& what) {
  Process& p = process();
  const std::string line = "VIOLATION " + what + "\n";
  const std::lock_guard lock(p.accusing);
  p.violations += line;
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody listens
}

void accuse_if_used(Call call, const Mapping& mapping) {
  const Process& p = process();
  long known = 0;
  for (const auto& [base, other] : p.space.mappings()) known += other.memory == mapping.memory;
  for (const auto& [number, handle] : p.handles) known += handle.memory == mapping.memory;
  if (mapping.memory.use_count() > known) accuse_used(call, mapping.bytes);
}

void accuse_if_used(Call call, const HostRange& range) {
  if (range.used.use_count() > 1) accuse_used(call, range.bytes);
}

std::string alive() {
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  std::string lines;
  for (const auto& [base, mapping] : p.space.mappings()) {
    static constexpr const char* kWords[] = {"allocated", "imported by handle", "mapped"};
    lines += std::to_string(mapping.bytes) + " bytes of device memory, " +
             kWords[static_cast<int>(mapping.kind)] + "\n";
  }
  for (const auto& [at, bytes] : p.reservations) {
    lines += std::to_string(bytes) + " bytes of reserved addresses\n";
  }
  for (const auto& [number, handle] : p.handles) {
    lines += "a handle of " + std::to_string(handle.memory->bytes()) + " bytes\n";
  }
  for (const auto& [at, range] : p.host) {
    lines += std::to_string(range.bytes) + " bytes of host memory, " +
             (range.allocated ? "allocated" : "registered") + "\n";
  }
  for (size_t i = 0; i < p.streams.size(); ++i) lines += "a stream\n";
  for (size_t i = 0; i < p.events.size(); ++i) lines += "an event\n";
  for (size_t i = 0; i < p.modules.size(); ++i) lines += "a module\n";
  return lines;
}

size_t Process::used_bytes(int device) const {
  std::set<const Memory*> counted;
  for (const auto& [base, mapping] : space.mappings()) counted.insert(mapping.memory.get());
  for (const auto& [number, handle] : handles) counted.insert(handle.memory.get());
  size_t sum = 0;
  for (const Memory* memory : counted) {
    if (memory->made_here() && memory->device() == device) sum += memory->bytes();
  }
  return sum;
}

std::shared_ptr<Stream> Process::make_stream(bool waits_for_default) {
  std::erase_if(closing, [](const auto& stream) { return stream->last().passed(); });
  const uint64_t seed =
      settings.seed == 0 ? 0 : settings.seed * 0x9e3779b97f4a7c15u + ++streams_made;
  return std::make_shared<Stream>(Stream::Options{waits_for_default, seed, settings.delay_us,
                                                  [this] { space.enter_device_thread(); }});
}

std::shared_ptr<Stream> Process::stream_of_thread(Context* context) {
  std::shared_ptr<Stream>& stream = of_threads[{context, number_of_thread()}];
  if (stream == nullptr) stream = make_stream(true);
  return stream;
}

std::vector<std::shared_ptr<Stream>> Process::streams_of(Context* context) const {
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& [handle, owned] : streams) {
    if (owned.context == context) found.push_back(owned.stream);
  }
  for (const auto& [owner, stream] : of_threads) {
    if (owner.first == context) found.push_back(stream);
  }
  return found;
}

Target find_target(uintptr_t address, size_t bytes) {
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  if (const Mapping* mapping = p.space.find(address)) {
    const size_t within = address - mapping->base;
    if (!mapping->accessible || within + bytes > mapping->bytes) return {};
    const size_t offset = mapping->offset + within;
    return {Target::Kind::kDevice, mapping->memory->view() + offset, mapping->memory,
            mapping->memory->identity() + offset};
  }
  auto next = p.host.upper_bound(address);
  if (next == p.host.begin()) return {};
  const auto& [base, range] = *std::prev(next);
  if (address - base + bytes > range.bytes) return {};
  Target target = {Target::Kind::kHost, reinterpret_cast<uint8_t*>(address), range.used, address};
  for (const HostRange::Piece& piece : range.pieces) {
    if (address >= piece.begin && address < piece.end) target.place = piece.identity + address;
  }
  return target;
}

InHostFunction::InHostFunction() {
  ++host_functions;
}
InHostFunction::~InHostFunction() {
  --host_functions;
}

}  // namespace cgx::standin

using cgx::standin::process;

extern "C" {

const char* cgx_standin_set(const char* words) {
  static std::string wrong;
  const std::lock_guard lock(process().mutex);
  wrong = process().settings.apply(words);
  return wrong.empty() ? nullptr : wrong.c_str();
}

uint64_t cgx_standin_calls(const char* name) {
  uint64_t sum = 0;
  for (size_t i = 0; i < static_cast<size_t>(cgx::standin::Call::kCount); ++i) {
    const auto call = static_cast<cgx::standin::Call>(i);
    if (cgx::standin::name_of(call) == name) sum += process().calls[i].load();
  }
  return sum;
}

const char* cgx_standin_violations(void) {
  static std::string text;
  const std::lock_guard lock(process().accusing);
  text = process().violations;
  return text.c_str();
}

void cgx_standin_forget(void) {
  {
    const std::lock_guard lock(process().accusing);
    process().violations.clear();
  }
  const std::lock_guard lock(process().mutex);
  process().settings.faults.clear();
  for (auto& count : process().calls) count.store(0);
}

const char* cgx_standin_alive(void) {
  static std::string text;
  text = cgx::standin::alive();
  return text.c_str();
}

const char* cgx_standin_protection(void) {
  using cgx::standin::Protection;
  const Protection protection = process().space.protection();
  if (protection == Protection::kKeys) return "keys";
  return protection == Protection::kWindows ? "windows" : "none";
}

void cgx_standin_lose(int device) {
  if (process().ledger != nullptr) process().ledger->lose(device);
}

}  // extern "C"
