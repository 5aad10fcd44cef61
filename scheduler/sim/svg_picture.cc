#include <algorithm>
#include <cmath>
#include <cstdio>

#include "scheduler/sim/bars.h"
#include "scheduler/sim/lines.h"
#include "scheduler/sim/pictures.h"

namespace cgx::scheduler::sim {
namespace {

constexpr double kLeft = 90, kWidth = 1000, kTop = 44, kRow = 22, kHeading = 20, kPanelGap = 20;
constexpr const char* kColours[] = {"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1"};  // by lane

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

std::string words(double x, double y, const char* anchor, const std::string& text, int size = 12) {
  char head[128];
  std::snprintf(head, sizeof head,
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y, anchor,
                size);
  return head + escaped(text) + "</text>\n";
}

// Steps between marks of the axis: 1, 2 or 5 times a power of ten, about ten of them.
double mark_ns(double all_ns) {
  const double power = std::pow(10, std::floor(std::log10(all_ns / 10)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (all_ns / (step * power) <= 12) return step * power;
  }
  return 10 * power;
}

class Picture {
 public:
  Picture(double all_ns, double height) : all_ns_(all_ns), bottom_(height - 26) {}

  double x(double ns) const { return kLeft + kWidth * ns / all_ns_; }
  void axis() {
    char line[200];
    for (int i = 0; i * mark_ns(all_ns_) <= all_ns_ * 1.0001; ++i) {
      const double at = x(i * mark_ns(all_ns_));
      std::snprintf(line, sizeof line,
                    "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", at,
                    kTop - 6, at, bottom_);
      text += line + words(at, bottom_ + 16, "middle", time_text(i * mark_ns(all_ns_)), 11);
    }
  }
  void bar(const Bar& bar, double y, const std::string& about) {
    char line[240];
    const double width = std::max(0.4, x(bar.end_ns) - x(bar.begin_ns));
    const bool forward = bar.group == Bar::kForward;
    std::snprintf(line, sizeof line,
                  "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\" "
                  "fill-opacity=\"%s\"><title>",
                  x(bar.begin_ns), y, width, kRow - 4, forward ? "#bab0ac" : kColours[bar.lane],
                  bar.lane == 3        ? "0.25"
                  : bar.group % 2 == 0 ? "1"
                                       : "0.7");
    text += line + escaped(about) + "</title></rect>\n";
  }

  std::string text;

 private:
  double all_ns_, bottom_;
};

std::string about(const Bar& bar, const Run& run, const TensorTable& table) {
  const std::string span = time_text(bar.begin_ns) + " to " + time_text(bar.end_ns);
  if (bar.group == Bar::kForward) return "forward pass, " + span;
  return "group " + std::to_string(bar.group) + ": " +
         group_text(run.plan.groups[bar.group], table) + "; " + span;
}

void panel(Picture& picture, const Run& run, const Model& model, double y) {
  char figures[200];
  std::snprintf(figures, sizeof figures, ": %s, scaling %.1f %%, %s sent, %zu groups",
                time_text(run.step_ns()).c_str(), 100 * run.scaling(),
                bytes_text(static_cast<double>(run.timeline.sent_bytes)).c_str(),
                run.plan.groups.size());
  picture.text += words(kLeft, y + 13, "start", run.name + figures, 13);
  for (uint32_t lane = 0; lane < kLanes.size(); ++lane) {
    picture.text += words(kLeft - 8, y + kHeading + kRow * lane + 13, "end", kLanes[lane]);
  }
  for (const Bar& bar : bars_of(run)) {
    picture.bar(bar, y + kHeading + kRow * bar.lane, about(bar, run, model.table));
  }
}

}  // namespace

std::string svg_picture(std::span<const Run> runs, const Model& model, const std::string& title) {
  double all_ns = 1;
  for (const Run& run : runs) all_ns = std::max(all_ns, run.step_ns());
  const double each = kHeading + kRow * static_cast<double>(kLanes.size()) + kPanelGap;
  const double height = kTop + each * static_cast<double>(runs.size()) + 30;
  Picture picture(all_ns, height);
  picture.axis();
  picture.text += words(kLeft, 22, "start", title, 15);
  double y = kTop;
  for (const Run& run : runs) {
    panel(picture, run, model, y);
    y += each;
  }
  char head[240];
  std::snprintf(head, sizeof head,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
                "fill=\"white\"/>\n",
                kLeft + kWidth + 60, height);
  return head + picture.text + "</svg>\n";
}

}  // namespace cgx::scheduler::sim
