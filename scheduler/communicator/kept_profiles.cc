#include "scheduler/communicator/kept_profiles.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>

#include "proto/wire/frame.h"
#include "scheduler/communicator/plan_history.h"

namespace cgx::scheduler {
namespace {

constexpr std::string_view kHead = "cgx-kept-plans 1\n", kSum = "sum ";

std::string sum_line(std::string_view text) {
  const uint64_t sum = wire::checksum(std::as_bytes(std::span(text)));
  return std::string(kSum) + std::to_string(sum) + "\n";
}

std::string to_line(const KeptFor& whose, const Profile& profile) {
  PlanEntry entry{.job = whose.job, .communicator = whose.communicator, .policy = profile.policy};
  entry.plan.table_hash = profile.table_hash;
  entry.plan.machines = profile.machines;
  entry.plan.groups = profile.groups;
  return std::to_string(whose.uid) + "\t" + format_plan_entry(entry);
}

struct Line {
  uint32_t uid;
  std::string text;
};

// Takes out the oldest of the user who has most bytes, until the rest fits.
void leave_room(std::vector<Line>& lines, size_t room) {
  std::map<uint32_t, size_t> bytes;
  size_t all = 0;
  for (const Line& line : lines) {
    bytes[line.uid] += line.text.size();
    all += line.text.size();
  }
  while (all > room) {
    const auto loses = std::max_element(
        lines.begin(), lines.end(),
        [&](const Line& a, const Line& b) { return bytes.at(a.uid) < bytes.at(b.uid); });
    bytes[loses->uid] -= loses->text.size();
    all -= loses->text.size();
    lines.erase(loses);
  }
}

Status take_line(std::string_view line, KeptProfiles& kept) {
  KeptFor whose;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), whose.uid);
  const auto digits = static_cast<size_t>(end - line.data());
  if (error != std::errc() || digits == line.size() || line[digits] != '\t') {
    return invalid_argument("it does not begin with a user's number");
  }
  CGX_ASSIGN_OR_RETURN(PlanEntry entry, parse_plan_entry(line.substr(digits + 1)));
  whose.job = std::move(entry.job);
  whose.communicator = std::move(entry.communicator);
  kept.keep(whose, {.table_hash = entry.plan.table_hash,
                    .machines = entry.plan.machines,
                    .policy = std::move(entry.policy),
                    .groups = std::move(entry.plan.groups)});
  return {};
}

}  // namespace

Result<KeptProfiles> KeptProfiles::parse(std::string_view text) {
  if (text.substr(0, kHead.size()) != kHead) {
    return invalid_argument("it does not begin with the line '" +
                            std::string(kHead.substr(0, kHead.size() - 1)) + "'");
  }
  const size_t last = text.rfind('\n', text.size() - 2) + 1;
  if (text.substr(last) != sum_line(text.substr(0, last))) {
    return invalid_argument("it is not as it was written: its checksum differs");
  }
  KeptProfiles kept;
  std::string_view rest = text.substr(kHead.size(), last - kHead.size());
  for (size_t number = 2; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');  // there is one: `last` is behind one
    const Status status = take_line(rest.substr(0, end), kept);
    if (!status.ok()) {
      return invalid_argument("line " + std::to_string(number) + ": " + status.message());
    }
    rest.remove_prefix(end + 1);
  }
  return kept;
}

std::string KeptProfiles::to_text() const {
  std::vector<Line> lines;
  kept_.each([&](const KeptFor& whose, const Profile& profile) {
    lines.push_back({whose.uid, to_line(whose, profile)});
  });
  leave_room(lines, kTextMax - 2 * kHead.size() - kSum.size());
  std::string text(kHead);
  for (const Line& line : lines) text += line.text;
  return text + sum_line(text);
}

Result<const Profile*> KeptProfiles::find(const KeptFor& whose, const TensorTable& table,
                                          uint32_t machines, const Policy& policy) const {
  const Profile* const profile = kept_.look(whose);
  if (profile == nullptr) return profile;
  const auto of_another = [](const std::string& what) {
    return Status(StatusCode::kMISMATCH, "is of another " + what);
  };
  if (profile->machines != machines) {
    return of_another("number of machines, " + std::to_string(profile->machines));
  }
  if (!same_wish(profile->policy, policy)) return of_another("policy");
  if (profile->table_hash != table_hash(table)) return of_another("table");
  return profile;
}

}  // namespace cgx::scheduler
