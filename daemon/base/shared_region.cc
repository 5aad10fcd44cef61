#include "daemon/base/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>

#include "proto/wire/shm_layout.h"
#include "scheduler/recorder.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

namespace cgx::daemon {
namespace {

namespace bip = boost::interprocess;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kClientSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr size_t kSliceBytes = 16 << 20;
constexpr int kSealExec = 0x0020;  // F_SEAL_EXEC: some systems put it on every memfd

struct MemfdHandle {  // what mapped_region asks of a mappable object
  int fd;
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

Status check_seals(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return invalid_argument("the arena's descriptor is not a memfd that allows seals");
  if ((seals & ~kSealExec) != kClientSeals) {
    return invalid_argument("the arena's seals are " + std::to_string(seals) +
                            ", must be SHRINK|GROW (" + std::to_string(kClientSeals) +
                            ") and no more");
  }
  return {};
}

// A punched hole in a huge-page file faults with SIGBUS when no huge page is left.
Status check_file_system(int fd) {
  struct statfs file_system;
  if (::fstatfs(fd, &file_system) != 0) return errno_status(StatusCode::kINTERNAL, "fstatfs arena");
  if (file_system.f_type == HUGETLBFS_MAGIC) {
    return invalid_argument("the arena is a hugetlb memfd; make it without MFD_HUGETLB");
  }
  return {};
}

Status check_size(int fd, uint64_t announced_bytes, uint64_t quota_left) {
  struct stat file;
  if (::fstat(fd, &file) != 0) return errno_status(StatusCode::kINTERNAL, "fstat arena");
  const auto bytes = static_cast<uint64_t>(file.st_size);
  if (bytes == 0 || bytes != announced_bytes) {
    return invalid_argument("the arena's memfd has " + std::to_string(bytes) +
                            " bytes, announced were " + std::to_string(announced_bytes));
  }
  if (bytes > quota_left) {
    return resource_exhausted(
        "an arena of " + std::to_string(bytes) +
        " bytes exceeds what the session may still share: " + std::to_string(quota_left) +
        " bytes; raise the daemon's limits.arena_bytes by at least " +
        std::to_string(bytes - quota_left));
  }
  return {};
}

Status check_blocks(int fd, uint64_t bytes) {
  struct stat file;
  if (::fstat(fd, &file) != 0) return errno_status(StatusCode::kINTERNAL, "fstat arena");
  if (static_cast<uint64_t>(file.st_blocks) * 512 >= bytes) return {};
  return invalid_argument("the arena's memfd is not allocated (" + std::to_string(file.st_blocks) +
                          " blocks of 512 bytes for " + std::to_string(bytes) +
                          " bytes); call fallocate first");
}

}  // namespace

class SharedRegion::Mapping {
 public:
  Mapping(int fd, size_t bytes, int flags)
      : region(MemfdHandle{fd}, bip::read_write, 0, bytes, nullptr, flags) {}
  bip::mapped_region region;
};

SharedRegion::SharedRegion() = default;
SharedRegion::SharedRegion(SharedRegion&&) noexcept = default;
SharedRegion& SharedRegion::operator=(SharedRegion&&) noexcept = default;
SharedRegion::~SharedRegion() = default;
SharedRegion::SharedRegion(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}

Result<SharedRegion> SharedRegion::map(int fd, size_t bytes, Populate populate) {
  const int flags = MAP_SHARED | (populate == Populate::kYes ? MAP_POPULATE : 0);
  try {
    return SharedRegion(std::make_unique<Mapping>(fd, bytes, flags));
  } catch (const bip::interprocess_exception& error) {
    return resource_exhausted("cannot map " + std::to_string(bytes) +
                              " bytes of shared memory: " + error.what());
  }
}

std::span<std::byte> SharedRegion::bytes() const {
  if (!mapping_) return {};
  return {static_cast<std::byte*>(mapping_->region.get_address()), mapping_->region.get_size()};
}

namespace {

Result<OwnMemfd> make_memory(const char* name, const std::string& what, uint64_t bytes) {
  OwnMemfd result{UniqueFd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)), {}};
  if (!result.fd) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "memfd_create for " + what);
  if (::posix_fallocate(result.fd.get(), 0, static_cast<off_t>(bytes)) != 0) {
    return resource_exhausted("no memory for " + what + " (" + std::to_string(bytes) + " bytes)");
  }
  if (::fcntl(result.fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return errno_status(StatusCode::kINTERNAL, "sealing the memory of " + what);
  }
  CGX_ASSIGN_OR_RETURN(result.region,
                       SharedRegion::map(result.fd.get(), bytes, SharedRegion::Populate::kYes));
  return result;
}

}  // namespace

Result<OwnMemfd> make_session_memory() {
  return make_memory("cgx-session", "a session's rings", CGX_SHM_BYTES);
}

Result<OwnMemfd> make_recorder_memory(uint64_t events) {
  return make_memory("cgx-recorder", "the recorder (recorder.events)",
                     scheduler::recorder_bytes(events));
}

namespace {

// In slices, so that no other thread that maps something waits for all of it.
void populate(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += kSliceBytes) {
    const size_t slice = std::min(kSliceBytes, bytes.size() - at);
    if (::madvise(bytes.data() + at, slice, MADV_POPULATE_WRITE) != 0)
      return;  // pages come as used
  }
}

}  // namespace

// Both have mapped it once FUTURE_WRITE is set: from here on nobody can map it for writing or punch
// holes into it, and what the file has allocated stays. So the blocks are counted after that.
Result<SharedRegion> map_arena(int fd, uint64_t announced_bytes, uint64_t quota_left) {
  CGX_RETURN_IF_ERROR(check_seals(fd));
  CGX_RETURN_IF_ERROR(check_file_system(fd));
  CGX_RETURN_IF_ERROR(check_size(fd, announced_bytes, quota_left));
  CGX_ASSIGN_OR_RETURN(SharedRegion region,
                       SharedRegion::map(fd, announced_bytes, SharedRegion::Populate::kNo));
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return errno_status(StatusCode::kINVALID_ARGUMENT, "sealing the arena against holes");
  }
  CGX_RETURN_IF_ERROR(check_blocks(fd, announced_bytes));
  populate(region.bytes());
  return region;
}

}  // namespace cgx::daemon
