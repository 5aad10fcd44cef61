// What the stand-in is told, by the variable CGX_STANDIN when it is loaded and by cgx_standin_set()
// later: words with blanks between them, each a switch or `name=value`. README.md has the list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/device/driver_types.h"

namespace cgx::standin {

enum class Call : uint16_t {
#define X(name, symbol, feature, parameters) name,
#include "proto/device/driver.def"
#undef X
  kCount
};
std::string_view name_of(Call call);

// Whether host code may touch device memory: `keys` and `windows` say no, the second but for the
// time in which a kernel runs, with page tables instead of protection keys.
enum class Protection : uint8_t { kBest, kKeys, kWindows, kNone };

struct Fault {
  Call call;
  uint64_t nth;  // of the calls from now on; 0 for every one
  device::CUresult result;
};

struct Delay {
  Call call;
  uint64_t ms;
};

struct Settings {
  std::string folder;        // shared by the processes of one machine; empty: this process is alone
  std::string kernels;       // library of host twins
  std::string counts;        // folder: what was called how often, written at the end
  std::vector<int> visible;  // devices in the order in which this process sees them; empty: all
  uint64_t seed = 0;         // of delays on streams; 0: none
  uint64_t delay_us = 200;   // the longest one
  uint64_t lag_us = 0;       // of copies to the device from memory that nobody registered
  uint64_t memory = 1u << 30;  // of a device, for this process
  int devices = 1;
  int version = 13000;
  Protection protection = Protection::kBest;
  bool without_words = false, without_vmm = false, without_ipc = false;
  uint64_t faulting = 0;  // the kernel that fails while it runs, counted from now; 0: none
  bool strict = false;    // a process that was accused ends with kAccused
  std::vector<Fault> faults;
  std::vector<Delay> slow;  // calls that take so long

  // Empty, or what is wrong with the words; those before it hold.
  std::string apply(std::string_view words);
};

}  // namespace cgx::standin
