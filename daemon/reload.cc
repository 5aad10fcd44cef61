#include "daemon/reload.h"

#include <sys/stat.h>

#include <utility>

#include "kernels/codec.h"

namespace cgx::daemon {
namespace {

// Another one for another file of the name, and for other contents.
uint64_t mark_of(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return 0;
  const auto changed_ns = static_cast<uint64_t>(found.st_mtim.tv_sec) * 1'000'000'000 +
                          static_cast<uint64_t>(found.st_mtim.tv_nsec);
  return changed_ns ^ (static_cast<uint64_t>(found.st_ino) << 40);
}

constexpr size_t kNamedMax = 5;  // keys in one message

bool lies_below(const std::string& key, const std::string& place) {
  return place.empty() || key.starts_with(place + ".") || key.starts_with(place + "[");
}

// "policy.codec, policy.window and 3 more", what the reload would take over first; empty: nothing.
std::string lost_below(const Reload& reload, const std::string& place) {
  std::vector<std::string> keys;
  for (const config::KeyDifference& one : reload.taken) keys.push_back(one.key);
  keys.insert(keys.end(), reload.waiting.begin(), reload.waiting.end());
  std::string names;
  size_t count = 0;
  for (const std::string& key : keys) {
    if (!lies_below(key, place) || ++count > kNamedMax) continue;
    names += (names.empty() ? "" : ", ") + key;
  }
  return names + (count > kNamedMax ? " and " + std::to_string(count - kNamedMax) + " more" : "");
}

// REQUIRES: the configuration's check took it.
bool is_exact(const std::string& codec) {
  const Result<CodecSpec> spec = kernels::parse_codec_spec(codec);
  CGX_ASSERT(spec.ok());
  return spec->codec == 0;  // fp32
}

// The codec of the tensors that a rule of these words reaches, were there no other rule.
std::string codec_of_rule(const v1::Policy& policy, const std::string& match) {
  for (const v1::Rule& rule : policy.rules()) {
    if (rule.match() == match) return rule.codec();
  }
  return policy.codec();
}

}  // namespace

FilesAtStart::FilesAtStart(const v1::Config& config) {
  for (NamedFile& file : secret_files(config)) {
    const uint64_t mark = mark_of(file.path);
    files_.push_back({std::move(file), mark});
  }
}

std::vector<std::string> FilesAtStart::changed() const {
  std::vector<std::string> keys;
  for (const File& file : files_) {
    if (mark_of(file.named.path) != file.mark) keys.push_back(file.named.key);
  }
  return keys;
}

Status check_whole(const v1::Config& running, const Written& written) {
  const Reload reload = plan_reload(running, written.config);
  const std::string cut_off = " (was the file cut off?), but ";
  for (const config::EmptyPlace& place : config::empty_places(written.text)) {
    const std::string lost = lost_below(reload, place.key);
    if (written.file.empty() || lost.empty()) continue;
    if (place.key.empty()) {
      return invalid_argument(written.file + ": says nothing" + cut_off + lost +
                              " would be as by default; where that is meant, write {}");
    }
    return invalid_argument(written.file + ":" + std::to_string(place.line) + ": " + place.key +
                            ": has nothing below it" + cut_off + lost +
                            " would be as by default; write the keys, or leave out " + place.key);
  }
  const std::string &before = running.policy().codec(), &after = written.config.policy().codec();
  if (is_exact(before) && !is_exact(after) && !config::says(written.text, "policy.codec")) {
    return invalid_argument(
        written.file + ": policy.codec: is no longer written" + cut_off + "what travels exactly (" +
        before + ") would be compressed; where that " + "is meant, write policy.codec: " + after);
  }
  return {};
}

std::vector<std::string> made_lossy(const v1::Config& running, const v1::Config& changed) {
  const v1::Policy &before = running.policy(), &after = changed.policy();
  std::vector<std::string> texts;
  const auto compare = [&](const std::string& key, const std::string& from, const std::string& to) {
    if (is_exact(from) && !is_exact(to)) texts.push_back(key + ": " + from + " -> " + to);
  };
  compare("policy.codec", before.codec(), after.codec());
  for (const v1::Rule& rule : before.rules()) {
    compare("policy.rules (match " + rule.match() + ")", rule.codec(),
            codec_of_rule(after, rule.match()));
  }
  return texts;
}

Reload plan_reload(const v1::Config& running, const v1::Config& changed) {
  Reload reload{.effective = running, .taken = {}, .waiting = {}};
  config::take_reloaded(changed, reload.effective);
  reload.taken = config::diff(running, reload.effective);
  for (const config::KeyDifference& one : config::diff(reload.effective, changed)) {
    reload.waiting.push_back(one.key);
  }
  return reload;
}

}  // namespace cgx::daemon
