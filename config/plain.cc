// make_plain(): texts of a message that others have filled in.
#include "config/config.h"
#include "config/schema.h"
#include "config/text.h"

namespace cgx::config {
namespace {

void make_plain_text(const FieldDescriptor& field, Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (!field.is_repeated()) {
    const std::string text = reflection.GetString(message, &field);
    if (!is_plain_text(text)) reflection.SetString(&message, &field, plain_text(text));
    return;
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const std::string text = reflection.GetRepeatedString(message, &field, i);
    if (!is_plain_text(text)) reflection.SetRepeatedString(&message, &field, i, plain_text(text));
  }
}

void make_plain_section(const FieldDescriptor& field, Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (!field.is_repeated()) {
    if (reflection.HasField(message, &field)) {
      make_plain(*reflection.MutableMessage(&message, &field));
    }
    return;
  }
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    make_plain(*reflection.MutableRepeatedMessage(&message, &field, i));
  }
}

}  // namespace

void make_plain(Message& message) {
  for (const FieldDescriptor* field : fields(*message.GetDescriptor())) {
    if (is_section(*field)) make_plain_section(*field, message);
    if (field->type() == FieldDescriptor::TYPE_STRING) make_plain_text(*field, message);
  }
}

}  // namespace cgx::config
