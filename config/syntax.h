// Checks of texts by what they mean (options.proto, Syntax). Internal to config/.
// Thread rule: pure functions.
#pragma once

#include <string>

#include "config/config.h"
#include "proto/messages/options.pb.h"

namespace cgx::config {

// The message says what would be right; the caller knows the key. `text` is not empty.
Status check_syntax(v1::Syntax syntax, const std::string& text, const Checks& checks);

}  // namespace cgx::config
