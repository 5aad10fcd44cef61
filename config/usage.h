// What a program says to a command line that it does not understand: cgxctl, cgxd, cgxsim.
// Thread rule: main's thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cgx::config {

// For CLI::App::failure_message(): the word that is wrong and what was perhaps meant, in one line.
std::string usage_message(const CLI::App* app, const CLI::Error& error);

}  // namespace cgx::config
