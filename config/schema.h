// One key as its field options describe it: the only place that reads them. Internal to config/.
// Thread rule: pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/text.h"
#include "proto/messages/options.pb.h"
#include "proto/wire/status.h"

namespace cgx::config {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const v1::Field& rule(const FieldDescriptor& field);
bool is_section(const FieldDescriptor& field);  // a message, alone or in a list
Quantity quantity(const FieldDescriptor& field);

struct Range {
  uint64_t min = 0, max = 0;
};
Range range(const FieldDescriptor& field);  // numbers only; the type's where none is declared

std::string allowed_text(const FieldDescriptor& field);  // "4 KiB to 1 GiB"; empty: any text
std::string default_text(const FieldDescriptor& field);  // as print() shows it

std::vector<const FieldDescriptor*> fields(const Descriptor& type);  // in order of declaration

// Parses one value and sets it, or appends it to a list. Checks form and range, not syntax.
Status assign(std::string_view text, const FieldDescriptor& field, Message& message);

// Element `index` of a list, or the single value (index ignored), as assign() reads it back.
std::string value_text(const Message& message, const FieldDescriptor& field, int index);

}  // namespace cgx::config
