// YAML text to a message. Exceptions of yaml-cpp end here.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "config/config.h"
#include "config/problem.h"
#include "config/schema.h"

namespace cgx::config {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kListMax = 4096;
constexpr size_t kTextBytesMax = 4096;

std::string keys_of(const Descriptor& type) {
  std::string list;
  for (const FieldDescriptor* field : fields(type)) {
    list.append(list.empty() ? "" : ", ").append(field->name());
  }
  return list;
}

// "policy.codec" for a "codec" that stands outside its section; empty if no section has the word.
std::string deeper(const std::string& word, const Descriptor& type) {
  for (const FieldDescriptor* field : fields(type)) {
    const bool section = is_section(*field) && !field->is_repeated();
    if (section && field->message_type()->FindFieldByName(word) != nullptr) {
      return join_key(field->name(), word);
    }
  }
  return "";
}

std::string no_such_key(const std::string& word, const Descriptor& type) {
  if (word == "policy" && type.name() == "Policy") {  // copied from the daemon's file
    return "no such key; write the keys below it (" + keys_of(type) + ") without it";
  }
  std::vector<std::string_view> known;
  for (const FieldDescriptor* field : fields(type)) known.push_back(field->name());
  std::string meant(nearest(word, known));
  if (meant.empty()) meant = deeper(word, type);
  return "no such key; " +
         (meant.empty() ? "there are " + keys_of(type) : "did you mean " + meant + "?");
}

// Not the value itself, which may be a secret of a key below.
std::string expects_keys(const YAML::Node& node, const Descriptor& type) {
  return "expects keys below it (" + keys_of(type) + "), not " +
         (node.IsScalar() ? "a value" : "a list");
}

// What a key without its one value could have.
std::string with_allowed(const std::string& text, const FieldDescriptor& field) {
  const std::string allowed = allowed_text(field);
  return allowed.empty() ? text : text + ": " + allowed;
}

// The usual slip: one value where several may be.
std::string expects_list(const YAML::Node& node, const FieldDescriptor& field) {
  if (is_section(field)) {
    return "expects a list, each element with " + keys_of(*field.message_type());
  }
  const bool one = node.IsScalar() && !node.Scalar().empty();
  return one ? "expects a list: [" + node.Scalar() + "]" : "expects a list";
}

// Fills a message from a tree and keeps the line of every key, for errors found later.
class Loader {
 public:
  void section(const YAML::Node& node, const std::string& key, Message& message) {
    if (node.IsNull()) return;  // "limits:" with every key commented out
    if (!node.IsMap()) return note(node, key, expects_keys(node, *message.GetDescriptor()));
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        note(entry.first, key, "has a key that is not a word");
      } else if (!seen.insert(entry.first.Scalar()).second) {
        note(entry.first, join_key(key, entry.first.Scalar()), "is given twice");
      } else {
        named(entry.first, entry.second, key, message);
      }
    }
  }

  void value(const YAML::Node& node, const FieldDescriptor& field, const std::string& key,
             Message& message) {
    if (field.is_repeated()) return list(node, field, key, message);
    if (is_section(field)) {
      return section(node, key, *message.GetReflection()->MutableMessage(&message, &field));
    }
    scalar(node, field, key, message);
  }

  bool failed() const { return !problems_.empty(); }

  Status status(const std::vector<Problem>& later, const std::string& file) const {
    std::vector<Problem> all = problems_;
    for (const Problem& problem : later) all.push_back({"", at(problem.key) + problem.text});
    return to_status(all, file);
  }

 private:
  void named(const YAML::Node& name, const YAML::Node& node, const std::string& parent,
             Message& message) {
    const std::string& word = name.Scalar();
    const std::string key = join_key(parent, word);
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(word);
    if (field == nullptr) return note(name, key, no_such_key(word, *message.GetDescriptor()));
    lines_[key] = name.Mark().line + 1;
    value(node, *field, key, message);
  }

  void scalar(const YAML::Node& node, const FieldDescriptor& field, const std::string& key,
              Message& message) {
    if (node.IsNull())
      return note_at(key, with_allowed("has no value", field));  // its mark is on the next line
    if (!node.IsScalar()) return note(node, key, with_allowed("expects one value", field));
    if (node.Scalar().size() > kTextBytesMax) {  // aliases make a long text cheap to repeat
      return note(node, key, "is longer than " + std::to_string(kTextBytesMax) + " bytes");
    }
    const Status status = assign(node.Scalar(), field, message);
    if (!status.ok()) note(node, key, status.message());
  }

  void list(const YAML::Node& node, const FieldDescriptor& field, const std::string& key,
            Message& message) {
    if (node.IsNull()) return;
    if (!node.IsSequence()) return note(node, key, expects_list(node, field));
    if (node.size() > kListMax) {
      return note(
          node, key,
          "has " + std::to_string(node.size()) + " elements; at most " + std::to_string(kListMax));
    }
    int index = 0;
    for (const YAML::Node& element : node) {
      const std::string name = element_key(key, index++);
      lines_[name] = element.Mark().line + 1;
      if (is_section(field)) {
        section(element, name, *message.GetReflection()->AddMessage(&message, &field));
      } else {
        scalar(element, field, name, message);
      }
    }
  }

  void note(const YAML::Node& node, const std::string& key, const std::string& text) {
    if (problems_.size() >= kProblemsMax) return;
    const std::string prefix = key.empty() ? "" : key + ": ";
    problems_.push_back({"", std::to_string(node.Mark().line + 1) + ": " + prefix + text});
  }

  void note_at(const std::string& key, const std::string& text) {
    if (problems_.size() < kProblemsMax) problems_.push_back({"", at(key) + text});
  }

  // "12: policy.codec: "; a key that is not in the file stands for the nearest section that is.
  std::string at(const std::string& key) const {
    for (std::string place = key; !place.empty();) {
      if (const auto found = lines_.find(place); found != lines_.end()) {
        return std::to_string(found->second) + ": " + key + ": ";
      }
      const size_t dot = place.find_last_of(".[");
      place.resize(dot == std::string::npos ? 0 : dot);
    }
    return "1: " + (key.empty() ? "" : key + ": ");
  }

  std::vector<Problem> problems_;  // texts begin with the line
  std::map<std::string, int> lines_;
};

class NoEvents final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// YAML::Load() ignores what follows the first document and YAML::LoadAll() never returns on some
// texts (",x"), so whether something follows is asked here, once.
bool one_document_at_most(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents none;
  return !parser.HandleNextDocument(none) || !parser.HandleNextDocument(none);
}

// yaml-cpp calls a tab at the beginning of a line an "illegal map value".
const char* hint(std::string_view text) {
  const bool tab = text.starts_with("\t") || text.find("\n\t") != std::string_view::npos;
  return tab ? " (lines must be indented with spaces, not tabs)" : "";
}

Result<YAML::Node> parse(std::string_view text, const std::string& file) {
  if (text.size() > kFileBytesMax) {
    return invalid_argument(file + " has " + std::to_string(text.size()) + " bytes; at most " +
                            std::to_string(kFileBytesMax));
  }
  try {
    const std::string copy(text);
    if (one_document_at_most(copy)) return YAML::Load(copy);
    return invalid_argument(file + ": something follows the end of the YAML document");
  } catch (const YAML::Exception& error) {
    return invalid_argument(file + ":" + std::to_string(error.mark.line + 1) +
                            ": not YAML: " + error.msg + hint(text));
  }
}

Status fill(const YAML::Node& tree, const std::string& file, const Checks& checks,
            Message& message) {
  Loader loader;
  try {
    loader.section(tree, "", message);
  } catch (const YAML::Exception& error) {
    return invalid_argument(file + ":" + std::to_string(error.mark.line + 1) + ": " + error.msg);
  }
  if (loader.failed()) return loader.status({}, file + ":");
  return loader.status(find_problems(message, checks), file + ":");
}

Status set_field(const std::string& key, const std::string& text, const FieldDescriptor& field,
                 Message& message) {
  message.GetReflection()->ClearField(&message, &field);
  if (!field.is_repeated() && !is_section(field)) {
    const Status status = assign(text, field, message);
    return status.ok() ? status : invalid_argument(key + ": " + status.message());
  }
  CGX_ASSIGN_OR_RETURN(const YAML::Node node, parse(text, key));
  Loader loader;
  try {
    loader.value(node, field, key, message);
  } catch (const YAML::Exception& error) {
    return invalid_argument(key + ": " + error.msg);
  }
  return loader.status({}, "line ");
}

}  // namespace

Status load_text(std::string_view text, std::string_view file_name, const Checks& checks,
                 Message& message) {
  message.Clear();
  const std::string file(file_name);
  CGX_ASSIGN_OR_RETURN(const YAML::Node tree, parse(text, file));
  return fill(tree, file, checks, message);
}

bool gives_empty_list(std::string_view text, const std::string& key) {
  const Result<YAML::Node> tree = parse(text, "");
  if (!tree.ok() || !tree->IsMap()) return false;
  const YAML::Node value = (*tree)[key];
  return value.IsDefined() && value.IsSequence() && value.size() == 0;
}

namespace {

void find_empty(const YAML::Node& node, const std::string& key, std::vector<EmptyPlace>& places) {
  if (!node.IsMap()) return;
  for (const auto& entry : node) {
    const std::string below = join_key(key, entry.first.Scalar());
    if (entry.second.IsNull()) places.push_back({below, entry.first.Mark().line + 1});
    find_empty(entry.second, below, places);
  }
}

bool says(const YAML::Node& node, std::string_view key) {
  if (!node.IsMap()) return false;
  const size_t dot = key.find('.');
  const YAML::Node value = node[std::string(key.substr(0, dot))];
  if (!value.IsDefined() || value.IsNull()) return false;
  return dot == std::string_view::npos || says(value, key.substr(dot + 1));
}

}  // namespace

std::vector<EmptyPlace> empty_places(std::string_view text) {
  const Result<YAML::Node> tree = parse(text, "");
  if (!tree.ok() || !tree->IsDefined() || tree->IsNull()) return {{"", 1}};
  std::vector<EmptyPlace> places;
  find_empty(*tree, "", places);
  return places;
}

bool says(std::string_view text, std::string_view key) {
  const Result<YAML::Node> tree = parse(text, "");
  return tree.ok() && says(*tree, key);
}

Result<std::string> read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (errno != 0 && !file.eof())) {
    return Status(StatusCode::kNOT_FOUND, "cannot read " + path + ": " + std::strerror(errno));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

Status load_file(const std::string& path, const Checks& checks, Message& message) {
  CGX_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return load_text(text, path, checks, message);
}

Status set(std::string_view assignment, Message& message) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    return invalid_argument("\"" + std::string(assignment) + "\" is not key=value");
  }
  const std::string key(assignment.substr(0, equals));
  Message* section = &message;
  for (size_t start = 0;;) {
    const size_t dot = key.find('.', start);
    const std::string word = key.substr(start, dot == std::string::npos ? dot : dot - start);
    const FieldDescriptor* field = section->GetDescriptor()->FindFieldByName(word);
    if (field == nullptr) {
      return invalid_argument(key + ": " + no_such_key(word, *section->GetDescriptor()));
    }
    if (dot == std::string::npos) {
      return set_field(key, std::string(assignment.substr(equals + 1)), *field, *section);
    }
    if (!is_section(*field) || field->is_repeated()) {
      return invalid_argument(key + ": " + word + " has no keys below it");
    }
    section = section->GetReflection()->MutableMessage(section, field);
    start = dot + 1;
  }
}

}  // namespace cgx::config
