#include "client/ctl/show.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "client/ctl/table.h"

namespace cgx::ctl {
namespace {

std::string two_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string ratio(uint64_t of, uint64_t to) {
  return to == 0 ? "-" : two_digits(static_cast<double>(of) / static_cast<double>(to));
}

std::string share_text(const v1::Tensor& tensor) {
  if (!tensor.has_sent_share()) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", tensor.sent_share());
  return text;
}

std::string per_operation(const v1::Communicator& communicator) {
  if (communicator.operations() == 0) return "-";
  return human_time(communicator.exchange_ns() / communicator.operations());
}

// Figures by their units (figures.def).
std::string number(uint64_t value) {
  return std::to_string(value);
}
std::string bytes(uint64_t value) {
  return human_bytes(value);
}
std::string ns(uint64_t value) {
  return human_time(value);
}

// Of `cgxctl jobs`. What a narrow terminal cuts off stands last.
using J = v1::Communicator;
struct JobColumn {
  std::string_view title;  // empty: not shown
  std::string (*text)(const J&);
};
constexpr JobColumn kJobColumns[] = {
    {"JOB", [](const J& one) { return one.job(); }},
    {"COMMUNICATOR", [](const J& one) { return one.name(); }},
    {">UID", [](const J& one) { return number(one.uid()); }},
    {"STATE", [](const J& one) { return one.state(); }},
    {">RANKS", [](const J& one) { return number(one.ranks()); }},
    {">MACHINES", [](const J& one) { return number(one.machines()); }},
    {">STEP", [](const J& one) { return number(one.step()); }},
    {">RATIO", [](const J& one) { return ratio(one.gradient_bytes(), one.wire_bytes_sent()); }},
    {">EXCHANGE", per_operation},
    {"CODEC", [](const J& one) { return one.codec(); }},
#define X(name, unit, metric, title, help) {title, [](const J& one) { return unit(one.name()); }},
#include "proto/wire/figures.def"
#undef X
    {">TENSORS", [](const J& one) { return human_count(one.tensors()); }},
    {">GROUPS", [](const J& one) { return number(static_cast<uint64_t>(one.groups_size())); }},
};

template <typename Cell>
std::vector<std::string> job_cells(Cell cell) {
  std::vector<std::string> cells;
  for (const JobColumn& each : kJobColumns) {
    if (!each.title.empty()) cells.push_back(cell(each));
  }
  return cells;
}

std::string remarks(const v1::JobList& jobs) {
  std::string text;
  for (const v1::Communicator& one : jobs.communicators()) {
    const std::string on = one.machine().empty() ? "" : " on " + one.machine();
    const std::string name = "\n" + one.job() + "/" + one.name() + on + ": ";
    if (!one.error().empty()) text += name + one.error();
    for (const v1::Rank& rank : one.rank_list()) {
      if (rank.late_ns() == 0) continue;
      text += name + "rank " + std::to_string(rank.rank()) + " on machine " +
              std::to_string(rank.machine()) + " is " + human_time(rank.late_ns()) + " late";
    }
  }
  return text.empty() ? "" : text + "\n";
}

std::string encoded_text(const v1::Group& group) {
  const std::string text = human_bytes(group.encoded_bytes());
  if (group.rack_encoded_bytes() == 0) return text;
  return text + ", in racks " + human_bytes(group.rack_encoded_bytes());
}

// What travels how, before the tensors one by one; the codec of most elements first.
std::string codec_totals(const v1::TensorList& tensors) {
  struct Total {
    std::string codec;
    uint64_t tensors = 0, elements = 0;
  };
  std::vector<Total> totals;
  uint64_t elements = 0;
  for (const v1::Tensor& one : tensors.tensors()) {
    auto total = std::find_if(totals.begin(), totals.end(),
                              [&](const Total& each) { return each.codec == codecs_text(one); });
    if (total == totals.end()) total = totals.insert(total, {codecs_text(one)});
    ++total->tensors;
    total->elements += one.elements();
    elements += one.elements();
  }
  std::stable_sort(totals.begin(), totals.end(),
                   [](const Total& a, const Total& b) { return a.elements > b.elements; });
  Table table({"CODEC", ">TENSORS", ">ELEMENTS", ">SHARE"});
  for (const Total& total : totals) {
    const double share =
        elements == 0 ? 0
                      : 100.0 * static_cast<double>(total.elements) / static_cast<double>(elements);
    table.row({total.codec, human_count(total.tensors), human_count(total.elements),
               two_digits(share) + " %"});
  }
  return table.text();
}

std::string strength_text(const v1::Codec& codec) {
  if (codec.strength().empty()) return "-";
  return codec.strength() + " " + codec.strength_range();
}

std::string options_text(const v1::Codec& codec) {
  std::string text;
  for (const std::string& option : codec.options()) text += (text.empty() ? "" : ", ") + option;
  return text;
}

std::string busy_share(const v1::DaemonStatus& status) {
  const double up = static_cast<double>(std::max<uint64_t>(1, status.uptime_ns()));
  const double busy = static_cast<double>(status.data_thread().busy_ns());
  return two_digits(100 * busy / up) + " %";
}

std::string longest_round(const v1::DataThread& thread) {
  if (!thread.has_longest_lately()) return "busy";
  const v1::DataThread::Round& round = thread.longest_lately();
  return "busy; longest round of the last minute " + human_time(round.cpu_ns()) + ": " +
         round.what();
}

std::string way_of(const v1::TunedOperation& operation) {
  std::string text;
  if (operation.ahead_bytes() > 0)
    text = "reads " + human_bytes(operation.ahead_bytes()) + " ahead";
  if (operation.second_level()) text += " into L2";
  if (operation.streams()) text += text.empty() ? "streams" : ", streams";
  return text.empty() ? "plain" : text;
}

// "encode, reduce: reads 4.0 KiB ahead; decode: streams; measured in 8 ms".
std::string tuning_text(const v1::Tuning& tuning) {
  std::vector<std::pair<std::string, std::string>> ways;  // and who goes that way
  for (const v1::TunedOperation& one : tuning.operations()) {
    const std::string way = way_of(one);
    const auto same = [&](const auto& other) { return other.first == way; };
    const auto found = std::find_if(ways.begin(), ways.end(), same);
    if (found == ways.end()) {
      ways.emplace_back(way, one.name());
    } else {
      found->second += ", " + one.name();
    }
  }
  std::string text;
  for (const auto& [way, names] : ways) text.append(names).append(": ").append(way).append("; ");
  return text + "measured in " + human_time(tuning.measured_ns());
}

// "14:03:07.123456", local time.
std::string time_of_day(uint64_t unix_ns) {
  constexpr uint64_t kSecond = 1'000'000'000;
  const auto seconds = static_cast<time_t>(unix_ns / kSecond);
  tm local{};
  ::localtime_r(&seconds, &local);
  char text[32];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%06d", local.tm_hour, local.tm_min, local.tm_sec,
                static_cast<int>(unix_ns % kSecond / 1'000));
  return text;
}

std::string value_text(const v1::EventValue& value) {
  if (value.name() == "bytes") return human_bytes(value.value());
  if (value.name() == "ns") return human_time(value.value());
  if (!value.text().empty()) return value.text();
  return value.name() + " " + human_count(value.value());
}

std::vector<std::string> event_cells(const v1::Event& event) {
  const std::string step = event.has_call()   ? "call " + std::to_string(event.call())
                           : event.has_step() ? std::to_string(event.step())
                                              : "";
  const std::string who = event.has_rank()      ? "rank " + std::to_string(event.rank())
                          : event.has_machine() ? "machine " + std::to_string(event.machine())
                                                : "";
  std::string values;
  for (const v1::EventValue& value : event.values()) {
    values += (values.empty() ? "" : ", ") + value_text(value);
  }
  const std::string owner = event.job().empty() ? event.communicator() : full_name(event);
  return {time_of_day(event.unix_ns()),
          owner,
          event.kind(),
          step,
          event.has_group() ? std::to_string(event.group()) : "",
          who,
          values};
}

std::string events_table(const v1::EventList& events) {
  Table table({"TIME", "COMMUNICATOR", "EVENT", ">STEP", ">GROUP", "WHO", "VALUES"});
  for (const v1::Event& one : events.events()) table.row(event_cells(one));
  return table.text();
}

std::string shares_table(const v1::DaemonStatus& status) {
  Table table({"SHARED", ">USED", ">OF", "BY"});
  for (const v1::Share& share : status.shares()) {
    const std::string& name = share.name();
    const bool bytes = name.ends_with("_bytes");
    const auto amount = [&](uint64_t number) {
      return bytes ? human_bytes(number) : human_count(number);
    };
    std::string holders;
    for (const v1::Share::Holding& one : share.holders()) {
      holders += (holders.empty() ? "" : ", ") + one.who() + " " + amount(one.used());
    }
    table.row({name, amount(share.used()), amount(share.limit()), holders});
  }
  return table.text();
}

const char* yes(bool value) {
  return value ? "yes" : "-";
}

}  // namespace

std::string show_gpus(const v1::DaemonStatus& status) {
  Table table({"GPU", "JOB", ">UID", "WAY", "DRIVER", "MPS", "WHY NOT"});
  for (const v1::GpuUse& one : status.gpus()) {
    const bool staged = one.gpu().empty();
    table.row({staged ? "-" : one.gpu(), one.job(), std::to_string(one.uid()), one.way(),
               staged ? "-" : "CUDA " + one.driver(),
               staged      ? "-"
               : one.mps() ? "on"
                           : "off",
               one.why()});
  }
  return table.empty() ? "" : table.text();
}

std::string show(const v1::DaemonStatus& status) {
  std::string text = "cgxd " + status.version() + " " + status.instance() + ", lane " +
                     status.lane() + ", up " + human_time(status.uptime_ns()) + "; you are " +
                     status.role() + "\n\n";
  Table table({"", ">", ""});
  const auto line = [&](const char* name, const std::string& value, const std::string& note = "") {
    table.row({name, value, note});
  };
  line("sessions", human_count(status.sessions()), human_bytes(status.arena_bytes()) + " shared");
  line("communicators", human_count(status.communicators()),
       human_bytes(status.reserved_bytes()) + " reserved");
  line("peers up", human_count(status.peers_up()), "of " + human_count(status.peers()));
  line("operations", human_count(status.operations_completed()),
       human_count(status.operations_failed()) + " failed");
  line("gradients", human_bytes(status.gradient_bytes()));
  line("sent", human_bytes(status.wire_bytes_sent()));
  line("data thread", busy_share(status), longest_round(status.data_thread()));
  if (status.has_tuning()) line("arithmetic", status.lane(), tuning_text(status.tuning()));
  text += table.text().substr(1);  // no line of titles
  if (status.shares_size() > 0) text += "\n" + shares_table(status);
  if (status.gpus_size() > 0) text += "\n" + show_gpus(status);
  for (const std::string& warning : status.warnings()) text += "\nwarning: " + warning;
  return status.warnings().empty() ? text : text + "\n";
}

std::string show(const v1::JobList& jobs) {
  const auto& all = jobs.communicators();
  const bool several =
      std::any_of(all.begin(), all.end(), [](const auto& one) { return !one.machine().empty(); });
  const auto line = [several](std::vector<std::string> cells, const std::string& machine) {
    if (several) cells.insert(cells.begin(), machine);
    return cells;
  };
  Table table(
      line(job_cells([](const JobColumn& each) { return std::string(each.title); }), "MACHINE"));
  for (const v1::Communicator& one : all) {
    table.row(
        line(job_cells([&](const JobColumn& each) { return each.text(one); }), one.machine()));
  }
  std::string text = table.empty() ? "no jobs\n" : table.text();
  text += not_answered(jobs.findings());
  if (jobs.hidden() > 0) text += human_count(jobs.hidden()) + " more of other users\n";
  return text + remarks(jobs);
}

namespace {

std::string plan_title(const v1::Communicator& one) {
  std::string text = one.job() + "/" + one.name() + ": epoch " + std::to_string(one.epoch()) +
                     ", mode " + one.mode() + ", " + std::to_string(one.tensors()) + " tensors";
  if (!one.searching().empty()) text += "; the search is " + one.searching();
  return text + "\n";
}

std::string percent(double share) {
  if (share <= 0) return "-";
  return std::to_string(static_cast<int>(100 * share + 0.5)) + " %";
}

template <typename Each>
std::string each_job(const v1::JobList& jobs, Each text_of) {
  std::string text;
  for (const v1::Communicator& one : jobs.communicators()) {
    text += (text.empty() ? "" : "\n") + plan_title(one) + text_of(one);
  }
  if (text.empty()) text = "no jobs\n";
  if (jobs.hidden() > 0) text += human_count(jobs.hidden()) + " more of other users\n";
  return text;
}

}  // namespace

std::string show_plans(const v1::JobList& jobs) {
  return each_job(jobs, [](const v1::Communicator& one) {
    Table table(
        {">GROUP", ">TENSORS", ">GRADIENTS", ">ENCODED", ">RATIO", "COLLECTIVE", "BECAUSE"});
    for (const v1::Group& group : one.groups()) {
      table.row({std::to_string(group.index()), human_count(group.tensors()),
                 human_bytes(group.raw_bytes()), encoded_text(group),
                 ratio(group.raw_bytes(), group.encoded_bytes()), group.collective(),
                 group.collective_reason()});
    }
    return table.empty() ? "no plan yet\n" : table.text();
  });
}

namespace {

std::string epochs_text(const v1::Communicator& one) {
  Table table({">EPOCH", ">STEP", "BY", "BECAUSE"});
  for (const v1::Switch& change : one.switches()) {
    const bool known = !change.who().empty();
    table.row({std::to_string(change.epoch()), std::to_string(change.step()),
               known ? change.who() : "-", known ? change.why() : "-"});
  }
  return table.empty() ? "" : table.text() + "\n";
}

std::string trial_time_text(const v1::Communicator& one) {
  if (!one.has_trial_time()) return "";
  const v1::TrialTime& time = one.trial_time();
  return "trials took " + human_time(time.spent_ns()) + " more than the plan beside them, in " +
         human_time(time.elapsed_ns()) + " of training (allowed: " + human_time(time.allowed_ns()) +
         (time.waits() ? ", so the next one waits" : "") + ")\n";
}

std::string searches_text(const v1::Communicator& one) {
  if (one.mode() == "fixed" && one.plan_notes().empty())
    return "plans follow from the policy alone (policy key mode)\n";
  Table table({">EPOCH", ">STEP", "PLAN", ">PREDICTED", ">MEASURED", ">A STEP TOOK", "VERDICT"});
  for (const v1::PlanNote& note : one.plan_notes()) {
    const bool ran = note.epoch() != 0, placed = ran || note.step() != 0;
    table.row({ran ? std::to_string(note.epoch()) : "-", placed ? std::to_string(note.step()) : "-",
               note.plan(), percent(note.predicted()), percent(note.measured()),
               note.step_ns() == 0 ? "-" : human_time(note.step_ns()), note.verdict()});
  }
  if (!table.empty() && one.mode() == "fixed") return table.text();
  if (!table.empty()) {
    return table.text() + "shares of the step under the plan before\n" + trial_time_text(one);
  }
  if (one.searching().empty()) return "machine 0 of the communicator searches: ask its daemon\n";
  return "nothing was tried yet\n";
}

}  // namespace

std::string show_searches(const v1::JobList& jobs) {
  return each_job(
      jobs, [](const v1::Communicator& one) { return epochs_text(one) + searches_text(one); });
}

std::string price_text(const v1::PricedChoice& one) {
  return one.codec() + " by " + one.collective() + ": a step takes " + human_time(one.step_ns()) +
         ", a daemon works " + human_time(one.daemon_ns()) + ", a machine sends " +
         human_bytes(one.sent_bytes()) + "\n";
}

std::string prices_text(const v1::TensorExplanation& explained) {
  if (!explained.unpriced().empty()) return "what it costs: " + explained.unpriced() + "\n";
  std::string text =
      "predicted, with all else as it runs (measured: " + human_time(explained.measured_ns()) +
      " a step):\n  chosen: " + price_text(explained.chosen());
  for (int i = 0; i < explained.others_size(); ++i) {
    text += (i == 0 ? "  next best: " : "  then: ") + price_text(explained.others(i));
  }
  return text + (explained.by_default() ? "" : "  planners keep to the choice: see its reason\n");
}

std::string show_explanation(const v1::TensorExplanation& explained, const v1::Communicator& one) {
  const v1::Tensor& tensor = explained.tensor();
  std::string text = tensor.name() + ": " + codecs_text(tensor) + ", because: " + tensor.reason() +
                     "\n" + "group " + std::to_string(tensor.group()) + " goes by " +
                     tensor.collective() + ", because: " + tensor.collective_reason() + "\n";
  if (tensor.has_sent_share()) {
    text += "of what should have been sent " + share_text(tensor) + " of the squared norm was\n";
  }
  text += prices_text(explained);
  text += "mode " + one.mode() + (one.searching().empty() ? "" : ", " + one.searching()) + "\n";
  for (const v1::PlanNote& note : one.plan_notes()) {
    text +=
        "  step " + std::to_string(note.step()) + ": " + note.plan() + ": " + note.verdict() +
        (note.measured() > 0 ? ", took " + percent(note.measured()) + " of the plan before" : "") +
        "\n";
  }
  return text;
}

std::string show_simulated(const v1::SimulatedPlan& answer) {
  Table table({"", ">STEP", ">SENT BY A MACHINE"});
  table.row({"now, measured", human_time(answer.measured_ns()), ""});
  table.row({"now, predicted", human_time(answer.now_ns()), human_bytes(answer.now_bytes())});
  table.row({"on " + std::to_string(answer.machines()) + " machines", human_time(answer.step_ns()),
             human_bytes(answer.sent_bytes())});
  return answer.job() + "/" + answer.communicator() + ": " + answer.plan() + "\n" + table.text() +
         "a step counts from its first gradient; the last one is there after " +
         human_time(answer.backward_ns()) + "\n";
}

namespace {

std::string rate_text(double ns_per_byte) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB/s", ns_per_byte > 0 ? 1 / ns_per_byte : 0);
  return text;
}

std::string link_text(const v1::JobProfile& profile) {
  const std::string way = ", one way " + human_time(profile.trip_ns()) + "\n";
  const double bits = profile.link_bits_per_second();
  if (bits <= 0) return "the link delays nothing" + way;
  char text[32];
  std::snprintf(text, sizeof(text), bits < 1e9 ? "%.0f Mbit/s" : "%.2f Gbit/s",
                bits < 1e9 ? bits / 1e6 : bits / 1e9);
  return std::string("a link of ") + text + " explains what steps took" + way;
}

std::string machines_text(const v1::JobProfile& profile) {
  std::string text;
  if (profile.machines_heard() > 0) {
    text += "by the slowest of " + std::to_string(uint64_t{profile.machines_heard()} + 1) +
            " machines that were heard\n";
  }
  if (!profile.left_out().empty()) text += "without " + profile.left_out() + "\n";
  return text;
}

std::string work_text(const v1::JobProfile& profile) {
  std::string text = "a step takes " + human_time(profile.step_ns());
  if (profile.period_ns() > 0) {
    text += ", " + human_time(profile.period_ns()) + " from one to the next";
  }
  if (profile.busy_ns() > 0) text += "; the daemon works " + human_time(profile.busy_ns());
  if (profile.arithmetic_ns() > 0) {
    text += (profile.busy_ns() > 0 ? " of it" : "; the daemon works") + std::string(", ") +
            human_time(profile.arithmetic_ns()) + " in codecs and sums";
  }
  return text + "\n";
}

}  // namespace

std::string show_profile(const v1::JobProfile& profile) {
  Table codecs({"CODEC", ">ENCODES", ">DECODES"});
  for (const v1::CodecTime& one : profile.codecs()) {
    codecs.row(
        {one.codec(), rate_text(one.encode_ns_per_byte()), rate_text(one.decode_ns_per_byte())});
  }
  Table tensors({"TENSOR", ">GRADIENT AFTER"});
  for (const v1::TensorArrival& one : profile.tensors()) {
    tensors.row({one.name(), human_time(one.after_ns())});
  }
  const auto others = static_cast<uint64_t>(profile.others_seen());
  return profile.job() + "/" + profile.communicator() + ", as a search for plans goes by it\n" +
         machines_text(profile) + work_text(profile) + link_text(profile) +
         "beside codecs an operation takes " + human_time(profile.operation_ns()) + ", a tensor " +
         human_time(profile.tensor_ns()) + ", a frame " + human_time(profile.frame_ns()) +
         ", a MiB " + human_time(static_cast<uint64_t>(profile.wire_ns_per_byte() * (1 << 20))) +
         "\n" +
         (others == 0 ? ""
                      : "fitted to " + std::to_string(others) + " more plans that were tried\n") +
         "\n" + codecs.text() + "\n" + tensors.text();
}

std::string codecs_text(const v1::Tensor& tensor) {
  if (tensor.rack_codec().empty()) return tensor.codec();
  return tensor.codec() + ", in racks " + tensor.rack_codec();
}

std::string show(const v1::TensorList& tensors) {
  Table table({"TENSOR", "TYPE", ">ELEMENTS", "CODEC", "BECAUSE", ">SENT SHARE", ">GROUP",
               "COLLECTIVE", "SHAPE"});
  for (const v1::Tensor& one : tensors.tensors()) {
    table.row({one.name(), one.dtype(), human_count(one.elements()), codecs_text(one), one.reason(),
               share_text(one), std::to_string(one.group()), one.collective(),
               shape_text({one.shape().begin(), one.shape().end()})});
  }
  return full_name(tensors) + ", epoch " + std::to_string(tensors.epoch()) + "\n" +
         show_machines(tensors) +
         (table.empty() ? "no tensors\n" : codec_totals(tensors) + "\n" + table.text());
}

std::string show(const v1::PeerList& peers) {
  Table table({"JOB", "PEER", "ADDRESS", ">MACHINE", "STATE", ">HEARTBEAT", ">ROUND TRIP", ">SENT",
               ">RECEIVED", ">FRAMES OUT", ">FRAMES IN"});
  for (const v1::Peer& one : peers.peers()) {
    table.row({one.job(), one.name(), one.address(), std::to_string(one.machine()), one.state(),
               human_time(one.heartbeat_age_ns()) + " ago", human_time(one.rtt_ns()),
               human_bytes(one.bytes_sent()), human_bytes(one.bytes_received()),
               human_count(one.frames_sent()), human_count(one.frames_received())});
  }
  return table.empty() ? "no peers\n" : table.text();
}

std::string show(const v1::CodecList& codecs) {
  Table how({"CODEC", "STRENGTH", "OPTIONS", "KEEPS ZEROS", "COLLECTIVE"});
  Table why({"CODEC", "WHAT IT DOES", "USE IT FOR"});
  for (const v1::Codec& one : codecs.codecs()) {
    how.row({one.name(), strength_text(one), options_text(one), yes(one.zero_exact()),
             one.collective()});
    why.row({one.name(), one.summary(), one.advice()});
  }
  return how.text() + "\n" + why.text();
}

std::string show(const v1::CounterList& counters) {
  Table table({"COUNTER", ">VALUE", "MEANING"});
  for (const v1::Counter& one : counters.counters()) {
    if (one.value() != 0) table.row({one.name(), human_count(one.value()), one.help()});
  }
  return table.empty() ? "all counters are 0\n" : table.text();
}

std::string show(const v1::EventList& events) {
  return events.events().empty() ? "nothing is recorded of what you may see\n"
                                 : events_table(events);
}

std::string show_more(const v1::EventList& events) {
  const std::string lost =
      events.lost() == 0 ? "" : human_count(events.lost()) + " events were forgotten before this\n";
  const std::string text = events_table(events);
  return lost + text.substr(text.find('\n') + 1);
}

}  // namespace cgx::ctl
