#include "scheduler/sim/cost_file.h"

#include <map>

#include "kernels/codec.h"
#include "scheduler/sim/lines.h"

namespace cgx::scheduler::sim {
namespace {

// An object without depth: texts and numbers by key, both as text.
using Object = std::map<std::string, std::string>;

constexpr double kRateMin = 1e-6;  // GB/s
constexpr std::string_view kBetween = " \t,:[]{}\r";

// A quoted text, or everything up to what stands between values.
std::string take_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(kBetween), rest.size()));
  const bool quoted = rest.starts_with('"');
  if (quoted) rest.remove_prefix(1);
  const size_t end = std::min(quoted ? rest.find('"') : rest.find_first_of(kBetween), rest.size());
  std::string word(rest.substr(0, end));
  rest.remove_prefix(std::min(end + (quoted ? 1 : 0), rest.size()));
  return word;
}

Object object_of(std::string_view row) {
  Object object;
  for (std::string key = take_word(row); !key.empty(); key = take_word(row)) {
    object[key] = take_word(row);
  }
  return object;
}

class Table {
 public:
  Table(std::string_view lane) : lane_(lane) {
    // The daemon's own share, from runs on the processor of the built-in table: 16 to 21 us for an
    // operation of one small tensor, 1.2 to 1.8 us for each more; kernel and checksums of
    // fp32/unshaped (tests/bench/RESULTS.md).
    costs.operation_ns = 12'000;
    costs.segment_ns = 1'500;
    costs.frame_ns = 3'000;
    costs.wire_ns_per_byte = 0.14;
  }

  Status take(const Object& row, const std::string& place) {
    const auto number = [&](const char* key, double& value) -> Status {
      const auto found = row.find(key);
      if (found == row.end()) return {};
      const Result<double> read = parse_number(found->second);
      if (!read.ok()) {
        return invalid_argument(place + ": " + key + ": " + read.status().message());
      }
      value = *read;
      return {};
    };
    double copy = 0;
    CGX_RETURN_IF_ERROR(number("copy", copy));
    if (copy > 0) costs.copy_ns_per_byte = 1 / copy;
    CGX_RETURN_IF_ERROR(number("operation_ns", costs.operation_ns));
    CGX_RETURN_IF_ERROR(number("segment_ns", costs.segment_ns));
    CGX_RETURN_IF_ERROR(number("frame_ns", costs.frame_ns));
    CGX_RETURN_IF_ERROR(number("wire_ns_per_byte", costs.wire_ns_per_byte));
    if (const auto machine = row.find("machine"); machine != row.end()) {
      costs.processor = machine->second;
    }
    const auto codec = row.find("codec");
    if (codec == row.end()) return {};
    double encode = 0, decode = 0;
    CGX_RETURN_IF_ERROR(number("encode", encode));
    CGX_RETURN_IF_ERROR(number("decode", decode));
    if (encode < kRateMin || decode < kRateMin || !row.contains("lane")) {
      return invalid_argument(place + ": a codec needs lane, encode and decode, both above 0 GB/s");
    }
    return add(codec->second, row.at("lane"), {encode, decode}, place);
  }

  MachineCosts costs;
  std::string lanes;  // those seen

 private:
  struct Rates {
    double encode = 0, decode = 0;
  };
  Status add(const std::string& codec, const std::string& lane, const Rates& rates,
             const std::string& place) {
    if (lanes.find(lane) == std::string::npos) lanes += (lanes.empty() ? "" : ", ") + lane;
    if (lane_.empty()) lane_ = lane;
    const Result<CodecSpec> spec = kernels::parse_codec_spec(codec);
    if (!spec.ok()) return invalid_argument(place + ": " + spec.status().message());
    if (lane != lane_) return {};
    costs.codecs.push_back({*spec, {0, 1 / rates.encode}, {0, 1 / rates.decode}});
    return {};
  }

  std::string lane_;
};

}  // namespace

Result<MachineCosts> parse_costs(std::string_view text, const std::string& file_name,
                                 std::string_view lane) {
  Table table(lane);
  int number = 0;
  while (!text.empty()) {
    const std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(row.size() + 1, text.size()));
    CGX_RETURN_IF_ERROR(table.take(object_of(row), file_name + ":" + std::to_string(++number)));
  }
  if (!table.costs.codecs.empty()) return std::move(table.costs);
  if (table.lanes.empty()) return invalid_argument(file_name + ": has no codec");
  return invalid_argument(file_name + ": nothing of lane " + std::string(lane) + "; it has " +
                          table.lanes);
}

}  // namespace cgx::scheduler::sim
