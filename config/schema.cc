#include "config/schema.h"

#include <limits>

namespace cgx::config {
namespace {

bool is_number(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ||
         field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
}

uint64_t declared(const std::string& text, Quantity quantity, uint64_t otherwise) {
  if (text.empty()) return otherwise;
  const Result<uint64_t> value = parse_quantity(text, quantity);
  CGX_ASSERT(value.ok());  // a bound in a .proto file that does not parse
  return *value;
}

std::string join(const google::protobuf::RepeatedPtrField<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string_view syntax_text(v1::Syntax syntax) {
  switch (syntax) {
    case v1::SYNTAX_PATH:
      return "an absolute path";
    case v1::SYNTAX_ADDRESS:
      return "host:port";
    case v1::SYNTAX_HOST:
      return "an IP address or host name";
    case v1::SYNTAX_NETWORK:
      return "a network such as 10.0.0.0/8";
    case v1::SYNTAX_PORT_RANGE:
      return "first-last, a port, or 0";
    case v1::SYNTAX_MODE:
      return "octal permission bits";
    case v1::SYNTAX_GROUP:
      return "a group's name or number";
    case v1::SYNTAX_WORD:
      return "letters, digits, and . _ -";
    case v1::SYNTAX_REGEX:
      return "a regular expression";
    case v1::SYNTAX_CODEC:
      return "a codec; see cgxctl codecs";
    case v1::SYNTAX_OTHER_CODEC:
      return "same, or a codec; see cgxctl codecs";
    case v1::SYNTAX_LANE:
      return "auto or a lane's name";
    case v1::SYNTAX_TRANSPORT:
      return "auto or a transport's name";
    case v1::SYNTAX_SHARE:
      return "a number above 0, at most 1";
    case v1::SYNTAX_FACTOR:
      return "a number above 0, at most 1000000";
    default:
      return "";
  }
}

Result<bool> parse_bool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return invalid_argument("\"" + std::string(text) + "\" is neither true nor false");
}

Result<uint64_t> parse_number(std::string_view text, const FieldDescriptor& field) {
  CGX_ASSIGN_OR_RETURN(const uint64_t value, parse_quantity(text, quantity(field)));
  const Range allowed = range(field);
  if (value < allowed.min || value > allowed.max) {
    return invalid_argument(std::string(text) + " is not allowed: " + allowed_text(field));
  }
  return value;
}

void store_number(uint64_t value, const FieldDescriptor& field, Message& message) {
  const auto* reflection = message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    reflection->SetUInt32(&message, &field, static_cast<uint32_t>(value));
  } else {
    reflection->SetUInt64(&message, &field, value);
  }
}

}  // namespace

const v1::Field& rule(const FieldDescriptor& field) {
  return field.options().GetExtension(v1::field);
}

bool is_section(const FieldDescriptor& field) {
  return field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

Quantity quantity(const FieldDescriptor& field) {
  switch (rule(field).unit()) {
    case v1::UNIT_BYTES:
      return Quantity::kBytes;
    case v1::UNIT_MICROSECONDS:
      return Quantity::kMicroseconds;
    case v1::UNIT_MILLISECONDS:
      return Quantity::kMilliseconds;
    default:
      return Quantity::kCount;
  }
}

Range range(const FieldDescriptor& field) {
  const uint64_t type_max = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32
                                ? std::numeric_limits<uint32_t>::max()
                                : std::numeric_limits<uint64_t>::max();
  return {declared(rule(field).min(), quantity(field), 0),
          declared(rule(field).max(), quantity(field), type_max)};
}

std::string allowed_text(const FieldDescriptor& field) {
  if (is_section(field)) return "";
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "true or false";
  if (is_number(field)) {
    const Range allowed = range(field);
    return print_quantity(allowed.min, quantity(field)) + " to " +
           print_quantity(allowed.max, quantity(field));
  }
  if (rule(field).choices_size() > 0) return "one of " + join(rule(field).choices());
  std::string text(syntax_text(rule(field).syntax()));
  if (rule(field).length_min() > 1) {
    text = "at least " + std::to_string(rule(field).length_min()) + " characters";
  }
  return text;
}

std::string default_text(const FieldDescriptor& field) {
  if (field.is_repeated()) return "[" + join(rule(field).default_list()) + "]";
  if (is_section(field)) return "";
  return rule(field).default_text();
}

std::vector<const FieldDescriptor*> fields(const Descriptor& type) {
  std::vector<const FieldDescriptor*> list;
  for (int i = 0; i < type.field_count(); ++i) list.push_back(type.field(i));
  return list;
}

Status assign(std::string_view text, const FieldDescriptor& field, Message& message) {
  const auto* reflection = message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    if (field.is_repeated()) {
      reflection->AddString(&message, &field, std::string(text));
    } else {
      reflection->SetString(&message, &field, std::string(text));
    }
    return Status();
  }
  CGX_ASSERT(!field.is_repeated());  // lists hold texts or sections
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    CGX_ASSIGN_OR_RETURN(const bool value, parse_bool(text));
    reflection->SetBool(&message, &field, value);
    return Status();
  }
  CGX_ASSERT(is_number(field));
  CGX_ASSIGN_OR_RETURN(const uint64_t value, parse_number(text, field));
  store_number(value, field, message);
  return Status();
}

std::string value_text(const Message& message, const FieldDescriptor& field, int index) {
  const auto* reflection = message.GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return field.is_repeated() ? reflection->GetRepeatedString(message, &field, index)
                               : reflection->GetString(message, &field);
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    return reflection->GetBool(message, &field) ? "true" : "false";
  }
  CGX_ASSERT(is_number(field));
  const uint64_t value = field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32
                             ? reflection->GetUInt32(message, &field)
                             : reflection->GetUInt64(message, &field);
  return print_quantity(value, quantity(field));
}

}  // namespace cgx::config
