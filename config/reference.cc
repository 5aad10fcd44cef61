// Help, reference and sample, all derived from the field options.
#include <functional>

#include "config/config.h"
#include "config/problem.h"
#include "config/schema.h"

namespace cgx::config {
namespace {

std::string shown_default(const FieldDescriptor& field) {
  const std::string text = default_text(field);
  if (!text.empty()) return text;
  return rule(field).length_min() == 1 ? "(required)" : "\"\"";
}

// "4 KiB to 1 GiB; default 4 MiB"
std::string facts(const FieldDescriptor& field) {
  const std::string allowed = allowed_text(field);
  return (allowed.empty() ? "" : allowed + "; ") + "default " + shown_default(field);
}

std::string pad(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

// Depth first, each section once: its key ("policy.rules[]"; empty for the root), what it is for
// (null for the root), its type, and whether a running daemon takes over all of it.
struct Section {
  std::string key;
  const FieldDescriptor* field;
  const Descriptor& type;
  bool reload;
};
using SectionVisitor = std::function<void(const Section&)>;

void visit(const Section& section, const SectionVisitor& visitor) {
  visitor(section);
  for (const FieldDescriptor* child : fields(section.type)) {
    if (!is_section(*child)) continue;
    visit({join_key(section.key, child->name()) + (child->is_repeated() ? "[]" : ""), child,
           *child->message_type(), section.reload || rule(*child).reload()},
          visitor);
  }
}

// Help of one section: the keys that hold values.
std::string help_section(const Descriptor& type) {
  std::string text;
  for (const FieldDescriptor* field : fields(type)) {
    if (is_section(*field)) continue;
    text += "  " + pad(field->name(), 20) + " " + rule(*field).help() + "\n";
    text += std::string(23, ' ') + "(" + facts(*field) + ")\n";
  }
  return text;
}

std::string escaped(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, "\\");
  }
  return text;
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "`" + escaped(text) + "`";
}

std::string markdown_rows(const Section& section) {
  std::string text;
  for (const FieldDescriptor* field : fields(section.type)) {
    if (is_section(*field)) continue;
    text += "| `" + field->name() + "` | " + escaped(rule(*field).help()) + " | " +
            escaped(allowed_text(*field)) + " | " + code(shown_default(*field)) + " | " +
            code(rule(*field).example()) + " | " +
            (section.reload || rule(*field).reload() ? "yes" : "") + " |\n";
  }
  return text;
}

// "[{match: '^a', weight: 1}]"
std::string example(const Descriptor& type) {
  std::string text;
  for (const FieldDescriptor* field : fields(type)) {
    const std::string& shown = rule(*field).example();
    text += (text.empty() ? "" : ", ") + field->name() + ": " +
            (shown.empty() ? default_text(*field) : "'" + shown + "'");
  }
  return "[{" + text + "}]";
}

// A section at `depth`; everything behind "# ".
std::string sample_section(const Descriptor& type, size_t depth) {
  const std::string indent = "# " + std::string(2 * depth, ' ');
  std::string text;
  for (const FieldDescriptor* field : fields(type)) {
    const std::string comment = indent + "# " + rule(*field).help();
    if (is_section(*field) && field->is_repeated()) {
      text += "#\n" + comment + "; for example " + example(*field->message_type()) + "\n";
      text += indent + field->name() + ": []\n";
    } else if (is_section(*field)) {
      text += "#\n" + comment + "\n" + indent + field->name() + ":\n";
      text += sample_section(*field->message_type(), depth + 1);
    } else {
      const std::string allowed = allowed_text(*field);
      text += comment + (allowed.empty() ? "" : " (" + allowed + ")") + "\n";
      text += indent + field->name() + ": " + shown_default(*field) + "\n";
    }
  }
  return text;
}

}  // namespace

std::string help_text(const Message& message) {
  std::string text;
  visit({"", nullptr, *message.GetDescriptor(), false}, [&](const Section& section) {
    if (section.field != nullptr) {
      text += "\n" + section.key + ": " + rule(*section.field).help() + "\n";
    }
    text += help_section(section.type);
  });
  return text;
}

std::string reference_markdown(const Message& message) {
  std::string text;
  visit({"", nullptr, *message.GetDescriptor(), false}, [&](const Section& section) {
    const std::string rows = markdown_rows(section);
    if (section.field != nullptr) {
      text += "\n## `" + section.key + "`\n\n" + rule(*section.field).help() + "\n";
    }
    if (rows.empty()) return;
    text +=
        "\n| key | meaning | allowed | default | example | reload |\n|---|---|---|---|---|---|\n" +
        rows;
  });
  return text;
}

std::string sample(const Message& message) {
  return sample_section(*message.GetDescriptor(), 0);
}

}  // namespace cgx::config
