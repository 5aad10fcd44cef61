#include "daemon/data/session_report.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "kernels/codec.h"

namespace cgx::daemon {
namespace {

constexpr size_t kPageBytes = wire::kSessionPacketBytesMax - 8 * 1024;

// Names come from clients, and must not look like the ends of fields.
std::string plain(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string line_of(std::initializer_list<std::string> fields) {
  std::string line;
  for (const std::string& field : fields) line += (line.empty() ? "" : "\t") + plain(field);
  return line + "\n";
}

const char* feedback(const CodecSpec& spec) {
  return spec.feedback() ? "feedback" : "-";
}

CodecSpec main_codec(const scheduler::CommunicatorSnapshot& communicator) {
  std::map<std::string, uint64_t> elements;
  CodecSpec most;
  uint64_t best = 0;
  for (const scheduler::TensorSnapshot& tensor : communicator.tensors) {
    const uint64_t now = elements[kernels::to_string(tensor.codec)] += tensor.elements;
    if (now <= best) continue;
    best = now;
    most = tensor.codec;
  }
  return most;
}

std::string head_of(const scheduler::CommunicatorSnapshot& communicator) {
  const CodecSpec most = main_codec(communicator);
  return line_of({"communicator", communicator.job, communicator.name,
                  std::to_string(communicator.ranks), std::to_string(communicator.machines),
                  std::to_string(communicator.epoch), kernels::to_string(most), feedback(most),
                  std::to_string(communicator.operations),
                  std::to_string(communicator.gradient_bytes),
                  std::to_string(communicator.wire_bytes_sent), communicator.feedback_begins});
}

std::string line_of(const scheduler::TensorSnapshot& tensor) {
  const uint64_t encoded = kernels::encoded_bytes(tensor.codec, tensor.dtype, tensor.elements);
  return line_of({"tensor", tensor.name, kernels::to_string(tensor.codec), feedback(tensor.codec),
                  std::to_string(tensor.elements),
                  std::to_string(tensor.elements * dtype_bytes(tensor.dtype)),
                  std::to_string(encoded), std::to_string(tensor.group), number(tensor.intended_sq),
                  number(tensor.sent_sq)});
}

}  // namespace

wire::Reply report_page(scheduler::CommunicatorSnapshot& communicator, uint32_t first) {
  show_plan(communicator);
  wire::Reply page;
  if (first == 0) page.message = head_of(communicator);
  for (size_t t = first; t < communicator.tensors.size(); ++t) {
    const std::string line = line_of(communicator.tensors[t]);
    if (page.message.size() + line.size() > kPageBytes) {
      page.value0 = t;
      break;
    }
    page.message += line;
  }
  return page;
}

}  // namespace cgx::daemon
