// check() and fill_defaults(): what every message must satisfy, whoever wrote it.
#include <algorithm>

#include "config/config.h"
#include "config/problem.h"
#include "config/schema.h"
#include "config/syntax.h"
#include "config/text.h"

namespace cgx::config {
namespace {

std::string quoted(const FieldDescriptor& field, const std::string& text) {
  return rule(field).secret() ? "the value" : "\"" + text + "\"";
}

Status check_text(const FieldDescriptor& field, const std::string& text, const Checks& checks) {
  const v1::Field& options = rule(field);
  if (!is_plain_text(text)) {
    return invalid_argument("must be UTF-8 without control characters");
  }
  const bool may_be_empty = options.default_text().empty() && options.length_min() != 1;
  if (text.empty()) {
    return may_be_empty && !field.is_repeated() ? Status() : invalid_argument("must not be empty");
  }
  if (text.size() < options.length_min()) {
    return invalid_argument(quoted(field, text) + " is too short: " + allowed_text(field));
  }
  const auto& choices = options.choices();
  if (!choices.empty() && std::find(choices.begin(), choices.end(), text) == choices.end()) {
    return invalid_argument(quoted(field, text) + " is not allowed: " + allowed_text(field));
  }
  return check_syntax(options.syntax(), text, checks);
}

Status check_number(const Message& message, const FieldDescriptor& field) {
  const auto* reflection = message.GetReflection();
  const uint64_t value = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32
                             ? reflection->GetUInt32(message, &field)
                             : reflection->GetUInt64(message, &field);
  const Range allowed = range(field);
  if (value >= allowed.min && value <= allowed.max) return Status();
  return invalid_argument(print_quantity(value, quantity(field)) +
                          " is not allowed: " + allowed_text(field));
}

class Checker {
 public:
  explicit Checker(const Checks& checks) : checks_(checks) {}

  void section(const Message& message, const std::string& key) {
    for (const FieldDescriptor* field : fields(*message.GetDescriptor())) {
      const std::string name = join_key(key, field->name());
      if (field->is_repeated()) {
        list(message, *field, name);
      } else if (message.GetReflection()->HasField(message, field)) {
        one(message, *field, name);
      } else if (rule(*field).length_min() == 1 && rule(*field).default_text().empty()) {
        note(name, invalid_argument("is missing: " + allowed_text(*field)));
      }
    }
  }
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  void one(const Message& message, const FieldDescriptor& field, const std::string& key) {
    const auto* reflection = message.GetReflection();
    if (is_section(field)) return section(reflection->GetMessage(message, &field), key);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      return note(key, check_text(field, reflection->GetString(message, &field), checks_));
    }
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_BOOL) note(key, check_number(message, field));
  }

  void list(const Message& message, const FieldDescriptor& field, const std::string& key) {
    const auto* reflection = message.GetReflection();
    const int size = reflection->FieldSize(message, &field);
    for (int i = 0; i < size; ++i) {
      if (is_section(field)) {
        section(reflection->GetRepeatedMessage(message, &field, i), element_key(key, i));
      } else {
        note(element_key(key, i),
             check_text(field, reflection->GetRepeatedString(message, &field, i), checks_));
      }
    }
  }

  void note(const std::string& key, const Status& status) {
    if (!status.ok() && problems_.size() < kProblemsMax)
      problems_.push_back({key, status.message()});
  }

  const Checks& checks_;
  std::vector<Problem> problems_;
};

void fill_list(const FieldDescriptor& field, Message& message) {
  const auto* reflection = message.GetReflection();
  if (is_section(field)) {
    for (int i = 0; i < reflection->FieldSize(message, &field); ++i) {
      fill_defaults(*reflection->MutableRepeatedMessage(&message, &field, i));
    }
  } else if (reflection->FieldSize(message, &field) == 0) {
    for (const std::string& text : rule(field).default_list()) {
      reflection->AddString(&message, &field, text);
    }
  }
}

}  // namespace

std::string join_key(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

std::string element_key(const std::string& list, int index) {
  return list + "[" + std::to_string(index) + "]";
}

std::vector<Problem> find_problems(const Message& message, const Checks& checks) {
  Checker checker(checks);
  checker.section(message, "");
  std::vector<Problem> problems = checker.take();
  if (problems.empty() && message.GetDescriptor() == v1::Config::descriptor()) {
    v1::Config complete;
    complete.CopyFrom(message);
    fill_defaults(complete);
    find_contradictions(complete, problems);
  }
  return problems;
}

Status to_status(const std::vector<Problem>& problems, const std::string& prefix) {
  if (problems.empty()) return Status();
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += "\n";
    text += prefix + (problem.key.empty() ? "" : problem.key + ": ") + problem.text;
  }
  return invalid_argument(text);
}

Status check(const Message& message, const Checks& checks) {
  return to_status(find_problems(message, checks), "");
}

void fill_defaults(Message& message) {
  const auto* reflection = message.GetReflection();
  for (const FieldDescriptor* field : fields(*message.GetDescriptor())) {
    if (field->is_repeated()) {
      fill_list(*field, message);
    } else if (is_section(*field)) {
      fill_defaults(*reflection->MutableMessage(&message, field));
    } else if (!reflection->HasField(message, field)) {
      const Status status = assign(rule(*field).default_text(), *field, message);
      CGX_ASSERT(status.ok());  // a default in a .proto file that does not parse
    }
  }
}

}  // namespace cgx::config
