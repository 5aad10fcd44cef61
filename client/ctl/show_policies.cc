// Policies as text: cgxctl policy.
#include <time.h>

#include "client/ctl/show.h"
#include "client/ctl/table.h"
#include "config/config.h"

namespace cgx::ctl {
namespace {

std::string differences_text(
    const google::protobuf::RepeatedPtrField<v1::Difference>& differences) {
  if (differences.empty()) return "no key differs\n";
  Table table({"KEY", "FROM", "TO"});
  for (const v1::Difference& one : differences) table.row({one.key(), one.from(), one.to()});
  return table.text();
}

std::string warnings_text(const v1::PolicyChange& change) {
  std::string text;
  for (const std::string& warning : change.warnings()) text += "warning: " + warning + "\n";
  return text;
}

// "2026-11-22 14:03:07", local time.
std::string date_and_time(uint64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  tm local{};
  ::localtime_r(&seconds, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%F %T", &local)};
}

}  // namespace

std::string show(const v1::CurrentPolicy& policy) {
  return "# " + full_name(policy) + ", policy version " + std::to_string(policy.version()) +
         ", epoch " + std::to_string(policy.epoch()) + "\n" + config::print(policy.policy());
}

std::string show(const v1::PolicyDiff& diff) {
  const std::string loss = loss_text(diff.effect());
  return full_name(diff) + ", policy version " + std::to_string(diff.version()) + "\n" +
         (loss.empty() ? "" : "warning: this " + loss + "\n") +
         differences_text(diff.differences());
}

std::string loss_text(const v1::PolicyEffect& effect) {
  if (effect.lossy_tensors() == 0) return "";
  std::string names;
  for (const std::string& name : effect.lossy_names()) names += (names.empty() ? "" : ", ") + name;
  const bool more = effect.lossy_tensors() > static_cast<uint32_t>(effect.lossy_names_size());
  return "compresses " + human_count(effect.lossy_tensors()) + " tensors with " +
         human_count(effect.lossy_elements()) + " elements that travel exactly now: " + names +
         (more ? ", ..." : "");
}

std::string effect_text(const v1::PolicyEffect& effect) {
  std::string text;
  for (const std::string& idle : effect.idle_rules()) text += "warning: " + idle + "\n";
  if (effect.codecs().empty()) return text;
  Table table({"CODEC", ">TENSORS NOW", ">BYTES A STEP", ">TENSORS AFTER", ">BYTES A STEP"});
  uint32_t tensors_now = 0, tensors_after = 0;
  uint64_t now = 0, after = 0;
  for (const v1::CodecUse& one : effect.codecs()) {
    table.row({one.codec(), human_count(one.tensors_now()), human_bytes(one.bytes_now()),
               human_count(one.tensors_after()), human_bytes(one.bytes_after())});
    tensors_now += one.tensors_now();
    tensors_after += one.tensors_after();
    now += one.bytes_now();
    after += one.bytes_after();
  }
  table.row({"total, of " + human_bytes(effect.raw_bytes()), human_count(tensors_now),
             human_bytes(now), human_count(tensors_after), human_bytes(after)});
  return text + table.text();
}

std::string show(const v1::PolicyHistory& history) {
  Table table({">VERSION", ">EPOCH", ">SINCE STEP", "ASKED FOR", "BY", "WHY", "CHANGES"});
  for (const v1::PolicyVersion& one : history.versions()) {
    std::string changes;
    for (const v1::Difference& difference : one.differences()) {
      changes += (changes.empty() ? "" : "; ") + difference.key() + ": " + difference.from() +
                 " -> " + difference.to();
    }
    const bool ran = one.epoch() != 0;
    table.row({std::to_string(one.version()), ran ? std::to_string(one.epoch()) : "-",
               ran ? std::to_string(one.step()) : "-",
               one.unix_ns() == 0 ? "-" : date_and_time(one.unix_ns()),
               one.by().empty() ? "the configuration" : one.by(),
               one.reason() + (one.kept() ? " (kept for the job's name)" : ""), changes});
  }
  return full_name(history) + "\n" + (table.empty() ? "no policy yet\n" : table.text());
}

std::string show_check(const v1::PolicyChange& change) {
  const std::string loss = loss_text(change.effect());
  return warnings_text(change) + (loss.empty() ? "" : "warning: this " + loss + "\n") +
         full_name(change) + " would accept it and reserve " +
         human_bytes(change.reserved_bytes()) + "\n" + differences_text(change.differences()) +
         effect_text(change.effect());
}

std::string show_apply(const v1::PolicyChange& change) {
  const std::string loss = loss_text(change.effect());
  return warnings_text(change) + full_name(change) + ": policy version " +
         std::to_string(change.policy_version()) + " takes effect at step " +
         std::to_string(change.switch_step()) + " on every rank (epoch " +
         std::to_string(change.epoch()) + ", " + human_bytes(change.reserved_bytes()) +
         " reserved)\n" + (loss.empty() ? "" : "this " + loss + "\n") +
         differences_text(change.differences());
}

}  // namespace cgx::ctl
