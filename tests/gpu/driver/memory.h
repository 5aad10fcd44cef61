// Device memory: memfds, mapped between guard pages at an address of this process, and once more
// for the device's own threads (`view`). Host code may not touch the former: by a protection key
// where the processor has them, else by page tables that are opened while kernels run. The caller
// of Space locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "tests/gpu/driver/settings.h"

namespace cgx::standin {

constexpr size_t kPage = 4096;
constexpr size_t kGranularity = 2u << 20;  // of memory that is created and mapped
constexpr size_t kAlignment = 512;         // of what cuMemAlloc returns

constexpr size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

class Memory {
 public:
  // Null where there is no room.
  static std::shared_ptr<Memory> create(size_t bytes, int device, bool exportable);
  // Takes the descriptor; null unless it is device memory.
  static std::shared_ptr<Memory> adopt(int fd);
  ~Memory();
  Memory(const Memory&) = delete;

  int fd() const { return fd_; }
  size_t bytes() const { return bytes_; }
  uint8_t* view() const { return view_; }
  uint64_t identity() const { return identity_; }  // the same in every process
  int device() const { return device_; }
  bool exportable() const { return exportable_; }
  bool made_here() const { return made_here_; }
  // Importers through a handle hold a lock that dies with them.
  void lock_as_importer();
  bool imported_elsewhere() const;

 private:
  Memory() = default;
  bool map();

  int fd_ = -1, device_ = 0;
  bool exportable_ = false, made_here_ = false;
  size_t bytes_ = 0;
  uint8_t* view_ = nullptr;
  uint64_t identity_ = 0;
};

enum class Kind : uint8_t { kAllocated, kImported, kMapped };

struct Mapping {
  std::shared_ptr<Memory> memory;
  Kind kind;
  uintptr_t base;  // what the caller sees
  size_t bytes;
  size_t offset;  // of `base` in the memory
  uintptr_t pages;
  size_t page_bytes;
  bool accessible;
  uint32_t opens = 1;  // of a handle
  bool contains(uintptr_t address) const { return address - base < bytes; }
};

class Space {
 public:
  void choose(Protection protection);
  Protection protection() const { return protection_; }
  // Called by each of the device's threads.
  void enter_device_thread() const;

  // `offset` and `bytes` of the memory; at an address that is not `elsewhere`.
  Mapping* add(std::shared_ptr<Memory> memory, Kind kind, size_t offset, size_t bytes,
               uintptr_t elsewhere);
  // Pages of the memory within a reservation, not accessible yet.
  Mapping* add_at(uintptr_t address, std::shared_ptr<Memory> memory, size_t bytes);
  void remove(Mapping& mapping);
  void make_accessible(Mapping& mapping);
  Mapping* find(uintptr_t address);
  bool overlaps(uintptr_t address, size_t bytes) const;
  const std::map<uintptr_t, Mapping>& mappings() const { return mappings_; }

  // Kernels run between these.
  void open_window();
  void close_window();

 private:
  void protect(const Mapping& mapping) const;

  Protection protection_ = Protection::kNone;
  int key_ = -1;
  uint32_t windows_ = 0;
  std::map<uintptr_t, Mapping> mappings_;
};

// Address space without memory, aligned, with a guard before and behind it; 0 where there is none.
uintptr_t reserve_pages(size_t bytes, size_t alignment);
void release_pages(uintptr_t at, size_t bytes);

}  // namespace cgx::standin
