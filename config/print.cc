// print() and diff(): a message as text people read and load_text() takes.
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "config/config.h"
#include "config/problem.h"
#include "config/schema.h"

namespace cgx::config {
namespace {

constexpr const char* kHidden = "<hidden>";  // too short for a key: loading it is an error

class Printer {
 public:
  explicit Printer(Secrets secrets) : secrets_(secrets) {}

  std::string document(const Message& message) {
    section(message);
    return std::string(out_.c_str()) + "\n";
  }

 private:
  void section(const Message& message) {
    out_ << YAML::BeginMap;
    for (const FieldDescriptor* field : fields(*message.GetDescriptor())) {
      const auto* reflection = message.GetReflection();
      if (!field->is_repeated() && !reflection->HasField(message, field)) continue;
      out_ << YAML::Key << field->name() << YAML::Value;
      if (field->is_repeated()) {
        list(message, *field);
      } else if (is_section(*field)) {
        section(reflection->GetMessage(message, field));
      } else {
        scalar(message, *field, 0);
      }
    }
    out_ << YAML::EndMap;
  }

  void list(const Message& message, const FieldDescriptor& field) {
    const auto* reflection = message.GetReflection();
    out_ << (is_section(field) ? YAML::Block : YAML::Flow) << YAML::BeginSeq;
    for (int i = 0; i < reflection->FieldSize(message, &field); ++i) {
      if (is_section(field)) {
        section(reflection->GetRepeatedMessage(message, &field, i));
      } else {
        scalar(message, field, i);
      }
    }
    out_ << YAML::EndSeq;
  }

  void scalar(const Message& message, const FieldDescriptor& field, int index) {
    const std::string text = value_text(message, field, index);
    const bool hide = rule(field).secret() && secrets_ == Secrets::kHide && !text.empty();
    const bool is_string = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (is_string && (text.empty() || hide)) out_ << YAML::DoubleQuoted;
    out_ << (hide ? kHidden : text);
  }

  Secrets secrets_;
  YAML::Emitter out_;
};

void diff_sections(const Message& from, const Message& to, const std::string& key,
                   std::vector<KeyDifference>& differences);

std::string element_text(const Message& message, const FieldDescriptor& field, int index) {
  if (!is_section(field)) return value_text(message, field, index);
  const Message& element = message.GetReflection()->GetRepeatedMessage(message, &field, index);
  std::string text;
  for (const FieldDescriptor* part : fields(*element.GetDescriptor())) {
    text += (text.empty() ? "" : ", ") + part->name() + ": " + value_text(element, *part, 0);
  }
  return "{" + text + "}";
}

void diff_lists(const Message& from, const Message& to, const FieldDescriptor& field,
                const std::string& key, std::vector<KeyDifference>& differences) {
  const int from_size = from.GetReflection()->FieldSize(from, &field);
  const int to_size = to.GetReflection()->FieldSize(to, &field);
  for (int i = 0; i < std::max(from_size, to_size); ++i) {
    const std::string old_text = i < from_size ? element_text(from, field, i) : "(none)";
    const std::string new_text = i < to_size ? element_text(to, field, i) : "(none)";
    if (old_text != new_text) differences.push_back({element_key(key, i), old_text, new_text});
  }
}

void diff_sections(const Message& from, const Message& to, const std::string& key,
                   std::vector<KeyDifference>& differences) {
  for (const FieldDescriptor* field : fields(*from.GetDescriptor())) {
    const std::string name = join_key(key, field->name());
    if (field->is_repeated()) {
      diff_lists(from, to, *field, name, differences);
    } else if (is_section(*field)) {
      diff_sections(from.GetReflection()->GetMessage(from, field),
                    to.GetReflection()->GetMessage(to, field), name, differences);
    } else if (value_text(from, *field, 0) != value_text(to, *field, 0)) {
      differences.push_back({name, value_text(from, *field, 0), value_text(to, *field, 0)});
    }
  }
}

}  // namespace

std::string print(const Message& message, Secrets secrets) {
  return Printer(secrets).document(message);
}

std::vector<KeyDifference> diff(const Message& from, const Message& to) {
  CGX_ASSERT(from.GetDescriptor() == to.GetDescriptor());
  std::vector<KeyDifference> differences;
  diff_sections(from, to, "", differences);
  return differences;
}

}  // namespace cgx::config
