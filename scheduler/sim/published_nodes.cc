#include "scheduler/sim/published_nodes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "scheduler/sim/model.h"

namespace cgx::scheduler::sim {
namespace {

constexpr double kElementsOfAFloor = 1 << 20;
constexpr double kElementBytes = 4;

Status number(const Line& line, size_t at, double& value) {
  CGX_ASSIGN_OR_RETURN(value, parse_number(line.words[at]));
  return value > 0 ? Status() : line.error(line.words[at] + " is not above 0");
}

Status time(const Line& line, size_t at, double& value) {
  const Result<double> read = parse_time_ns(line.words[at]);
  if (!read.ok()) return line.error(read.status().message());
  value = *read;
  return {};
}

}  // namespace

Status PublishedNodes::nodes(const Line& line) {
  CGX_RETURN_IF_ERROR(number(line, 1, machines_));
  CGX_RETURN_IF_ERROR(number(line, 2, gpus_));
  CGX_RETURN_IF_ERROR(time(line, 3, latency_ns_));
  const Result<double> rate = parse_rate(line.words[4]);
  if (!rate.ok()) return line.error(rate.status().message());
  processors_ns_ = *rate;
  return {};
}

Status PublishedNodes::codec(const Line& line) {
  Codec codec;
  CGX_RETURN_IF_ERROR(number(line, 2, codec.sends));
  CGX_RETURN_IF_ERROR(time(line, 3, codec.both_ns));
  CGX_RETURN_IF_ERROR(time(line, 4, codec.decode_ns));
  CGX_RETURN_IF_ERROR(time(line, 5, codec.twice_ns));
  if (codec.decode_ns > codec.both_ns) return line.error("decoding takes no longer than both ways");
  codecs_[line.words[1]] = codec;
  return {};
}

Result<std::string> PublishedNodes::system(const Line& line) {
  if (machines_ == 0) {
    return line.error("comes before the line \"nodes MACHINES GPUS LATENCY PROCESSORS\"");
  }
  const Result<Model> model = make_model(line.words[2], {});
  if (!model.ok()) return line.error(model.status().message());
  System system;
  double backward_ns = 0, inside_ns = 0, between_ns = 0, published = 0;
  CGX_RETURN_IF_ERROR(time(line, 3, backward_ns));
  CGX_RETURN_IF_ERROR(time(line, 4, system.forward_ns));
  CGX_RETURN_IF_ERROR(time(line, 5, inside_ns));
  CGX_RETURN_IF_ERROR(time(line, 6, between_ns));
  CGX_RETURN_IF_ERROR(number(line, 7, published));
  const double stretch = backward_ns / model->backward_ns();
  double before_ns = 0;
  for (const uint32_t t : model->order) {
    const double arrives_ns = stretch * model->arrival_ns[t];
    system.bytes.push_back(static_cast<double>(model->table[t].bytes()));
    system.gap_ns.push_back(arrives_ns - before_ns);
    before_ns = arrives_ns;
  }
  const double alone_ns = system.forward_ns + backward_ns;
  const std::vector<Choice> raw(system.bytes.size(), Choice::kRaw);
  double low = 0, high = 1e3;  // slower links scale worse
  for (int round = 0; round < 100; ++round) {
    const double times = (low + high) / 2;
    system.inside_ns = times * inside_ns / 1000;
    system.between_ns = times * between_ns / 1000;
    const double scaling = 100 * alone_ns / (system.forward_ns + step_ns(system, {}, raw));
    (scaling > published ? low : high) = times;
  }
  char text[160];
  std::snprintf(text, sizeof text, "links for %s: %.2f GB/s inside, %.2f between, from %g %%",
                line.words[1].c_str(), 1 / system.inside_ns, 1 / system.between_ns, published);
  systems_[line.words[1]] = std::move(system);
  return std::string(text);
}

Result<PublishedNodes::Asked> PublishedNodes::asked(const Line& line) const {
  const auto system = systems_.find(line.words[2]);
  if (system == systems_.end()) return line.error("no line \"system " + line.words[2] + " ...\"");
  const auto codec = codecs_.find(line.words[3]);
  if (codec == codecs_.end()) return line.error("no line \"gpucodec " + line.words[3] + " ...\"");
  return Asked{&system->second, &codec->second};
}

// A reduce-scatter and an allgather inside machines, an exchange between those GPUs of all machines
// that have the same share.
PublishedNodes::Cost PublishedNodes::cost_of(const System& system, const Codec& codec, double bytes,
                                             Choice choice) const {
  const double inside_ns = system.inside_ns * 2 * (gpus_ - 1) / gpus_ * bytes;
  const double between_ns = system.between_ns * 2 * (machines_ - 1) / machines_ * bytes;
  const double smaller = codec.sends / kElementBytes;
  const auto times = [](double elements) { return std::max(1.0, elements / kElementsOfAFloor); };
  const double elements = bytes / kElementBytes, of_a_share = times(elements / gpus_);
  const double stages_ns = 2 * latency_ns_;
  switch (choice) {
    case Choice::kRaw:
      return {0, stages_ns + inside_ns + between_ns, 0};
    case Choice::kBetween:
      return {of_a_share * (codec.both_ns - codec.decode_ns),
              stages_ns + inside_ns / 2 + smaller * between_ns + of_a_share * codec.both_ns, 0};
    case Choice::kEverywhere:
      return {times(elements) * (codec.twice_ns - codec.decode_ns),
              2 * stages_ns + smaller * (inside_ns + between_ns) + times(elements) * codec.twice_ns,
              0};
    case Choice::kProcessors:
      return {0, stages_ns + inside_ns / 2 + smaller * between_ns, processors_ns_ * bytes};
  }
  return {};
}

// Of the backward pass and what is still to be sent behind it.
double PublishedNodes::step_ns(const System& system, const Codec& codec,
                               const std::vector<Choice>& way) const {
  double backward_ns = 0, link_ns = 0, processors_ns = 0;
  for (size_t i = 0; i < way.size(); ++i) {
    const Cost cost = cost_of(system, codec, system.bytes[i], way[i]);
    backward_ns += system.gap_ns[i] + cost.stall_ns;
    double ready_ns = backward_ns;
    if (way[i] == Choice::kProcessors) {
      ready_ns = processors_ns = std::max(backward_ns, processors_ns) + cost.processors_ns;
    }
    link_ns = std::max(link_ns, ready_ns) + cost.link_ns;
  }
  return std::max(backward_ns, link_ns);
}

// The largest first, of equal ones those that come last; each takes what makes the step shortest.
void PublishedNodes::improve(const System& system, const Codec& codec, std::vector<Choice>& way,
                             double& step) const {
  std::vector<size_t> order(way.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t one, size_t other) {
    return system.bytes[one] != system.bytes[other] ? system.bytes[one] > system.bytes[other]
                                                    : one > other;
  });
  for (const size_t i : order) {
    for (const Choice choice :
         {Choice::kRaw, Choice::kBetween, Choice::kEverywhere, Choice::kProcessors}) {
      const Choice before = std::exchange(way[i], choice);
      const double now = step_ns(system, codec, way);
      now < step ? void(step = now) : void(way[i] = before);
    }
  }
}

// From each plan that treats all alike, until nothing improves it.
double PublishedNodes::best_ns(const System& system, const Codec& codec) const {
  double best = INFINITY;
  for (const Choice start :
       {Choice::kRaw, Choice::kBetween, Choice::kEverywhere, Choice::kProcessors}) {
    std::vector<Choice> way(system.bytes.size(), start);
    double step = step_ns(system, codec, way), before = INFINITY;
    while (step < before) {
      before = step;
      improve(system, codec, way, step);
    }
    best = std::min(best, step);
  }
  return system.forward_ns + best;
}

Result<PublishedRow> PublishedNodes::gain(const Line& line) const {
  CGX_ASSIGN_OR_RETURN(const Asked asked, this->asked(line));
  PublishedRow row{.id = line.words[1], .unit = "percent"};
  CGX_RETURN_IF_ERROR(number(line, 4, row.published));
  CGX_RETURN_IF_ERROR(number(line, 5, row.tolerance));
  const std::vector<Choice> raw(asked.system->bytes.size(), Choice::kRaw);
  row.ours = (asked.system->forward_ns + step_ns(*asked.system, {}, raw)) /
             best_ns(*asked.system, *asked.codec);
  row.error = 100 * std::abs(row.ours / row.published - 1);
  return row;
}

Result<PublishedRow> PublishedNodes::upper(const Line& line) const {
  CGX_ASSIGN_OR_RETURN(const Asked asked, this->asked(line));
  PublishedRow row{.id = line.words[1], .unit = "points"};
  CGX_RETURN_IF_ERROR(number(line, 4, row.published));
  CGX_RETURN_IF_ERROR(number(line, 5, row.tolerance));
  const Codec free{.sends = asked.codec->sends};
  row.ours = 100 * (best_ns(*asked.system, *asked.codec) / best_ns(*asked.system, free) - 1);
  row.error = std::abs(row.ours - row.published);
  return row;
}

}  // namespace cgx::scheduler::sim
