// How several users share what there is a limited number of. Work-conserving: anybody may take all
// but a reserve of an eighth, which is for those who have less than their floor, a 32nd of it all.
//
// Who takes is a text: "uid 1000", "uid 0 in container 3f2a81c09d11" (daemon/base/holder.h), or a
// host.
// Thread rule: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/status.h"

namespace cgx::scheduler {

struct Use {
  uint64_t limit = 0;
  uint64_t all = 0;  // used by everybody
  uint64_t own = 0;  // of it, by who asks
};

constexpr uint64_t floor_of(uint64_t limit) {
  return std::max<uint64_t>(1, limit / 32);
}

// How much more may be taken.
constexpr uint64_t left_for(const Use& use) {
  const uint64_t free = use.all < use.limit ? use.limit - use.all : 0;
  const uint64_t reserve = use.limit / 8;
  const uint64_t beside_reserve = free > reserve ? free - reserve : 0;
  const uint64_t below_floor = use.own < floor_of(use.limit) ? floor_of(use.limit) - use.own : 0;
  return std::max(beside_reserve, std::min(below_floor, free));
}

class Share {
 public:
  Share() = default;
  // `limit` named as the operator knows it: "limits.sessions", "connections of cgxctl".
  Share(std::string name, uint64_t limit) : name_(std::move(name)), limit_(limit) {}

  void add(const std::string& holder, uint64_t amount = 1);
  void clear() { holders_.clear(); }
  uint64_t left_for(const std::string& holder) const;
  // OK: `wanted` more may be taken. Else who holds how much, and what to do.
  Status check(const std::string& holder, uint64_t wanted = 1) const;
  // "limits.sessions is 256: 224 are taken (220 by uid 1000, 4 by uid 0); ...".
  std::string text(const std::string& holder) const;

  const std::string& name() const { return name_; }
  uint64_t limit() const { return limit_; }
  uint64_t used() const;
  std::vector<std::pair<std::string, uint64_t>> holders() const;  // who has most comes first

 private:
  std::string name_;
  uint64_t limit_ = 0;
  std::map<std::string, uint64_t> holders_;  // who has something
};

}  // namespace cgx::scheduler
