#include "tests/gpu/driver/kernels.h"

#include <dlfcn.h>
#include <elf.h>
#include <setjmp.h>
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "tests/gpu/driver/control.h"

namespace cgx::standin {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50, kFatbinWrapperMagic = 0x466243b1;

// What nvcc puts before its code, and around a pointer to that.
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct FatbinWrapper {
  uint32_t magic, version;
  const void* fatbin;
  void* unused;
};

std::mutex twins_mutex;
std::map<std::string, Twin, std::less<>>& twins() {
  static auto* const known = new std::map<std::string, Twin, std::less<>>;
  return *known;
}

void load_library(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, kTwinsSymbol);
  if (symbol == nullptr) {
    accuse("the library of twins cannot be loaded: " + std::string(dlerror()));
    return;
  }
  const Twins found = reinterpret_cast<TwinsOf>(symbol)();
  for (size_t i = 0; i < found.count; ++i) twins().emplace(found.first[i].name, found.first[i]);
}

thread_local sigjmp_buf* way_out = nullptr;
struct sigaction other_handlers[2];  // of SIGSEGV and SIGBUS, as they were

void leave_kernel(int signal, siginfo_t* info, void* context) {
  if (way_out != nullptr) siglongjmp(*way_out, 1);
  const struct sigaction& other = other_handlers[signal == SIGBUS];
  if ((other.sa_flags & SA_SIGINFO) != 0) return other.sa_sigaction(signal, info, context);
  sigaction(signal, &other, nullptr);  // happens again, to whom it belongs
}

void watch_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = leave_kernel;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &other_handlers[0]);
    sigaction(SIGBUS, &action, &other_handlers[1]);
  });
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
}

}  // namespace

std::string copy_image(const void* image) {
  uint32_t magic;
  std::memcpy(&magic, image, sizeof(magic));
  if (magic == kFatbinWrapperMagic)
    return copy_image(static_cast<const FatbinWrapper*>(image)->fatbin);
  const char* const begin = static_cast<const char*>(image);
  if (magic == kFatbinMagic) {
    FatbinHeader header;
    std::memcpy(&header, image, sizeof(header));
    return std::string(begin, header.header_bytes + header.bytes);
  }
  if (std::memcmp(image, ELFMAG, SELFMAG) == 0) {
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof(header));
    return std::string(begin, header.e_shoff + size_t{header.e_shentsize} * header.e_shnum);
  }
  const std::string text(begin, strnlen(begin, 64u << 20));
  return text.find(".version") != text.npos ? text : std::string();
}

bool has_kernel(const std::string& image, std::string_view name) {
  for (size_t at = image.find(name); at != image.npos; at = image.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool whole =
        (at == 0 || !is_word(image[at - 1])) && (end == image.size() || !is_word(image[end]));
    if (whole) return true;
  }
  return false;
}

const Twin* find_twin(std::string_view name) {
  static std::once_flag once;
  const std::lock_guard lock(twins_mutex);
  std::call_once(once, [] {
    const std::string& path = process().settings.kernels;
    if (!path.empty()) load_library(path);
  });
  const auto found = twins().find(name);
  return found == twins().end() ? nullptr : &found->second;
}

void add_twins(const Twin* added, size_t count) {
  const std::lock_guard lock(twins_mutex);
  for (size_t i = 0; i < count; ++i) twins().insert_or_assign(added[i].name, added[i]);
}

bool run_twin(const Twin& twin, const Launch& launch) {
  watch_faults();
  Process& p = process();
  {
    const std::lock_guard lock(p.mutex);
    p.space.open_window();
  }
  sigjmp_buf out;
  volatile bool inside = false;
  if (sigsetjmp(out, 1) == 0) {
    way_out = &out;
    twin.run(launch);
    inside = true;
  } else {
    p.space.enter_device_thread();  // signal handlers begin without the right to device memory
  }
  way_out = nullptr;
  const std::lock_guard lock(p.mutex);
  p.space.close_window();
  return inside;
}

}  // namespace cgx::standin

extern "C" void cgx_standin_add_twins(const void* twins, size_t count) {
  cgx::standin::add_twins(static_cast<const cgx::standin::Twin*>(twins), count);
}
