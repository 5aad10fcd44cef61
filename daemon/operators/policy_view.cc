#include "daemon/operators/policy_view.h"

#include <algorithm>

#include "config/config.h"
#include "config/text.h"
#include "daemon/policy/policy_message.h"
#include "scheduler/planners/policy_effect.h"

namespace cgx::daemon {
namespace {

constexpr size_t kNamesShown = 5;

scheduler::TensorTable table_of(const CommunicatorSnapshot& communicator) {
  scheduler::TensorTable table;
  for (const scheduler::TensorSnapshot& tensor : communicator.tensors) {
    table.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .elements = tensor.elements,
                     .shape = tensor.shape});
  }
  return table;
}

v1::CodecUse& use_of(const CodecSpec& spec, v1::PolicyEffect& effect) {
  const std::string name = kernels::to_string(spec);
  auto& uses = *effect.mutable_codecs();
  const auto found = std::find_if(uses.begin(), uses.end(),
                                  [&](const v1::CodecUse& one) { return one.codec() == name; });
  if (found != uses.end()) return *found;
  v1::CodecUse& added = *uses.Add();
  added.set_codec(name);
  return added;
}

void add_totals(const scheduler::TensorTable& table, const std::vector<CodecSpec>& before,
                const std::vector<CodecSpec>& after, v1::PolicyEffect& effect) {
  for (const scheduler::CodecTotal& total : scheduler::totals_of(table, before)) {
    v1::CodecUse& use = use_of(total.spec, effect);
    use.set_tensors_now(total.tensors);
    use.set_bytes_now(total.bytes);
  }
  for (const scheduler::CodecTotal& total : scheduler::totals_of(table, after)) {
    v1::CodecUse& use = use_of(total.spec, effect);
    use.set_tensors_after(total.tensors);
    use.set_bytes_after(total.bytes);
  }
}

void add_loss(const scheduler::TensorTable& table, const std::vector<uint32_t>& lossy,
              v1::PolicyEffect& effect) {
  effect.set_lossy_tensors(static_cast<uint32_t>(lossy.size()));
  uint64_t elements = 0;
  for (const uint32_t tensor : lossy) elements += table[tensor].elements;
  effect.set_lossy_elements(elements);
  for (size_t i = 0; i < std::min(kNamesShown, lossy.size()); ++i) {
    effect.add_lossy_names(config::plain_text(table[lossy[i]].name));
  }
}

}  // namespace

Result<v1::PolicyEffect> effect_of(const CommunicatorSnapshot& communicator,
                                   const scheduler::Policy& wanted,
                                   const std::function<bool()>& goes_on) {
  const scheduler::TensorTable table = table_of(communicator);
  CGX_ASSIGN_OR_RETURN(const scheduler::PolicyEffect after,
                       scheduler::effect_of(table, wanted, goes_on));
  std::vector<CodecSpec> before;
  for (const scheduler::TensorSnapshot& tensor : communicator.tensors) {
    before.push_back(tensor.codec);
  }
  v1::PolicyEffect effect;
  uint64_t raw_bytes = 0;
  for (const scheduler::TensorDesc& tensor : table) raw_bytes += tensor.bytes();
  effect.set_raw_bytes(raw_bytes);
  add_totals(table, before, after.specs, effect);
  add_loss(table, scheduler::made_lossy(before, after.specs), effect);
  if (table.empty()) return effect;
  for (const std::string& text : scheduler::idle_rules(wanted, after.rules)) {
    effect.add_idle_rules(config::plain_text(text));
  }
  return effect;
}

std::string loss_text(const v1::PolicyEffect& effect) {
  if (effect.lossy_tensors() == 0) return "";
  std::string names;
  for (const std::string& name : effect.lossy_names()) names += (names.empty() ? "" : ", ") + name;
  const bool more = static_cast<int>(effect.lossy_tensors()) > effect.lossy_names_size();
  return "compresses " + std::to_string(effect.lossy_tensors()) + " tensors with " +
         std::to_string(effect.lossy_elements()) + " elements that travel exactly now (" + names +
         (more ? ", ..." : "") + ")";
}

v1::Policy configured_policy(const CommunicatorSnapshot& communicator) {
  const auto& versions = communicator.policies;
  return to_message(versions.empty() ? communicator.policy : versions.front()->policy);
}

v1::PolicyHistory history_of(const CommunicatorSnapshot& communicator) {
  v1::PolicyHistory history;
  history.set_job(config::plain_text(communicator.job));
  history.set_communicator(config::plain_text(communicator.name));
  v1::Policy before;
  for (const auto& one : communicator.policies) {
    v1::PolicyVersion& added = *history.add_versions();
    const scheduler::PolicyNote& note = one->policy.note;
    added.set_version(one->version);
    added.set_epoch(one->epoch);
    added.set_step(one->step);
    added.set_by(config::plain_text(note.by));
    added.set_reason(config::plain_text(note.reason));
    added.set_unix_ns(note.unix_ns);
    added.set_kept(note.keep);
    *added.mutable_policy() = to_message(one->policy);
    if (history.versions_size() > 1) {
      add_differences(before, added.policy(), *added.mutable_differences());
    }
    before = added.policy();
  }
  return history;
}

void add_differences(const v1::Policy& from, const v1::Policy& to,
                     google::protobuf::RepeatedPtrField<v1::Difference>& differences) {
  for (const config::KeyDifference& one : config::diff(from, to)) {
    v1::Difference* added = differences.Add();
    added->set_key(one.key);
    added->set_from(one.from);
    added->set_to(one.to);
  }
}

}  // namespace cgx::daemon
