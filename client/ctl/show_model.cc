// The tensors of a running job and its pace, as cgxsim --model reads them (scheduler/sim/model.h).
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "client/ctl/show.h"

namespace cgx::ctl {
namespace {

// One word of a line, which no other name is.
std::string word_of(const std::string& name, std::set<std::string>& taken) {
  std::string word = name.empty() ? "_" : name;
  for (char& c : word) {
    if (c == '#' || std::isspace(static_cast<unsigned char>(c)) != 0) c = '_';
  }
  std::string unique = word;
  for (int i = 2; !taken.insert(unique).second; ++i) unique = word + "_" + std::to_string(i);
  return unique;
}

std::string us_text(uint64_t ns) {
  return std::to_string(ns / 1000) + "." + std::to_string(1000 + ns % 1000).substr(1) + "us";
}

std::string shape_of(const v1::TensorArrival& tensor) {
  uint64_t elements = 1;
  std::string text;
  for (const uint64_t side : tensor.shape()) {
    elements *= side;
    text += (text.empty() ? "" : "x") + std::to_string(side);
  }
  return text.empty() || elements != tensor.elements() ? std::to_string(tensor.elements()) : text;
}

std::string head_of(const v1::JobProfile& profile) {
  std::string text = "# " + full_name(profile) + ", as it was measured; one way takes " +
                     us_text(profile.trip_ns());
  if (profile.link_bits_per_second() > 0) {
    char rate[48];
    std::snprintf(rate, sizeof rate, "%.0fmbit",
                  std::max(1.0, profile.link_bits_per_second() / 1e6));
    text += std::string(" over a link of ") + rate;
  }
  text += "\n";
  const auto others =
      std::count_if(profile.tensors().begin(), profile.tensors().end(),
                    [](const v1::TensorArrival& one) { return one.dtype() != "fp32"; });
  if (others > 0) {
    text += "# " + std::to_string(others) + " tensors are not fp32; cgxsim takes them for it\n";
  }
  return text;
}

}  // namespace

std::string show_model(const v1::JobProfile& profile) {
  std::set<std::string> names, models;
  // What is between two steps comes before the first gradient.
  const bool known = profile.period_ns() > profile.step_ns();
  std::string text = head_of(profile) + "model " + word_of(profile.job(), models) + "\nforward " +
                     us_text(known ? profile.period_ns() - profile.step_ns() : 0) + "\n";
  std::vector<const v1::TensorArrival*> order;
  for (const v1::TensorArrival& one : profile.tensors()) {
    if (one.elements() > 0) order.push_back(&one);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* one, const auto* other) {
    return one->after_ns() < other->after_ns();
  });
  uint64_t last_ns = 0;
  for (const v1::TensorArrival* const one : order) {
    text += "tensor " + word_of(one->name(), names) + " " + shape_of(*one) + " " +
            us_text(one->after_ns() - last_ns) + "\n";
    last_ns = one->after_ns();
  }
  return text;
}

}  // namespace cgx::ctl
