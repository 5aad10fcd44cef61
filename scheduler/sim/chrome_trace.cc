#include <cstdio>

#include "scheduler/sim/bars.h"
#include "scheduler/sim/pictures.h"

namespace cgx::scheduler::sim {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string named(const char* what, uint32_t process, uint32_t thread, const std::string& name) {
  return "{\"ph\": \"M\", \"name\": \"" + std::string(what) +
         "\", \"pid\": " + std::to_string(process) + ", \"tid\": " + std::to_string(thread) +
         ", \"args\": {\"name\": " + quoted(name) + "}}";
}

// Operations overlap, so they are asynchronous events: a begin and an end with one id.
std::string event(const Bar& bar, uint32_t process, const std::string& name,
                  const std::string& about) {
  char head[160];
  const bool overlaps = bar.lane == 3;
  const std::string place = ", \"pid\": " + std::to_string(process) +
                            ", \"tid\": " + std::to_string(bar.lane) +
                            ", \"name\": " + quoted(name) + ", \"cat\": \"" + kLanes[bar.lane] +
                            "\", \"args\": {\"what\": " + quoted(about) + "}";
  if (!overlaps) {
    std::snprintf(head, sizeof head, "{\"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f",
                  bar.begin_ns / 1e3, (bar.end_ns - bar.begin_ns) / 1e3);
    return head + place + "}";
  }
  const std::string id = ", \"id\": " + std::to_string(bar.group) + "}";
  std::snprintf(head, sizeof head, "{\"ph\": \"b\", \"ts\": %.3f", bar.begin_ns / 1e3);
  std::string both = head + place + id + ",\n";
  std::snprintf(head, sizeof head, "{\"ph\": \"e\", \"ts\": %.3f", bar.end_ns / 1e3);
  return both + head + place + id;
}

}  // namespace

std::string chrome_trace(std::span<const Run> runs, const TensorTable& table) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const char* between = "";
  const auto add = [&](const std::string& row) {
    text += between + row;
    between = ",\n";
  };
  for (uint32_t r = 0; r < runs.size(); ++r) {
    add(named("process_name", r, 0, runs[r].name));
    for (uint32_t lane = 0; lane < kLanes.size(); ++lane) {
      add(named("thread_name", r, lane, kLanes[lane]));
    }
    for (const Bar& bar : bars_of(runs[r])) {
      const bool forward = bar.group == Bar::kForward;
      add(event(bar, r, forward ? "forward" : "group " + std::to_string(bar.group),
                forward ? "forward pass" : group_text(runs[r].plan.groups[bar.group], table)));
    }
  }
  return text + "\n]}\n";
}

}  // namespace cgx::scheduler::sim
