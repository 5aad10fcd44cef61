// The keys of the configuration and of policies: YAML text to a message of proto/messages and back.
//
// Works by reflection over any message whose fields carry the `field` option, so the daemon's file
// and a policy are loaded, checked, explained and printed by the same code. An unknown key is an
// error. Fields have presence: after load the message holds what was said; fill_defaults() adds
// what was not. Thread rule: pure functions; load_file() reads its file.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/status.h"

namespace google::protobuf {
class Message;
}

namespace cgx::config {

using google::protobuf::Message;

// Texts whose tables live in higher layers. An empty function accepts everything.
using TextCheck = std::function<Status(std::string_view)>;
struct Checks {
  TextCheck codec;
  TextCheck lane;
  TextCheck transport;
};

// Where a key may name a codec other than some other key's: that one's.
constexpr std::string_view kSameCodec = "same";

// Each error names file, line, key, value and what is allowed, one line per problem. On success
// `message` holds what the text says and passed check().
Status load_file(const std::string& path, const Checks& checks, Message& message);
Status load_text(std::string_view text, std::string_view file_name, const Checks& checks,
                 Message& message);

// The text of a file of at most 1 MiB.
Result<std::string> read_file(const std::string& path);
// Of a text that load_text() took: it gives `key` the list [], which a message cannot tell from
// saying nothing.
bool gives_empty_list(std::string_view text, const std::string& key);

// Of a text that load_text() took: its sections and lists with nothing written below them, as in a
// file that was cut off; the key "" where it says nothing at all. {} and [] say something.
struct EmptyPlace {
  std::string key;
  int line;
};
std::vector<EmptyPlace> empty_places(std::string_view text);
// Of such a text: it has a value for `key` ("policy.codec").
bool says(std::string_view text, std::string_view key);

// One assignment of a command line: "policy.window=8", "rules=[{match: x, codec: fp16}]". A list is
// replaced. Not checked beyond its own syntax and range.
Status set(std::string_view assignment, Message& message);

// Ranges, choices, syntax; one line per problem, each with its key.
Status check(const Message& message, const Checks& checks);

void fill_defaults(Message& message);

// YAML that load_text() accepts and that gives the same message; secrets hidden unless asked for.
enum class Secrets : uint8_t { kHide, kShow };
std::string print(const Message& message, Secrets secrets = Secrets::kHide);

// plain_text() (text.h) of all texts in it, for what comes from another machine.
void make_plain(Message& message);

// JSON with the messages' own names, all fields, 64-bit numbers as numbers.
std::string to_json(const Message& message);

// Keys whose values differ, in declaration order; "rules[1]" for elements of lists.
struct KeyDifference {
  std::string key, from, to;  // "(none)" where a list has no such element
};
std::vector<KeyDifference> diff(const Message& from, const Message& to);

// What a running daemon takes over of a changed configuration: the keys with the option `reload`.
void take_reloaded(const Message& changed, Message& running);

// Generated from the field options of `message`'s type.
std::string help_text(const Message& message);           // for --help
std::string reference_markdown(const Message& message);  // tables, one per section
std::string sample(const Message& message);              // every key, commented out, explained

}  // namespace cgx::config
