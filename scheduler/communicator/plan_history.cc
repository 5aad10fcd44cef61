#include "scheduler/communicator/plan_history.h"

#include <algorithm>
#include <charconv>

namespace cgx::scheduler {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

void put_hex(std::string& out, uint8_t byte) {
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// -1: not two digits.
int get_hex(std::string_view text, size_t at) {
  if (at + 2 > text.size()) return -1;
  const int high = digit(text[at]), low = digit(text[at + 1]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string escape(std::string_view name, uint8_t least = 33) {
  std::string out;
  for (const char c : name) {
    const auto byte = static_cast<uint8_t>(c);
    const bool plain = byte >= least && byte != '%' && byte != 127;
    if (plain) {
      out += c;
    } else {
      out += '%';
      put_hex(out, byte);
    }
  }
  return out;
}

std::string escape_text(std::string_view text) {
  return escape(text, ' ');
}

Result<std::string> unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int byte = get_hex(text, i + 1);
    if (byte < 0) return invalid_argument("'%' is not followed by two hexadecimal digits");
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

Result<std::vector<std::byte>> bytes_of(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int byte = get_hex(hex, i);
    if (byte < 0) return invalid_argument("the plan is not written in pairs of hexadecimal digits");
    bytes.push_back(static_cast<std::byte>(byte));
  }
  return bytes;
}

// Cuts the text at the first `end`; what is behind it stays in `rest`.
std::string_view take_until(std::string_view& rest, char end) {
  const size_t at = std::min(rest.find(end), rest.size());
  const std::string_view field = rest.substr(0, at);
  rest.remove_prefix(std::min(at + 1, rest.size()));
  return field;
}

}  // namespace

std::string format_plan_entry(const PlanEntry& entry) {
  std::string line = escape(entry.job) + '\t' + escape(entry.communicator) + '\t' +
                     std::to_string(entry.step) + '\t';
  const std::vector<std::byte> body =
      encode_control(Prepare{entry.purpose, 0, entry.policy, encode_plan(entry.plan)});
  for (const std::byte byte : body) put_hex(line, static_cast<uint8_t>(byte));
  if (!entry.origin.who.empty()) {
    line += '\t' + escape_text(entry.origin.who) + '\t' + escape_text(entry.origin.why);
  }
  return line + '\n';
}

namespace {

constexpr std::string_view kRemark = "# ";

// "; predicted 80 %, measured 97 % of the step before"
std::string shares_text(const PlanNote& note) {
  std::string text;
  const auto add = [&](const char* what, double share) {
    if (share <= 0) return;
    text.append(text.empty() ? "; " : ", ").append(what);
    text += std::to_string(percent_of(share)) + " %";
  };
  add("predicted ", note.predicted);
  add("measured ", note.measured);
  return text.empty() ? text : text + " of the step before";
}

}  // namespace

std::string format_plan_remark(const PlanRemark& remark) {
  const PlanNote& note = remark.note;
  return std::string(kRemark) + escape(remark.job) + '\t' + escape(remark.communicator) + '\t' +
         std::to_string(note.step) + '\t' + std::to_string(note.epoch) + '\t' +
         escape_text(note.name + ": " + note.verdict + shares_text(note)) + '\n';
}

Result<PlanEntry> parse_plan_entry(std::string_view line) {
  PlanEntry entry;
  CGX_ASSIGN_OR_RETURN(entry.job, unescape(take_until(line, '\t')));
  CGX_ASSIGN_OR_RETURN(entry.communicator, unescape(take_until(line, '\t')));
  const std::string_view step = take_until(line, '\t');
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), entry.step);
  if (error != std::errc() || end != step.data() + step.size()) {
    return invalid_argument("step '" + std::string(step) + "' is not a number");
  }
  CGX_ASSIGN_OR_RETURN(const std::vector<std::byte> body, bytes_of(take_until(line, '\t')));
  CGX_ASSIGN_OR_RETURN(entry.origin.who, unescape(take_until(line, '\t')));
  CGX_ASSIGN_OR_RETURN(entry.origin.why, unescape(take_until(line, '\t')));
  CGX_ASSIGN_OR_RETURN(const ControlMessage message, decode_control(body));
  const auto* const prepare = std::get_if<Prepare>(&message);
  if (prepare == nullptr) return invalid_argument("the body is not a plan");
  CGX_ASSIGN_OR_RETURN(entry.plan, decode_plan(prepare->plan));
  entry.purpose = prepare->purpose;
  entry.policy = prepare->policy;
  return entry;
}

Result<std::vector<PlanEntry>> parse_plan_history(std::string_view text) {
  if (text.substr(0, kPlanHistoryHead.size()) != kPlanHistoryHead) {
    return invalid_argument("the plan history does not begin with the line '" +
                            std::string(kPlanHistoryHead.substr(0, kPlanHistoryHead.size() - 1)) +
                            "'");
  }
  text.remove_prefix(kPlanHistoryHead.size());
  std::vector<PlanEntry> entries;
  for (size_t number = 2; !text.empty(); ++number) {
    const std::string_view line = take_until(text, '\n');
    if (line.starts_with(kRemark)) continue;
    Result<PlanEntry> entry = parse_plan_entry(line);
    if (!entry.ok()) {
      return invalid_argument("line " + std::to_string(number) +
                              " of the plan history: " + entry.status().message());
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

namespace {

// A communicator's epochs grow, and so do the steps of its plans; the next one of its name begins
// again. Its first epoch is 2 where the plan that was kept for it has been refused.
bool begins_again(const PlanEntry& entry, const PlanEntry& last) {
  if (entry.plan.epoch <= last.plan.epoch) return true;
  if (entry.purpose != PlanPurpose::kCommit) return false;
  const bool same_table = entry.plan.table_hash == last.plan.table_hash;
  return entry.step < last.step || (entry.step == last.step && same_table);
}

}  // namespace

PlanReplay::PlanReplay(const std::vector<PlanEntry>* history, std::string_view job,
                       std::string_view communicator, size_t earlier)
    : history_(history) {
  if (history == nullptr) return;
  std::vector<std::vector<const PlanEntry*>> each;
  for (const PlanEntry& entry : *history) {
    if (entry.job != job || entry.communicator != communicator) continue;
    if (each.empty() || begins_again(entry, *each.back().back())) each.emplace_back();
    each.back().push_back(&entry);
  }
  if (!each.empty()) entries_ = std::move(each[earlier % each.size()]);
}

Result<const PlanEntry*> PlanReplay::next_commit(uint64_t table_hash, uint64_t step) const {
  const PlanEntry* const entry = next();
  if (entry != nullptr && entry->purpose == PlanPurpose::kCommit && entry->step == step &&
      entry->plan.table_hash == table_hash) {
    return entry;
  }
  return Status(
      StatusCode::kMISMATCH,
      "the plan history has no commit of this table at step " + std::to_string(step) +
          (entry == nullptr ? ", it is at its end"
                            : "; its next plan is of step " + std::to_string(entry->step)));
}

}  // namespace cgx::scheduler
