#include "tests/gpu/driver/words.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "proto/device/driver_types.h"

namespace cgx::standin {

bool Condition::met_by(uint64_t word) const {
  const bool wide = width == 8;
  if (!wide) word &= UINT32_MAX;
  switch (kind & 3) {
    case device::CU_STREAM_WAIT_VALUE_GEQ:  // cyclic
      return wide ? static_cast<int64_t>(word - value) >= 0
                  : static_cast<int32_t>(static_cast<uint32_t>(word - value)) >= 0;
    case device::CU_STREAM_WAIT_VALUE_EQ:
      return word == value;
    case device::CU_STREAM_WAIT_VALUE_AND:
      return (word & value) != 0;
    default:
      return wide ? ~(word | value) != 0 : static_cast<uint32_t>(~(word | value)) != 0;
  }
}

namespace {

// The first process of a machine finds the file empty, whatever was before; the lock stays as long
// as the process.
int open_shared(const std::string& path, size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && ftruncate(fd, 0) != 0) std::abort();
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 || flock(fd, LOCK_SH) != 0) {
    std::perror(path.c_str());
    std::abort();
  }
  return fd;
}

}  // namespace

Ledger* Ledger::open(const std::string& folder) {
  const int fd = folder.empty() ? -1 : open_shared(folder + "/words", sizeof(Ledger));
  void* const memory = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE,
                            fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Ledger*>(memory);
}

void Ledger::note_write(uint64_t place, uint64_t value) {
  for (uint32_t i = 0; i < kWords; ++i) {
    Word& word = words_[(place + i) % kWords];
    uint64_t found = 0;
    if (!word.place.compare_exchange_strong(found, place) && found != place) continue;
    word.values[word.writes.load() % kValues].store(value);
    word.writes.fetch_add(1);
    return;
  }
}

bool Ledger::has_write(uint64_t place, const Condition& condition) const {
  for (uint32_t i = 0; i < kWords; ++i) {
    const Word& word = words_[(place + i) % kWords];
    const uint64_t found = word.place.load();
    if (found == 0) return false;
    if (found != place) continue;
    const uint64_t known = std::min<uint64_t>(word.writes.load(), kValues);
    for (uint64_t v = 0; v < known; ++v) {
      if (condition.met_by(word.values[v].load())) return true;
    }
    return false;
  }
  return true;  // full: nobody is accused
}

}  // namespace cgx::standin
