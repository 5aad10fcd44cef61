#include "config/usage.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "config/text.h"

namespace cgx::config {
namespace {

// A command takes its own options and those of the commands it is below.
std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> found;
  for (const CLI::App* at = &command; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) found.push_back("--" + name);
    }
  }
  return found;
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> found;
  for (const CLI::App* each : command.get_subcommands({})) found.push_back(each->get_name());
  return found;
}

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::string not_understood(const CLI::App& command, const std::string& word) {
  const bool option = word.starts_with("-");
  const std::vector<std::string> known = option ? options_of(command) : commands_of(command);
  if (!option && known.empty()) return "takes no \"" + word + "\" (quote a text with spaces)";
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  const std::string meant(nearest(word, candidates));
  const std::string wrong = (option ? "no option " : "no command ") + word;
  if (!meant.empty()) return wrong + "; did you mean " + meant + "?";
  return option ? wrong : wrong + "; there are " + listed(known);
}

// "Could not convert: --last = many" names no remedy.
std::string not_converted(const CLI::App& command, std::string text) {
  constexpr std::string_view kBefore = "Could not convert: ", kBetween = " = ";
  const size_t between = text.find(kBetween);
  if (!text.starts_with(kBefore) || between == std::string::npos) return text;
  const std::string name = text.substr(kBefore.size(), between - kBefore.size());
  const CLI::Option* const option = command.get_option_no_throw(name);
  const bool whole = option != nullptr && option->get_type_name().starts_with("UINT");
  return name + ": \"" + text.substr(between + kBetween.size()) + "\" is not a " +
         (whole ? "whole number, 0 or more" : "number");
}

}  // namespace

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* command = app;
  std::string path = app->get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  std::string text = error.what();
  std::vector<std::string> unknown = app->remaining(true);
  std::erase(unknown, "--");  // stands before a command to run
  if (!unknown.empty()) {
    text = not_understood(*command, unknown.front());
  } else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    text = not_converted(*command, text);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
             command->get_require_subcommand_min() > 0) {
    text = "say which: " + listed(commands_of(*command));
  }
  return path + ": " + text + "\nRun " + path + " --help for more information.\n";
}

}  // namespace cgx::config
