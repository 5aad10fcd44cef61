#include "scheduler/sim/published.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "scheduler/planners/timeline.h"
#include "scheduler/sim/lines.h"
#include "scheduler/sim/model.h"
#include "scheduler/sim/published_nodes.h"
#include "scheduler/sim/published_speeds.h"

namespace cgx::scheduler::sim {
namespace {

constexpr double kCurveBytes = 128.0 * 1024 * 1024;  // at which curves are given

struct System {
  double sends = 4;  // of a 4-byte element
  Curve encode, decode;
  bool all_payloads = false;
  bool plain = false;
};

struct Between {  // so many trainers
  double ns_per_byte = 0, latency_ns = 0;
};

std::string figure(const char* form, double value) {
  char text[64];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

// One file's state: what was read so far, and the answers.
class Validator {
 public:
  Status take(const Line& line);
  Validation done;

 private:
  struct Cell {
    const System* system = nullptr;
    std::string codec;
    uint32_t machines = 0;
    bool two = false;  // else layer-wise
  };
  Status trainer(const Line& line);
  Status codec(const Line& line);
  Status calibrate(const Line& line);
  Status scaling(const Line& line);
  Status ratio(const Line& line);
  Status read(const Line& line, size_t at, Cell& cell) const;
  Status number(const Line& line, size_t at, double& value) const;

  LaneTimes group(const Cell& cell, const Between& between, size_t first, size_t end) const;
  double step_ns(const Cell& cell, const Between& between) const;
  double scaling_of(const Cell& cell, const Between& between) const;
  double scaling_of(const Cell& cell) { return scaling_of(cell, between_[cell.machines]); }

  double step_ = 0, forward_ns_ = 0;
  std::vector<double> bytes_, arrival_ns_;  // in order of arrival, added up, from 0
  std::map<std::string, System> systems_;
  std::map<uint32_t, Between> between_;  // by machines
  PublishedSpeeds speeds_;
  PublishedNodes nodes_;
};

Status Validator::number(const Line& line, size_t at, double& value) const {
  const Result<double> read = parse_number(line.words[at]);
  if (!read.ok()) return line.error(read.status().message());
  value = *read;
  return {};
}

Status Validator::trainer(const Line& line) {
  const Result<Model> model = make_model(line.words[1], {});
  if (!model.ok()) return line.error(model.status().message());
  const Result<double> step = parse_time_ns(line.words[2]);
  if (!step.ok() || *step <= 0) return line.error("the step of one trainer is a time above 0");
  double share = 0;
  CGX_RETURN_IF_ERROR(number(line, 3, share));
  if (share >= 1) return line.error("the forward pass's share is below 1");
  step_ = *step;
  forward_ns_ = share * step_;
  const double stretch = (step_ - forward_ns_) / model->backward_ns();
  bytes_ = arrival_ns_ = {0};
  for (const uint32_t t : model->order) {
    bytes_.push_back(bytes_.back() + static_cast<double>(model->table[t].bytes()));
    arrival_ns_.push_back(stretch * model->arrival_ns[t]);
  }
  return {};
}

Status Validator::codec(const Line& line) {
  System system;
  if (line.words.size() == 3 && line.words[2] == "plain") {
    system.plain = true;
  } else if (line.words.size() == 12 && line.words[2] == "sends" && line.words[4] == "encode" &&
             line.words[7] == "decode" && line.words[10] == "payloads") {
    CGX_RETURN_IF_ERROR(number(line, 3, system.sends));
    const auto curve = [&](size_t at, Curve& read) -> Status {
      const Result<double> floor = parse_time_ns(line.words[at]);
      const Result<double> more = parse_time_ns(line.words[at + 1]);
      if (!floor.ok()) return line.error(floor.status().message());
      if (!more.ok()) return line.error(more.status().message());
      read = {*floor, *more / kCurveBytes};
      return {};
    };
    CGX_RETURN_IF_ERROR(curve(5, system.encode));
    CGX_RETURN_IF_ERROR(curve(8, system.decode));
    if (line.words[11] != "one" && line.words[11] != "all") {
      return line.error("payloads is one or all");
    }
    system.all_payloads = line.words[11] == "all";
  } else {
    return line.error(
        "expects \"codec NAME plain\" or \"codec NAME sends BYTES encode FLOOR MORE "
        "decode FLOOR MORE payloads one|all\"");
  }
  systems_[line.words[1]] = system;
  return {};
}

// CODEC MACHINES, and where the line goes on CUT, from word `at`.
Status Validator::read(const Line& line, size_t at, Cell& cell) const {
  if (bytes_.empty()) return line.error("comes before the line \"trainer MODEL STEP FORWARD\"");
  const auto found = systems_.find(line.words[at]);
  if (found == systems_.end()) return line.error("no line \"codec " + line.words[at] + " ...\"");
  cell.system = &found->second;
  cell.codec = line.words[at];
  double machines = 0;
  CGX_RETURN_IF_ERROR(number(line, at + 1, machines));
  if (machines < 2 || machines > 1024 || machines != std::floor(machines)) {
    return line.error("2 to 1024 machines, not " + line.words[at + 1]);
  }
  cell.machines = static_cast<uint32_t>(machines);
  return {};
}

// The tensors [first, end) in one call.
LaneTimes Validator::group(const Cell& cell, const Between& between, size_t first,
                           size_t end) const {
  const System& system = *cell.system;
  const double bytes = bytes_[end] - bytes_[first], machines = cell.machines;
  LaneTimes times{.gap_ns = arrival_ns_[end] - arrival_ns_[first]};
  if (system.plain) {
    times.link_ns =
        between.latency_ns + between.ns_per_byte * bytes * 2 * (machines - 1) / machines;
    return times;
  }
  times.stall_ns =
      system.encode.ns(bytes) + system.decode.ns(bytes * (system.all_payloads ? machines : 1));
  times.link_ns =
      between.latency_ns + between.ns_per_byte * bytes * system.sends / 4 * (machines - 1);
  return times;
}

double Validator::step_ns(const Cell& cell, const Between& between) const {
  const size_t count = bytes_.size() - 1;
  if (!cell.two) {
    Lanes lanes;
    for (size_t i = 0; i < count; ++i) lanes.advance(group(cell, between, i, i + 1), 0);
    return forward_ns_ + lanes.step_ns();
  }
  double best = INFINITY;
  for (size_t cut = 1; cut < count; ++cut) {
    Lanes lanes;
    lanes.advance(group(cell, between, 0, cut), 0);
    lanes.advance(group(cell, between, cut, count), 0);
    best = std::min(best, forward_ns_ + lanes.step_ns());
  }
  return best;
}

double Validator::scaling_of(const Cell& cell, const Between& between) const {
  return 100 * step_ / step_ns(cell, between);
}

namespace {

Status read_cut(const Line& line, const std::string& word, bool& two) {
  if (word != "layerwise" && word != "two") return line.error("a cut is layerwise or two");
  two = word == "two";
  return {};
}

}  // namespace

// A slower link scales worse: the value is found by halving.
Status Validator::calibrate(const Line& line) {
  Cell cell;
  double published = 0;
  CGX_RETURN_IF_ERROR(read(line, 2, cell));
  CGX_RETURN_IF_ERROR(read_cut(line, line.words[4], cell.two));
  CGX_RETURN_IF_ERROR(number(line, 5, published));
  const bool rate = line.words[1] == "rate";
  if (!rate && line.words[1] != "latency") return line.error("calibrates rate or latency");
  Between& between = between_[cell.machines];
  double& value = rate ? between.ns_per_byte : between.latency_ns;
  double low = 0, high = rate ? 1e3 : 1e9;
  for (int round = 0; round < 100; ++round) {
    value = (low + high) / 2;
    (scaling_of(cell, between) > published ? low : high) = value;
  }
  if (value < 1e-6) value = 0;  // no such cost explains the figure
  done.calibrations.push_back(line.words[1] + " among " + line.words[3] + ": " +
                              (rate ? figure("%.2f GB/s", 1 / value) : time_text(value)) +
                              ", from " + cell.codec + " " + line.words[4] + " " + line.words[5] +
                              " %");
  return {};
}

Status Validator::scaling(const Line& line) {
  Cell cell;
  PublishedRow row{.id = line.words[1], .unit = "points"};
  CGX_RETURN_IF_ERROR(read(line, 2, cell));
  CGX_RETURN_IF_ERROR(read_cut(line, line.words[4], cell.two));
  CGX_RETURN_IF_ERROR(number(line, 5, row.published));
  CGX_RETURN_IF_ERROR(number(line, 6, row.tolerance));
  row.ours = scaling_of(cell);
  row.error = std::abs(row.ours - row.published);
  done.rows.push_back(row);
  return {};
}

Status Validator::ratio(const Line& line) {
  Cell cell;
  PublishedRow row{.id = line.words[1], .unit = "percent"};
  CGX_RETURN_IF_ERROR(read(line, 2, cell));
  CGX_RETURN_IF_ERROR(number(line, 4, row.published));
  CGX_RETURN_IF_ERROR(number(line, 5, row.tolerance));
  if (row.published == 0) return line.error("a ratio is above 0");
  Cell two = cell;
  two.two = true;
  row.ours = scaling_of(two) / scaling_of(cell);
  row.error = 100 * std::abs(row.ours / row.published - 1);
  done.rows.push_back(row);
  return {};
}

Status Validator::take(const Line& line) {
  const std::string& key = line.words[0];
  const size_t words = line.words.size();
  if (key == "source" && words > 1) {
    std::string text;
    for (size_t i = 1; i < words; ++i) text += (i == 1 ? "" : " ") + line.words[i];
    done.sources.push_back(text);
    return {};
  }
  if (key == "trainer" && words == 4) return trainer(line);
  if (key == "codec" && words > 2) return codec(line);
  if (key == "calibrate" && words == 6) return calibrate(line);
  if (key == "scaling" && words == 7) return scaling(line);
  if (key == "ratio" && words == 6) return ratio(line);
  if (key == "speeds" && words == 5) {
    CGX_ASSIGN_OR_RETURN(done.predictions.emplace_back(), speeds_.add(line));
    return {};
  }
  if (key == "nodes" && words == 5) return nodes_.nodes(line);
  if (key == "gpucodec" && words == 6) return nodes_.codec(line);
  if (key == "system" && words == 8) {
    CGX_ASSIGN_OR_RETURN(done.calibrations.emplace_back(), nodes_.system(line));
    return {};
  }
  if ((key == "gain" || key == "upper") && words == 6) {
    CGX_ASSIGN_OR_RETURN(done.rows.emplace_back(),
                         key == "gain" ? nodes_.gain(line) : nodes_.upper(line));
    return {};
  }
  if (key == "median" && words == 3) {
    CGX_ASSIGN_OR_RETURN(done.rows.emplace_back(), speeds_.median(line));
    return {};
  }
  return line.error(
      "not a line of published figures: source, trainer, codec, calibrate, scaling, ratio, "
      "speeds, median, nodes, gpucodec, system, gain or upper with its words");
}

}  // namespace

Result<Validation> validate(std::string_view text, const std::string& file_name) {
  Validator validator;
  for (const Line& line : lines_of(text, file_name)) CGX_RETURN_IF_ERROR(validator.take(line));
  if (validator.done.rows.empty()) {
    return invalid_argument(file_name +
                            ": no figures; a line \"scaling ...\" or \"ratio ...\" each");
  }
  return std::move(validator.done);
}

}  // namespace cgx::scheduler::sim
