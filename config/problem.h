// What is wrong with one key. Internal to config/: the public functions join these into one Status.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "proto/messages/config.pb.h"

namespace cgx::config {

struct Problem {
  std::string key;   // "policy.rules[2].codec"; empty: the file as a whole
  std::string text;  // "9 GiB is not allowed: 4 KiB to 1 GiB"
};

constexpr size_t kProblemsMax = 20;

// Ranges, choices, syntax of everything that is set, then what keys owe each other (rules.cc).
std::vector<Problem> find_problems(const Message& message, const Checks& checks);
void find_contradictions(const v1::Config& complete, std::vector<Problem>& problems);

// kOK or kINVALID_ARGUMENT with one line per problem, `prefix` before each.
Status to_status(const std::vector<Problem>& problems, const std::string& prefix);

// "" + "policy" -> "policy"; "policy" + "rules" -> "policy.rules"
std::string join_key(const std::string& parent, const std::string& name);
std::string element_key(const std::string& list, int index);

}  // namespace cgx::config
