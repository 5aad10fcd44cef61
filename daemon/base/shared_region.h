// Memory that other processes may map, too: a mapped memfd, and the ways the daemon comes by one.
//
// Thread rule: a region belongs to whoever holds it; making and dropping a large one takes
// milliseconds or seconds and is done on its user's thread, never the data agent's.
// Invariants: a mapped memfd cannot shrink (sealed), so no access inside `bytes()` can fault for
// lack of file; sizes come from fstat, never from a message alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "proto/wire/unique_fd.h"

namespace cgx::daemon {

class SharedRegion {
 public:
  enum class Populate : uint8_t { kNo, kYes };

  SharedRegion();
  SharedRegion(SharedRegion&&) noexcept;
  SharedRegion& operator=(SharedRegion&&) noexcept;
  ~SharedRegion();

  static Result<SharedRegion> map(int fd, size_t bytes, Populate populate);
  std::span<std::byte> bytes() const;

 private:
  class Mapping;
  explicit SharedRegion(std::unique_ptr<Mapping> mapping);
  std::unique_ptr<Mapping> mapping_;
};

// Daemon-made, fixed size, zeroed, sealed SHRINK|GROW|SEAL.
struct OwnMemfd {
  UniqueFd fd;
  SharedRegion region;
};
Result<OwnMemfd> make_session_memory();                  // a session's rings
Result<OwnMemfd> make_recorder_memory(uint64_t events);  // REQUIRES: a power of two

// A client's arena, checked, mapped, and sealed against holes. `quota_left` bounds its size.
Result<SharedRegion> map_arena(int fd, uint64_t announced_bytes, uint64_t quota_left);

}  // namespace cgx::daemon
