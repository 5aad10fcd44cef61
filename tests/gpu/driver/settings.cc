#include "tests/gpu/driver/settings.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>

namespace cgx::standin {
namespace {

uint64_t number(const std::string& text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  switch (*end) {
    case 'K':
      return value << 10;
    case 'M':
      return value << 20;
    case 'G':
      return value << 30;
    default:
      return value;
  }
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> values;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) values.push_back(std::atoi(part.c_str()));
  return values;
}

Call call_of(const std::string& name) {
  uint16_t call = 0;
  while (call < static_cast<uint16_t>(Call::kCount) && name_of(static_cast<Call>(call)) != name) {
    ++call;
  }
  return static_cast<Call>(call);
}

// cuMemAlloc:3=2, cuMemAlloc:*=2
bool add_fault(const std::string& text, std::vector<Fault>& faults) {
  const size_t colon = text.find(':'), equals = text.find('=', colon);
  if (colon == text.npos || equals == text.npos) return false;
  const Call call = call_of(text.substr(0, colon));
  const std::string nth = text.substr(colon + 1, equals - colon - 1);
  const auto result = static_cast<device::CUresult>(number(text.substr(equals + 1)));
  if (call == Call::kCount) return false;
  faults.push_back({call, nth == "*" ? 0 : number(nth), result});
  return true;
}

// cuModuleLoadData:1500
bool add_delay(const std::string& text, std::vector<Delay>& slow) {
  const size_t colon = text.find(':');
  const Call call = call_of(text.substr(0, colon));
  if (colon == text.npos || call == Call::kCount) return false;
  slow.push_back({call, number(text.substr(colon + 1))});
  return true;
}

bool set_protection(const std::string& text, Protection& protection) {
  static const std::map<std::string, Protection> kWords = {{"best", Protection::kBest},
                                                           {"keys", Protection::kKeys},
                                                           {"windows", Protection::kWindows},
                                                           {"none", Protection::kNone}};
  const auto found = kWords.find(text);
  if (found != kWords.end()) protection = found->second;
  return found != kWords.end();
}

bool set_missing(const std::string& feature, bool missing, Settings& s) {
  if (feature == "words") return s.without_words = missing, true;
  if (feature == "vmm") return s.without_vmm = missing, true;
  if (feature == "ipc") return s.without_ipc = missing, true;
  return false;
}

bool set(const std::string& name, const std::string& value, Settings& s) {
  if (name == "folder") return s.folder = value, true;
  if (name == "kernels") return s.kernels = value, true;
  if (name == "counts") return s.counts = value, true;
  if (name == "visible") return s.visible = numbers(value), true;
  if (name == "seed") return s.seed = number(value), true;
  if (name == "delay_us") return s.delay_us = number(value), true;
  if (name == "lag_us") return s.lag_us = number(value), true;
  if (name == "faulting") return s.faulting = number(value), true;
  if (name == "memory") return s.memory = number(value), true;
  if (name == "devices") return s.devices = static_cast<int>(number(value)), true;
  if (name == "version") return s.version = static_cast<int>(number(value)), true;
  if (name == "protection") return set_protection(value, s.protection);
  if (name == "without") return set_missing(value, true, s);
  if (name == "with") return set_missing(value, false, s);
  if (name == "strict") return s.strict = true;
  if (name == "fail") return add_fault(value, s.faults);
  if (name == "slow") return add_delay(value, s.slow);
  if (name == "recover") return s.faults.clear(), true;
  return false;
}

}  // namespace

std::string_view name_of(Call call) {
  static constexpr std::string_view kNames[] = {
#define X(name, symbol, feature, parameters) #name,
#include "proto/device/driver.def"
#undef X
  };
  return kNames[static_cast<uint16_t>(call)];
}

std::string Settings::apply(std::string_view words) {
  std::istringstream parts{std::string(words)};
  for (std::string word; parts >> word;) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!set(name, equals == word.npos ? "" : word.substr(equals + 1), *this)) {
      return "the stand-in driver does not know '" + word + "'";
    }
  }
  return {};
}

}  // namespace cgx::standin
