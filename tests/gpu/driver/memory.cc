#include "tests/gpu/driver/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

namespace cgx::standin {
namespace {

// The last page of the file says what it is.
struct Label {
  char magic[16];
  uint64_t bytes;
  int64_t maker;
  int32_t device;
  uint32_t exportable;
};
constexpr char kMagic[16] = "cgx-standin-mem";

Label label_of(int fd, size_t bytes) {
  Label label = {};
  if (pread(fd, &label, sizeof(label), static_cast<off_t>(bytes)) != sizeof(label)) return {};
  return label;
}

// The file's pages from its begin, or none for -1, at addresses that are reserved; nobody may touch
// them yet.
void put_pages(uintptr_t at, size_t bytes, int fd) {
  const int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const wanted = reinterpret_cast<void*>(at);
  if (mmap(wanted, bytes, PROT_NONE, kind | MAP_FIXED, fd, 0) == MAP_FAILED) std::abort();
}

size_t random_slack() {
  static std::mt19937_64 random(std::random_device{}());
  return random() % 64 * (64u << 10);
}

}  // namespace

std::shared_ptr<Memory> Memory::create(size_t bytes, int device, bool exportable) {
  std::shared_ptr<Memory> memory(new Memory);
  memory->bytes_ = round_up(bytes, kPage);
  memory->fd_ = memfd_create("cgx-standin", MFD_CLOEXEC);
  const auto size = static_cast<off_t>(memory->bytes_ + kPage);
  if (memory->fd_ < 0 || ftruncate(memory->fd_, size) != 0) return nullptr;
  memory->device_ = device;
  memory->exportable_ = exportable;
  memory->made_here_ = true;
  Label label = {{}, memory->bytes_, getpid(), device, exportable};
  std::memcpy(label.magic, kMagic, sizeof(kMagic));
  const auto end = static_cast<off_t>(memory->bytes_);
  if (pwrite(memory->fd_, &label, sizeof(label), end) != sizeof(label)) return nullptr;
  if (!memory->map()) return nullptr;
  // Fresh memory holds anything but zeros; of large pieces the begin, as tests touch it.
  std::memset(memory->view_, 0xa7, std::min<size_t>(memory->bytes_, 1u << 20));
  return memory;
}

std::shared_ptr<Memory> Memory::adopt(int fd) {
  std::shared_ptr<Memory> memory(new Memory);
  memory->fd_ = fd;
  struct stat status;
  if (fstat(fd, &status) != 0 || static_cast<size_t>(status.st_size) < 2 * kPage) return nullptr;
  memory->bytes_ = static_cast<size_t>(status.st_size) - kPage;
  const Label label = label_of(fd, memory->bytes_);
  if (std::memcmp(label.magic, kMagic, sizeof(kMagic)) != 0 || label.bytes != memory->bytes_) {
    return nullptr;
  }
  memory->device_ = label.device;
  memory->exportable_ = label.exportable != 0;
  memory->made_here_ = label.maker == getpid();
  return memory->map() ? memory : nullptr;
}

Memory::~Memory() {
  if (view_ != nullptr) munmap(view_, bytes_);
  if (fd_ >= 0) close(fd_);
}

bool Memory::map() {
  void* const view = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (view == MAP_FAILED) return false;
  view_ = static_cast<uint8_t*>(view);
  struct stat status;
  fstat(fd_, &status);
  identity_ = (status.st_dev * 0x9e3779b97f4a7c15u) ^ (status.st_ino << 1);
  return true;
}

void Memory::lock_as_importer() {
  struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
  if (fcntl(fd_, F_OFD_SETLK, &lock) != 0) std::abort();
}

bool Memory::imported_elsewhere() const {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
  return fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

uintptr_t reserve_pages(size_t bytes, size_t alignment) {
  alignment = std::max(alignment, kPage);
  const size_t slack = random_slack(), whole = bytes + 2 * kPage + alignment + slack;
  void* const found =
      mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return 0;
  const auto start = reinterpret_cast<uintptr_t>(found);
  const uintptr_t at = round_up(start + kPage + slack, alignment);
  munmap(found, at - kPage - start);
  munmap(reinterpret_cast<void*>(at + bytes + kPage), start + whole - (at + bytes + kPage));
  return at;
}

void release_pages(uintptr_t at, size_t bytes) {
  munmap(reinterpret_cast<void*>(at - kPage), bytes + 2 * kPage);
}

void Space::choose(Protection protection) {
  protection_ = protection;
  if (protection == Protection::kBest || protection == Protection::kKeys) {
    key_ = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    protection_ = key_ >= 0 ? Protection::kKeys : Protection::kWindows;
  }
}

void Space::enter_device_thread() const {
  if (key_ >= 0) pkey_set(key_, 0);
}

void Space::protect(const Mapping& mapping) const {
  void* const at = reinterpret_cast<void*>(mapping.pages);
  const bool readable = mapping.accessible && (protection_ != Protection::kWindows || windows_ > 0);
  const int access = readable ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (protection_ == Protection::kKeys) {
    pkey_mprotect(at, mapping.page_bytes, access, key_);
  } else {
    mprotect(at, mapping.page_bytes, access);
  }
}

Mapping* Space::add(std::shared_ptr<Memory> memory, Kind kind, size_t offset, size_t bytes,
                    uintptr_t elsewhere) {
  const size_t pages = memory->bytes();
  uintptr_t at = reserve_pages(pages, kPage);
  if (at != 0 && at + offset == elsewhere) {
    const uintptr_t other = reserve_pages(pages, kPage);
    release_pages(at, pages);
    at = other;
  }
  if (at == 0) return nullptr;
  put_pages(at, pages, memory->fd());
  Mapping mapping = {std::move(memory), kind, at + offset, bytes, offset, at, pages, true};
  protect(mapping);
  return &mappings_.insert_or_assign(at + offset, std::move(mapping)).first->second;
}

Mapping* Space::add_at(uintptr_t address, std::shared_ptr<Memory> memory, size_t bytes) {
  put_pages(address, bytes, memory->fd());
  Mapping mapping = {std::move(memory), Kind::kMapped, address, bytes, 0, address, bytes, false};
  return &mappings_.insert_or_assign(address, std::move(mapping)).first->second;
}

void Space::remove(Mapping& mapping) {
  if (mapping.kind == Kind::kMapped) {
    put_pages(mapping.pages, mapping.page_bytes, -1);
  } else {
    release_pages(mapping.pages, mapping.page_bytes);
  }
  mappings_.erase(mapping.base);
}

void Space::make_accessible(Mapping& mapping) {
  mapping.accessible = true;
  protect(mapping);
}

Mapping* Space::find(uintptr_t address) {
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return nullptr;
  Mapping& mapping = std::prev(next)->second;
  return mapping.contains(address) ? &mapping : nullptr;
}

bool Space::overlaps(uintptr_t address, size_t bytes) const {
  auto next = mappings_.lower_bound(address + bytes);
  return next != mappings_.begin() &&
         std::prev(next)->second.base + std::prev(next)->second.bytes > address;
}

void Space::open_window() {
  if (windows_++ > 0 || protection_ != Protection::kWindows) return;
  for (const auto& [base, mapping] : mappings_) protect(mapping);
}
void Space::close_window() {
  if (--windows_ > 0 || protection_ != Protection::kWindows) return;
  for (const auto& [base, mapping] : mappings_) protect(mapping);
}

}  // namespace cgx::standin
