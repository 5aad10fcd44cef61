#include "scheduler/communicator/control.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "proto/wire/bytes.h"
#include "proto/wire/machine_profile.h"
#include "proto/wire/text.h"

namespace cgx::scheduler {
namespace {

// Whether a choice is one of its list. Codes may be newer than this build.
bool known(StatusCode) {
  return true;
}
bool known(PlanPurpose purpose) {
  return purpose <= PlanPurpose::kPlanner;
}
bool known(Scope scope) {
  return scope <= Scope::kCommunicator;
}
template <typename T>
bool known(T choice) {
  return static_cast<size_t>(choice) < names_of(choice).size();
}

constexpr size_t kPolicyControlBytesMax = 8 << 20;  // rules for all tensors of a job
constexpr size_t kMenuKept = 1024;                  // is refused in words before
constexpr size_t kWarningsMax = 64;                 // that are passed on

// Entries take more memory than bytes: how many there may be is known before they are read.
struct ListBounds {
  size_t entry_bytes_min = 0;
  size_t entries_max = SIZE_MAX;
};

// `Io` is Out or In; one overload of `visit` per message names its fields once for both directions.
struct Out {
  wire::Writer writer;
  template <typename T>
  void operator()(const T& value) {
    writer.put(value);
  }
  void operator()(const std::string& text) {
    writer.put_string(wire::begin_of(text, kTextBytesMax));
  }
  void whole(const std::string& text) { writer.put_string(text); }
  template <typename T>
  void operator()(const std::optional<T>& value) {
    writer.put<uint8_t>(value ? 1 : 0);
    if (value) writer.put(*value);
  }
  void operator()(const std::vector<std::byte>& bytes) { writer.put_bytes(bytes); }
  template <typename T, typename Each>
  void list(const std::vector<T>& values, ListBounds, Each each) {
    writer.put<uint32_t>(static_cast<uint32_t>(values.size()));
    for (const T& value : values) each(*this, value);
  }
};

struct In {
  wire::Reader reader;
  size_t body_bytes = 0;
  bool all_known = true;  // every choice so far
  bool all_short = true;  // every list
  template <typename T>
  void operator()(T& value) {
    value = reader.get<T>();
    if constexpr (std::is_enum_v<T>) all_known &= known(value);
  }
  void operator()(bool& value) { value = reader.get<uint8_t>() != 0; }
  void operator()(std::string& text) {
    const auto bytes = reader.get_bytes();
    text =
        wire::begin_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kTextBytesMax);
  }
  void whole(std::string& text) { text = reader.get_string(); }
  template <typename T>
  void operator()(std::optional<T>& value) {
    value.reset();
    if (reader.get<uint8_t>() != 0) value = reader.get<T>();
  }
  void operator()(std::vector<std::byte>& bytes) {
    const auto view = reader.get_bytes();
    bytes.assign(view.begin(), view.end());
  }
  template <typename T, typename Each>
  void list(std::vector<T>& values, ListBounds bounds, Each each) {
    const uint32_t count = reader.get_count(bounds.entry_bytes_min);
    all_short &= count <= bounds.entries_max;
    values.resize(all_short ? count : 0);
    for (T& value : values) each(*this, value);
  }
};

template <typename Io, typename... Fields>
void all(Io& io, Fields&... fields) {
  (io(fields), ...);
}

template <typename Io, typename P>
void policy_fields(Io& io, P& p) {
  all(io, p.default_codec, p.rack_codec, p.note.by, p.note.reason, p.note.unix_ns, p.note.keep);
#define X(name, type, value) io(p.name);
#include "scheduler/plan/policy.def"
#undef X
  io.list(p.menu, {sizeof(CodecSpec), kMenuKept}, [](Io& each, auto& codec) { each(codec); });
  io.list(p.rules, {13, kRulesMax}, [](Io& each, auto& rule) {
    each.whole(rule.match);
    all(each, rule.codec, rule.small);
  });
}

template <typename M, typename Io, typename Message>
void visit(Io& io, Message& m) {
  if constexpr (std::is_same_v<M, Join>) {
    all(io, m.shape_hash, m.first_step, m.residual_step_end, m.residual_lineage);
  } else if constexpr (std::is_same_v<M, Joined>) {
    all(io, m.code, m.text, m.keep_residuals);
    policy_fields(io, m.configured);
  } else if constexpr (std::is_same_v<M, Table>) {
    all(io, m.table);
  } else if constexpr (std::is_same_v<M, Prepare>) {
    all(io, m.purpose, m.dry_run, m.plan);
    policy_fields(io, m.policy);
  } else if constexpr (std::is_same_v<M, Prepared>) {
    all(io, m.epoch, m.code, m.text, m.reserved_bytes);
  } else if constexpr (std::is_same_v<M, Decided>) {
    all(io, m.epoch, m.code, m.text, m.purpose, m.switch_step, m.origin.who, m.origin.why);
  } else if constexpr (std::is_same_v<M, Failure>) {
    all(io, m.code, m.text, m.scope);
  } else if constexpr (std::is_same_v<M, CallFailure>) {
    all(io, m.call, m.code, m.text);
  } else if constexpr (std::is_same_v<M, Report>) {
    all(io, m.completed_end, m.results_end, m.started_end, m.epoch, m.plan_hash, m.calls_end);
    const auto number = [](Io& each, auto& call) { each(call); };
    io.list(m.calls_open, {sizeof(uint64_t)}, number);
    io.list(m.calls_done, {sizeof(uint64_t)}, number);
  } else if constexpr (std::is_same_v<M, Start>) {
    all(io, m.first_step, m.calls_end, m.code, m.text, m.epoch, m.plan_hash, m.plan);
    policy_fields(io, m.policy);
  } else if constexpr (std::is_same_v<M, Left>) {
    all(io, m.rank, m.step_end, m.calls_end, m.commits_end);
  } else if constexpr (std::is_same_v<M, PolicyAsk>) {
    all(io, m.ticket, m.dry_run, m.expected_version);
    policy_fields(io, m.policy);
  } else if constexpr (std::is_same_v<M, PolicyAnswerMessage>) {
    all(io, m.ticket, m.code, m.text, m.policy_version, m.epoch, m.switch_step, m.reserved_bytes);
    io.list(m.warnings, {4, kWarningsMax}, [](Io& each, auto& warning) { each(warning); });
  } else if constexpr (std::is_same_v<M, ReplicaHash>) {
    all(io, m.step, m.tensor, m.hash, m.lane);
  } else if constexpr (std::is_same_v<M, Losses>) {
    all(io, m.step, m.values, m.intended);
    io.list(m.lost, {sizeof(double)}, [](Io& each, auto& lost) { each(lost); });
  } else if constexpr (std::is_same_v<M, ProfileAsk>) {
    all(io, m.number);
  } else if constexpr (std::is_same_v<M, ProfileAnswerMessage>) {
    all(io, m.number, m.code, m.text, m.profile);
  } else {
    static_assert(std::is_same_v<M, Bye> || std::is_same_v<M, Flush>,
                  "every control message lists its fields here");
  }
}

// What tells of a failure says which: OK would be told to ranks as a result. What a report lists,
// the coordinator compares. A table of no tensors has its count.
template <typename M>
Status check(const M& m) {
  constexpr bool kTellsFailure =
      std::is_same_v<M, Failure> || std::is_same_v<M, CallFailure> || std::is_same_v<M, Start>;
  if constexpr (kTellsFailure) {
    if (m.code == StatusCode::kOK) return protocol_error("a failure with code OK");
  }
  if constexpr (std::is_same_v<M, Report>) {
    constexpr size_t kCallsMax = 1024;  // many more than can be in flight or are remembered
    if (std::max(m.calls_open.size(), m.calls_done.size()) > kCallsMax) {
      return protocol_error("a report of more than " + std::to_string(kCallsMax) + " calls");
    }
  }
  if constexpr (std::is_same_v<M, Table>) {
    if (m.table.size() < sizeof(uint32_t)) return protocol_error("a tensor table without a count");
  }
  if constexpr (std::is_same_v<M, ProfileAnswerMessage>) {
    if (m.profile.size() > wire::MachineProfile::kBytesMax) {
      return protocol_error("a machine's profile of " + std::to_string(m.profile.size()) +
                            " bytes");
    }
  }
  return {};
}

template <typename M>
constexpr size_t body_bytes_max() {
  if (std::is_same_v<M, Table> || std::is_same_v<M, Prepare> || std::is_same_v<M, Start>) {
    return SIZE_MAX;  // what a frame holds
  }
  if (std::is_same_v<M, Joined> || std::is_same_v<M, PolicyAsk>) return kPolicyControlBytesMax;
  return kShortControlBytesMax;
}

template <size_t kIndex = 0>
Result<ControlMessage> decode_as(uint8_t type, In& in) {
  if constexpr (kIndex == std::variant_size_v<ControlMessage>) {
    return protocol_error("control message of unknown type " + std::to_string(type));
  } else {
    if (type != kIndex) return decode_as<kIndex + 1>(type, in);
    using M = std::variant_alternative_t<kIndex, ControlMessage>;
    if (in.body_bytes > body_bytes_max<M>()) {
      return protocol_error("control message of type " + std::to_string(type) + " of " +
                            std::to_string(in.body_bytes) + " bytes");
    }
    M message;
    visit<M>(in, message);
    if (!in.all_short) {
      return protocol_error("control message of type " + std::to_string(type) +
                            " with a longer list than there can be");
    }
    if (!in.reader.done()) {
      return protocol_error("control message of type " + std::to_string(type) +
                            " does not decode exactly");
    }
    if (!in.all_known) {
      return protocol_error("control message of type " + std::to_string(type) +
                            " makes a choice that is in no list");
    }
    CGX_RETURN_IF_ERROR(check(message));
    return ControlMessage(std::move(message));
  }
}

}  // namespace

void cut_warnings(std::vector<std::string>& warnings) {
  if (warnings.size() <= kWarningsMax) return;
  const size_t rest = warnings.size() - (kWarningsMax - 1);
  warnings.resize(kWarningsMax - 1);
  warnings.push_back("and " + std::to_string(rest) + " more");
}

std::vector<std::byte> encode_control(const ControlMessage& message) {
  Out out;
  out.writer.put<uint8_t>(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& m) { visit<std::decay_t<decltype(m)>>(out, m); }, message);
  return out.writer.take();
}

Result<ControlMessage> decode_control(std::span<const std::byte> body) {
  In in{wire::Reader(body), body.size()};
  const auto type = in.reader.get<uint8_t>();
  return decode_as(type, in);
}

std::optional<LossSample> sample_of(const Losses& message) {
  LossSample sample{.values = message.values, .intended = message.intended};
  if (message.lost.size() != sample.lost.size()) return {};
  std::copy(message.lost.begin(), message.lost.end(), sample.lost.begin());
  const auto sound = [](double value) { return value >= 0 && std::isfinite(value); };
  const bool all = sound(sample.values) && sound(sample.intended) &&
                   std::all_of(sample.lost.begin(), sample.lost.end(), sound);
  return all ? std::optional(sample) : std::nullopt;
}

}  // namespace cgx::scheduler
