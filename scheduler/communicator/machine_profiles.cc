#include "scheduler/communicator/machine_profiles.h"

#include <algorithm>
#include <utility>

#include "proto/wire/text.h"

namespace cgx::scheduler {
namespace {

constexpr size_t kReasonBytesMax = 200;
constexpr size_t kNamedMax = 4;  // machines; of more it is said how many

Result<wire::MachineProfile> profile_in(const ProfileAnswerMessage& message) {
  if (message.code != StatusCode::kOK) return Status(message.code, message.text);
  return wire::decode_profile(message.profile);
}

}  // namespace

uint64_t MachineProfiles::ask(Waiting survey) {
  waiting_ = std::move(survey);
  said_.assign(members_.machines(), {});
  return ++number_;
}

void MachineProfiles::hear(uint32_t machine, const ProfileAnswerMessage& message) {
  if (!waiting_ || message.number != number_ || !said_[machine].open()) return;
  Result<wire::MachineProfile> profile = profile_in(message);
  if (!profile.ok()) return miss(machine, profile.status().to_string());
  said_[machine].profile = *std::move(profile);
}

void MachineProfiles::miss(uint32_t machine, const std::string& why) {
  if (!waiting_ || !said_[machine].open()) return;
  said_[machine].why_not = wire::shortened(why, kReasonBytesMax);
}

bool MachineProfiles::ready(uint64_t now_ns) const {
  if (!waiting_) return false;
  if (now_ns >= waiting_->deadline_ns) return true;
  for (uint32_t k = 0; k < said_.size(); ++k) {
    if (k != members_.machine && said_[k].open()) return false;
  }
  return true;
}

std::string MachineProfiles::left_out(uint64_t waited_ns) const {
  std::string text;
  size_t count = 0;
  for (uint32_t k = 0; k < said_.size(); ++k) {
    if (k == members_.machine || said_[k].profile || ++count > kNamedMax) continue;
    const std::string silent =
        "has not answered within " + std::to_string(waited_ns / 1'000'000) + " ms";
    text += (text.empty() ? "" : "; ") + members_.machine_name(k) + ": " +
            (said_[k].open() ? silent : said_[k].why_not);
  }
  if (count > kNamedMax) text += "; and " + std::to_string(count - kNamedMax) + " more";
  return text;
}

MachineProfiles::Waiting MachineProfiles::take() {
  Waiting survey = *std::exchange(waiting_, std::nullopt);
  left_out_ = left_out(survey.deadline_ns - survey.since_ns);
  heard_.clear();
  for (Said& said : said_) {
    if (said.profile) heard_.push_back(*std::move(said.profile));
  }
  said_.clear();
  measured_epoch_ = survey.question.measured.epoch;
  add_to(survey.question);
  return survey;
}

void MachineProfiles::stop() {
  waiting_.reset();
  said_.clear();
  heard_.clear();
  left_out_.clear();
}

void MachineProfiles::add_to(SurveyQuestion& question) const {
  question.others = heard_;
  if (!heard_.empty()) question.measured.epoch = measured_epoch_;
  question.left_out = left_out_;
}

}  // namespace cgx::scheduler
