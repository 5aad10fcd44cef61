#include "scheduler/sim/model.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

#include "scheduler/sim/lines.h"

namespace cgx::scheduler::sim {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 40;

Result<TensorDesc> parse_tensor(const Line& line) {
  TensorDesc tensor{.name = line.words[1], .elements = 1};
  std::string_view rest = line.words[2];
  while (true) {
    uint64_t side = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), side);
    if (error != std::errc() || side == 0 || side > kElementsMax / tensor.elements) {
      return line.error("\"" + line.words[2] + "\" is not a shape such as 64x3x7x7, of at most " +
                        std::to_string(kElementsMax) + " elements");
    }
    tensor.elements *= side;
    tensor.shape.push_back(side);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) return tensor;
    if (rest.front() != 'x') rest = "?";
    rest.remove_prefix(1);
  }
}

class Parser {
 public:
  Status take(const Line& line) {
    const std::string& key = line.words[0];
    if (key == "model" && line.words.size() == 2) {
      model.name = line.words[1];
      return {};
    }
    if (key == "forward" && line.words.size() == 2) {
      const Result<double> forward = parse_time_ns(line.words[1]);
      if (!forward.ok()) return line.error(forward.status().message());
      model.forward_ns = *forward;
      return {};
    }
    if (key == "tensor" && line.words.size() == 4) return tensor(line);
    return line.error("expects \"model NAME\", \"forward TIME\" or \"tensor NAME SHAPE GAP\"");
  }

  Model model;

 private:
  Status tensor(const Line& line) {
    CGX_ASSIGN_OR_RETURN(const TensorDesc what, parse_tensor(line));
    if (!names_.insert(what.name).second) return line.error(what.name + " is there twice");
    const Result<double> gap = parse_time_ns(line.words[3]);
    if (!gap.ok()) return line.error("gap of " + what.name + ": " + gap.status().message());
    model.arrival_ns.push_back(model.backward_ns() + *gap);
    model.order.push_back(static_cast<uint32_t>(model.table.size()));
    model.table.push_back(what);
    return {};
  }

  std::set<std::string> names_;
};

}  // namespace

uint64_t Model::parameters() const {
  uint64_t all = 0;
  for (const TensorDesc& tensor : table) all += tensor.elements;
  return all;
}

double Model::backward_ns() const {
  return arrival_ns.empty() ? 0 : *std::max_element(arrival_ns.begin(), arrival_ns.end());
}

Result<Model> parse_model(std::string_view text, const std::string& file_name) {
  Parser parser;
  parser.model = {.name = file_name, .origin = "gaps from " + file_name};
  for (const Line& line : lines_of(text, file_name)) CGX_RETURN_IF_ERROR(parser.take(line));
  if (parser.model.table.empty()) {
    return invalid_argument(file_name + ": no tensors; a line \"tensor NAME SHAPE GAP\" each");
  }
  if (parser.model.compute_ns() == 0) {
    return invalid_argument(file_name + ": takes no time; give gaps, or \"forward TIME\"");
  }
  return std::move(parser.model);
}

std::string print_model(const Model& model) {
  char figure[48];
  const auto us = [&](double ns) {
    std::snprintf(figure, sizeof figure, "%.3fus", ns / 1e3);
    return std::string(figure);
  };
  std::string text =
      "# " + model.origin + "\nmodel " + model.name + "\nforward " + us(model.forward_ns) + "\n";
  double last_ns = 0;
  for (const uint32_t t : model.order) {
    const TensorDesc& tensor = model.table[t];
    std::string shape;
    for (const uint64_t side : tensor.shape) {
      shape += (shape.empty() ? "" : "x") + std::to_string(side);
    }
    text += "tensor " + tensor.name + " " + shape + " " + us(model.arrival_ns[t] - last_ns) + "\n";
    last_ns = model.arrival_ns[t];
  }
  return text;
}

}  // namespace cgx::scheduler::sim
