#include "proto/wire/submit_record.h"

#include <string>

#include "proto/wire/ring.h"
#include "proto/wire/session_messages.h"

namespace cgx::wire {
namespace {

// Nearly every record: only the element type and the operation of a call are in the second line.
bool plain(const cgx_submit_record& record) {
  if (!second_line_used(record)) return true;
  cgx_submit_record rest = record;
  rest.dtype = rest.op = 0;
  if (rest.word != 0 && rest.word < kWordsMax) rest.word = rest.word_value = 0;
  return !second_line_used(rest);
}

Status unbuilt(const std::string& what) {
  return {StatusCode::kUNIMPLEMENTED, what};
}

}  // namespace

bool collective_known(uint8_t number) {
  return collective_name(static_cast<Collective>(number)) != "unknown";
}

std::string_view collective_name(Collective collective) {
  switch (collective) {
#define X(name, number, text) \
  case Collective::k##name:   \
    return text;
#include "proto/wire/collectives.def"
#undef X
  }
  return "unknown";
}

Status check_built(const cgx_submit_record& record) {
  if (plain(record)) return {};
  const auto number = [](uint32_t value) { return std::to_string(value); };
  if (!collective_known(record.collective)) {
    return invalid_argument("collective " + number(record.collective) + " is not known");
  }
  if (record.collective != 0) {
    const std::string name(collective_name(static_cast<Collective>(record.collective)));
    return unbuilt("the collective " + name + " is not built yet; allreduce is");
  }
  if (record.root != 0) return unbuilt("root " + number(record.root) + ": allreduce has no root");
  if (record.peer != 0) return unbuilt("peer " + number(record.peer) + ": allreduce has no peer");
  if (record.tag != 0) return unbuilt("tag " + number(record.tag) + ": calls have no tags yet");
  if (record.rows != 0 || record.indices_offset != 0 || record.indices_arena != 0 ||
      record.indices_dtype != 0) {
    return unbuilt("rows named by indices are not built yet; whole tensors are");
  }
  if (record.word >= kWordsMax || (record.word == 0 && record.word_value != 0)) {
    return invalid_argument("there is no timeline word " + number(record.word));
  }
  return unbuilt("the submit record sets bytes that this version does not know");
}

}  // namespace cgx::wire
