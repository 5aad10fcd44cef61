#include "daemon/sim/sim_report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "config/text.h"
#include "proto/wire/text.h"
#include "scheduler/sim/lines.h"

namespace cgx::daemon {
namespace {

namespace sim = scheduler::sim;

__attribute__((format(printf, 1, 2))) std::string formed(const char* form, ...) {
  char text[512];
  va_list values;
  va_start(values, form);
  std::vsnprintf(text, sizeof text, form, values);
  va_end(values);
  return text;
}

// 25557032 -> "25,557,032"
std::string with_commas(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

double exposed_ns(const sim::Run& run) {
  return run.step_ns() - run.compute_ns;
}

const char* core_name(const sim::Run& run) {
  return run.engines ? "engines" : "timeline";
}

// Who played, and how far the timeline is from the engines.
std::string cores_text(std::span<const sim::Run> runs) {
  double worst = 0;
  bool engines = false, timeline = false;
  for (const sim::Run& run : runs) {
    (run.engines ? engines : timeline) = true;
    worst = std::max(worst, std::abs(run.timeline_ns() / run.step_ns() - 1));
  }
  std::string text = "\n";
  if (engines) {
    text += formed(
        "engines: cgxd's own, frame by frame in virtual time; the timeline says the same within "
        "%.1f %%\n",
        100 * worst);
  }
  if (timeline) text += "timeline: the model of lanes that mode auto plans with\n";
  return text;
}

constexpr size_t kNameMax = 48;

// A policy given as a text may be long, and have several lines.
std::string short_name(const std::string& name) {
  return wire::shortened(config::plain_text(name), kNameMax);
}

size_t name_width(std::span<const sim::Run> runs) {
  size_t width = 6;
  for (const sim::Run& run : runs) width = std::max(width, short_name(run.name).size());
  return width;
}

}  // namespace

std::string scene_text(const SimOptions& options, const sim::Scene& scene) {
  const sim::Model& model = scene.model;
  const scheduler::MachineCosts& costs = scene.conditions.costs;
  return model.name + ": " + with_commas(model.parameters()) + " parameters in " +
         std::to_string(model.table.size()) + " tensors; " + model.origin + "; forward " +
         sim::time_text(model.forward_ns) + ", backward " + sim::time_text(model.backward_ns()) +
         "\n" + std::to_string(scene.machines) + " machines, " + options.link + " each, " +
         options.latency + " a trip; costs of " + costs.processor + ", lane " +
         (options.lane.empty() ? "the best" : options.lane) +
         formed("; trainers lose %.0f %% of the daemon's time\n", 100 * scene.conditions.share) +
         "A model of time: nothing was measured.\n\n";
}

std::string runs_text(std::span<const sim::Run> runs) {
  const int width = static_cast<int>(name_width(runs));
  std::string text = formed("%-*s  %10s  %7s  %10s  %12s  %10s  %8s  %6s\n", width, "policy",
                            "step", "scaling", "exposed", "sent/machine", "daemon", "by", "groups");
  const sim::Run* best = &runs.front();
  const sim::Run* worst = best;
  for (const sim::Run& run : runs) {
    if (run.step_ns() < best->step_ns()) best = &run;
    if (run.step_ns() > worst->step_ns()) worst = &run;
    text += formed("%-*s  %10s  %5.1f %%  %10s  %12s  %10s  %8s  %6zu\n", width,
                   short_name(run.name).c_str(), sim::time_text(run.step_ns()).c_str(),
                   100 * run.scaling(), sim::time_text(exposed_ns(run)).c_str(),
                   sim::bytes_text(static_cast<double>(run.sent_bytes())).c_str(),
                   sim::time_text(run.work_ns()).c_str(), core_name(run), run.plan.groups.size());
  }
  text += cores_text(runs);
  if (best == worst) return text;
  return text + "\nshortest: " + short_name(best->name) +
         formed("; %.2f times as fast as ", worst->step_ns() / best->step_ns()) +
         short_name(worst->name) + "\n";
}

std::string runs_json(const SimOptions& options, std::span<const sim::Run> runs) {
  std::string text = "{\"model\": " + config::json_quoted(options.model) +
                     ", \"machines\": " + std::to_string(options.machines) +
                     ", \"link\": " + config::json_quoted(options.link) + ", \"runs\": [";
  const char* between = "\n";
  for (const sim::Run& run : runs) {
    text +=
        between + ("{\"policy\": " + config::json_quoted(run.name)) +
        formed(
            ", \"step_ms\": %.6f, \"scaling\": %.6f, \"exposed_ms\": %.6f, \"sent_bytes\": "
            "%llu, \"daemon_ms\": %.6f, \"core\": \"%s\", \"timeline_ms\": %.6f, \"groups\": %zu, "
            "\"exact\": %s}",
            run.step_ns() / 1e6, run.scaling(), exposed_ns(run) / 1e6,
            static_cast<unsigned long long>(run.sent_bytes()), run.work_ns() / 1e6, core_name(run),
            run.timeline_ns() / 1e6, run.plan.groups.size(), run.exact ? "true" : "false");
    between = ",\n";
  }
  return text + "\n]}\n";
}

std::string validation_text(const sim::Validation& validation) {
  std::string text;
  for (const std::string& source : validation.sources) text += "from " + source + "\n";
  for (const std::string& each : validation.calibrations) text += "calibrated: " + each + "\n";
  for (const std::string& each : validation.predictions) text += "predicted: " + each + "\n";
  text +=
      formed("\n%-36s  %9s  %7s  %6s  %9s\n", "figure", "published", "ours", "off by", "tolerance");
  size_t held = 0;
  for (const sim::PublishedRow& row : validation.rows) {
    held += row.holds() ? 1 : 0;
    text += formed("%-36s  %9.2f  %7.2f  %6.1f  %2.0f %s%s\n", row.id.c_str(), row.published,
                   row.ours, row.error, row.tolerance, row.unit, row.holds() ? "" : "  MISSES");
  }
  return text + formed("%zu of %zu within their tolerance\n", held, validation.rows.size());
}

std::string validation_json(const sim::Validation& validation) {
  std::string text = "{\"rows\": [";
  const char* between = "\n";
  for (const sim::PublishedRow& row : validation.rows) {
    text += between + ("{\"id\": " + config::json_quoted(row.id)) +
            formed(
                ", \"published\": %.6f, \"ours\": %.6f, \"error\": %.6f, \"tolerance\": %.6f, "
                "\"unit\": \"%s\", \"holds\": %s}",
                row.published, row.ours, row.error, row.tolerance, row.unit,
                row.holds() ? "true" : "false");
    between = ",\n";
  }
  return text + "\n]}\n";
}

}  // namespace cgx::daemon
