// to_json(): see README for why not protobuf's own printer.
#include <charconv>
#include <cmath>

#include "config/config.h"
#include "config/schema.h"
#include "config/text.h"

namespace cgx::config {
namespace {

class JsonPrinter {
 public:
  void object(const Message& message, int depth) {
    out_ += "{";
    bool first = true;
    for (const FieldDescriptor* field : fields(*message.GetDescriptor())) {
      if (!first) out_ += ",";
      first = false;
      line(depth + 1);
      out_ += json_quoted(field->name());
      out_ += ": ";
      value(message, *field, depth + 1);
    }
    if (!first) line(depth);
    out_ += "}";
  }
  std::string take() { return std::move(out_); }

 private:
  void value(const Message& message, const FieldDescriptor& field, int depth) {
    const auto* reflection = message.GetReflection();
    if (field.has_presence() && !reflection->HasField(message, &field)) {
      out_ += "null";  // nothing was measured, or it does not apply
      return;
    }
    if (!field.is_repeated()) {
      if (is_section(field)) return object(reflection->GetMessage(message, &field), depth);
      return scalar(message, field);
    }
    const int size = reflection->FieldSize(message, &field);
    out_ += "[";
    for (int i = 0; i < size; ++i) {
      if (i > 0) out_ += is_section(field) ? "," : ", ";
      element(message, field, i, depth + 1);
    }
    if (size > 0 && is_section(field)) line(depth);
    out_ += "]";
  }

  void element(const Message& message, const FieldDescriptor& field, int index, int depth) {
    const auto* reflection = message.GetReflection();
    if (is_section(field)) {
      line(depth);
      object(reflection->GetRepeatedMessage(message, &field, index), depth);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      out_ += json_quoted(reflection->GetRepeatedString(message, &field, index));
    } else {
      CGX_ASSERT(field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64);
      out_ += std::to_string(reflection->GetRepeatedUInt64(message, &field, index));
    }
  }

  void scalar(const Message& message, const FieldDescriptor& field) {
    const auto* reflection = message.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        out_ += json_quoted(reflection->GetString(message, &field));
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        out_ += reflection->GetBool(message, &field) ? "true" : "false";
        return;
      case FieldDescriptor::CPPTYPE_UINT32:
        out_ += std::to_string(reflection->GetUInt32(message, &field));
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        out_ += std::to_string(reflection->GetUInt64(message, &field));
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return number(reflection->GetDouble(message, &field));
      case FieldDescriptor::CPPTYPE_INT32:
        out_ += std::to_string(reflection->GetInt32(message, &field));
        return;
      default:
        assertion_failed("a field type no message of cgx.v1 has", __FILE__, __LINE__);
    }
  }

  // JSON has no word for infinity and NaN.
  void number(double value) {
    char text[32];
    const auto [end, error] = std::to_chars(text, text + sizeof text, value);
    if (!std::isfinite(value) || error != std::errc()) {
      out_ += "null";
    } else {
      out_.append(text, end);
    }
  }

  void line(int depth) { out_.append("\n").append(2 * static_cast<size_t>(depth), ' '); }

  std::string out_;
};

}  // namespace

std::string to_json(const Message& message) {
  JsonPrinter printer;
  printer.object(message, 0);
  return printer.take() + "\n";
}

}  // namespace cgx::config
