#include "tests/sim/program.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/codec.h"
#include "scheduler/plan/way.h"
#include "scheduler/planners/ceilings.h"
#include "tests/scheduler/exchange/every_codec.h"

namespace cgx::sim {
namespace {

using Kind = Item::Kind;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t pick(uint64_t n) { return engine_() % n; }
  bool percent(uint32_t p) { return pick(100) < p; }
  uint64_t number() { return engine_(); }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

// Settings an operator may ask for: what check_policy refuses is none of them.
const std::vector<CodecSpec>& all_codecs() {
  static const std::vector<CodecSpec> specs = [] {
    std::vector<CodecSpec> sound;
    for (uint8_t flags : {0, 1, 2, 3}) {
      for (CodecSpec spec : scheduler::every_codec(flags)) {
        const kernels::CodecRow& row = scheduler::row_of(spec);
        for (uint8_t bits = row.bits_min; bits <= row.bits_max; bits = uint8_t(bits + 2)) {
          spec.bits = bits;
          std::string warning;
          if (!kernels::validate(spec, DType::kF32).ok()) continue;
          if (kernels::check_policy(spec, &warning).ok()) sound.push_back(spec);
        }
      }
    }
    return sound;
  }();
  return specs;
}

CodecSpec random_codec(Random& random) {
  if (random.percent(25)) return {.codec = 0, .bucket = 512};
  CodecSpec spec = all_codecs()[random.pick(all_codecs().size())];
  if (!scheduler::row_of(spec).sparse) spec.bucket = random.one_of<uint32_t>({64, 512, 1024});
  return spec;
}

scheduler::Policy random_policy(Random& random) {
  scheduler::Policy policy;
  policy.default_codec = random_codec(random);
  for (uint64_t rules = random.pick(3); rules > 0; --rules) {
    policy.rules.push_back(
        {random.one_of<const char*>({"a", "w1", "w[2-4]", "b$"}), random_codec(random)});
  }
  policy.min_elements = random.one_of<uint64_t>({1, 64, 1024});
  policy.raw_one_dimensional = random.percent(50);
  policy.group_bytes = uint64_t{256} << random.pick(11);
  policy.window = 1 + static_cast<uint32_t>(random.pick(8));
  policy.replica_check_steps = static_cast<uint32_t>(random.pick(4));
  policy.collective = static_cast<scheduler::CollectiveWish>(random.pick(3));
  policy.feedback_decay = random.one_of<float>({1.0f, 1.0f, 0.75f});
  policy.stats_steps = static_cast<uint32_t>(random.pick(4));
  return policy;
}

Cluster::Tensor random_tensor(Random& random, uint64_t number) {
  Cluster::Tensor tensor;
  tensor.name = std::string(random.one_of<const char*>({"a", "b", "w"})) + std::to_string(number);
  const bool small_float = random.percent(75);
  tensor.dtype = !small_float         ? static_cast<DType>(random.pick(8))
                 : random.percent(70) ? DType::kF32
                                      : random.one_of({DType::kF16, DType::kBF16});
  const bool floating = dtype_is_small_float(tensor.dtype) || tensor.dtype == DType::kF64;
  tensor.op = floating && random.percent(50) ? ReduceOp::kAvg : ReduceOp::kSum;
  tensor.elements = random.one_of<uint64_t>({0, 1, 3, 64, 100, 1000, 1025, 3000, 7000});
  if (random.percent(6)) tensor.elements = 70'001;
  if (random.percent(50)) tensor.shape = {tensor.elements};
  return tensor;
}

Item random_step(Random& random, uint32_t ranks) {
  Item item{.kind = Kind::kStep, .seed = random.number()};
  item.fate = random.percent(65)   ? Fate::kUnsaid
              : random.percent(40) ? Fate::kKept
                                   : Fate::kDropped;
  item.absences = random.percent(35);
  item.nonfinite = random.percent(12);
  item.unit = random.percent(70) ? 1.0 : random.one_of({0.5, 1024.0, 3.0});
  item.wait_percent = random.one_of<uint32_t>({0, 0, 50, 100});
  if (ranks > 1 && random.percent(2)) {
    item.odd_rank = static_cast<uint32_t>(random.pick(ranks));
    item.odd_unit = true;
  }
  return item;
}

Item random_call(Random& random, uint32_t ranks) {
  Item item{.kind = Kind::kCall, .seed = random.number()};
  item.dtype = static_cast<DType>(random.pick(8));
  const bool floating = dtype_is_small_float(item.dtype) || item.dtype == DType::kF64;
  item.op = floating && random.percent(50) ? ReduceOp::kAvg : ReduceOp::kSum;
  item.elements = random.one_of<uint64_t>({0, 1, 5, 255, 2000, 9000});
  item.wait_percent = random.one_of<uint32_t>({0, 0, 30, 100});
  if (ranks > 1 && random.percent(4)) item.odd_rank = static_cast<uint32_t>(random.pick(ranks));
  return item;
}

Item random_end(Random& random, const Program& program) {
  Item item{.seed = random.number()};
  item.rank = static_cast<uint32_t>(random.pick(program.ranks()));
  const auto machines = static_cast<uint32_t>(program.shape.size());
  item.machine = static_cast<uint32_t>(random.pick(machines));
  item.other = (item.machine + 1 + static_cast<uint32_t>(random.pick(machines))) % machines;
  item.kind =
      random.one_of({Kind::kLeave, Kind::kLeave, Kind::kLeave, Kind::kDie, Kind::kDie, Kind::kNever,
                     Kind::kKillDaemon, Kind::kStopDaemon, Kind::kDisconnect});
  item.closes_only = random.percent(50);
  const bool of_machines = item.kind == Kind::kKillDaemon || item.kind == Kind::kStopDaemon ||
                           item.kind == Kind::kDisconnect;
  if (of_machines && (machines == 1 || item.other == item.machine)) item.kind = Kind::kDie;
  return item;
}

const char* const kKindNames[] = {"step",   "call",        "commit",      "abandon",
                                  "leave",  "die",         "late",        "never",
                                  "policy", "kill daemon", "stop daemon", "disconnect"};
const char* const kFateNames[] = {"", ", said kept", ", dropped"};

std::string text_of(const scheduler::Policy& policy) {
  std::string text = kernels::to_string(policy.default_codec);
  for (const scheduler::PolicyRule& rule : policy.rules) {
    text += "; " + rule.match + " -> " + kernels::to_string(rule.codec);
  }
  return text + "; groups of " + std::to_string(policy.group_bytes) + " bytes, pieces of " +
         std::to_string(policy.segment_bytes) + ", window " + std::to_string(policy.window) + ", " +
         scheduler::wish_name(policy.collective) +
         (policy.rack_codec ? ", in racks " + kernels::to_string(*policy.rack_codec) : "") +
         ", decay " + std::to_string(policy.feedback_decay).substr(0, 4) + ", min " +
         std::to_string(policy.min_elements) + (policy.raw_one_dimensional ? ", 1-d raw" : "") +
         ", replicas every " + std::to_string(policy.replica_check_steps) + ", stats every " +
         std::to_string(policy.stats_steps) + ", mode " +
         scheduler::kPlanModes[static_cast<size_t>(policy.mode)] + ", ceilings " +
         scheduler::kCeilingPlanners[static_cast<size_t>(policy.ceilings)];
}

}  // namespace

uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = seed;
  for (uint64_t word : {a, b, c}) {
    x = (x ^ word) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 29;
    x = x * 0xBF58476D1CE4E5B9ull + 0x632BE59BD9B4E019ull;
    x ^= x >> 32;
  }
  return x;
}

uint32_t Program::ranks() const {
  return std::accumulate(shape.begin(), shape.end(), 0u);
}

uint32_t Program::machine_of(uint32_t rank) const {
  uint32_t machine = 0;
  for (; rank >= shape[machine]; ++machine) rank -= shape[machine];
  return machine;
}

SitePace Program::slowest() const {
  return *std::max_element(sites.begin(), sites.end());
}

uint32_t Program::failing_machine() const {
  const auto slow = std::find_if(sites.begin(), sites.end(),
                                 [](SitePace pace) { return pace != SitePace::kInline; });
  if (site_fails_at == 0 || slow == sites.end()) return UINT32_MAX;
  return static_cast<uint32_t>(slow - sites.begin());
}

std::string Item::text() const {
  std::string text = kKindNames[static_cast<size_t>(kind)];
  const auto odd = [&] {
    return odd_rank == kNobody ? "" : ", but rank " + std::to_string(odd_rank);
  };
  switch (kind) {
    case Kind::kStep:
      text += absences ? ", some absent" : "";
      text += nonfinite ? ", NaN and Inf" : "";
      if (unit != 1) text += ", unit " + std::to_string(unit);
      text += std::string(kFateNames[static_cast<size_t>(fate)]) + ", " +
              std::to_string(wait_percent) + " % wait" + odd() +
              (odd_rank == kNobody ? ""
               : odd_unit          ? " in another unit"
                                   : " kept it");
      break;
    case Kind::kCall:
      text += " " + std::string(dtype_name(dtype)) + "[" + std::to_string(elements) + "] " +
              std::string(reduce_op_name(op)) + ", " + std::to_string(wait_percent) + " % wait" +
              odd() + (odd_rank == kNobody ? "" : " submits one element more");
      break;
    case Kind::kCommit:
      text += " with " + std::to_string(tensors) + " more tensors";
      break;
    case Kind::kPolicy:
      text += " through machine " + std::to_string(machine) + " when rank " + std::to_string(rank) +
              " is there: " + text_of(policy);
      break;
    case Kind::kKillDaemon:
    case Kind::kStopDaemon:
    case Kind::kDisconnect:
      text += " of machine " + std::to_string(machine);
      if (kind == Kind::kDisconnect) text += " from machine " + std::to_string(other);
      text += " when rank " + std::to_string(rank) + " is there";
      break;
    case Kind::kAbandon:
    case Kind::kLeave:
    case Kind::kDie:
    case Kind::kLate:
    case Kind::kNever:
      text += ": rank " + std::to_string(rank);
      if (kind == Kind::kLeave) text += closes_only ? " closes" : " says goodbye";
      if (kind == Kind::kLate) text += ", " + std::to_string(sleep_ns / 1'000'000'000) + " s";
  }
  return text;
}

const char* pace_text(SitePace pace) {
  switch (pace) {
    case SitePace::kInline:
      return "inline";
    case SitePace::kPriced:
      return "priced";
    case SitePace::kLate:
      return "late";
  }
  return "?";
}

std::string Program::text() const {
  std::string text = "program " + std::to_string(seed) + ": ranks per machine";
  for (uint32_t count : shape) text += " " + std::to_string(count);
  text += ", latency " + std::to_string(latency_ns / 1000) + " us, jitter " +
          std::to_string(jitter_ns / 1000) + " us, spikes " + std::to_string(spike_ns / 1000) +
          " us, planning " + std::to_string(planning_ns / 1000) + " us, thinking " +
          std::to_string(think_ns / 1000) + " us, notices " + std::to_string(notice_percent) +
          " %, sites";
  for (const SitePace site : sites) text += std::string(" ") + pace_text(site);
  text += " up to " + std::to_string(site_ns / 1000) + " us";
  if (failing_machine() != UINT32_MAX) text += ", lost at job " + std::to_string(site_fails_at);
  text += "\n  policy " + text_of(policy) + "\n";
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Cluster::Tensor& tensor = tensors[t];
    text += "  tensor " + std::to_string(t) + (t < first_tensors ? "" : " (later)") + ": " +
            tensor.name + " " + std::string(dtype_name(tensor.dtype)) + "[" +
            std::to_string(tensor.elements) + "] " + std::string(reduce_op_name(tensor.op)) +
            (tensor.shape.size() == 1 ? " 1-d" : "") + "\n";
  }
  uint64_t step = 0, call = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    text += "  " + std::to_string(i) + ": " + items[i].text();
    if (items[i].kind == Kind::kStep) text += "  (step " + std::to_string(step++) + ")";
    if (items[i].kind == Kind::kCall) text += "  (call " + std::to_string(call++) + ")";
    text += "\n";
  }
  return text;
}

// One program in five runs on racks, mostly in two levels, half of them without loss.
bool has_racks(uint64_t seed) {
  return mix(seed, 0x7261636B) % 5 == 0;
}

void put_on_racks(Program& program) {
  const auto machines = static_cast<uint32_t>(program.shape.size());
  uint64_t number = 0;
  const auto change = [&](scheduler::Policy& policy) {
    const uint64_t draw = mix(program.seed, 0x7261636C, ++number);
    if (draw % 4 == 0) return;
    policy.collective = scheduler::CollectiveWish::kTwoLevel;
    policy.rack_machines = machines == 6 && draw % 8 < 4 ? 3 : 2;
    if (draw / 8 % 2 == 0) return;
    policy.default_codec = {.codec = 0, .bucket = 512};
    policy.rules.clear();
  };
  change(program.policy);
  for (Item& item : program.items) {
    if (item.kind == Kind::kPolicy) change(item.policy);
  }
}

// One program in four cuts tensors into pieces; many of them would take slow sites too long.
void cut_tensors(Program& program) {
  const bool slow = program.site_ns > 1'000'000 &&
                    std::any_of(program.sites.begin(), program.sites.end(),
                                [](SitePace pace) { return pace != SitePace::kInline; });
  uint64_t number = 0;
  const auto change = [&](scheduler::Policy& policy) {
    const uint64_t kPieces[] = {0, slow ? 100'000u : 256u, slow ? 150'000u : 2048u, 60'000};
    policy.segment_bytes = kPieces[mix(program.seed, 0x637575, ++number) % std::size(kPieces)];
  };
  change(program.policy);
  for (Item& item : program.items) {
    if (item.kind == Kind::kPolicy) change(item.policy);
  }
}

// Draws of its own, so that programs are otherwise what they were: some policies find bits by
// layer, where their codec has any.
static void set_ceilings(Program& program) {
  Random random(mix(program.seed, 0x6365696C));
  const auto set = [&](scheduler::Policy& policy) {
    scheduler::Policy layerwise = policy;
    layerwise.ceilings = scheduler::CeilingPlanner::klayerwise;
    layerwise.layerwise_alpha = random.one_of<float>({0.1f, 1.0f, 1.0f, 10.0f});
    layerwise.layerwise_solver = static_cast<scheduler::LayerSolver>(random.pick(2));
    layerwise.stats_steps = 1 + static_cast<uint32_t>(random.pick(2));
    if (random.percent(40) && check_ceilings(layerwise).ok()) policy = layerwise;
    scheduler::Policy gravac = policy;
    gravac.ceilings = scheduler::CeilingPlanner::kgravac;
    gravac.gravac_epsilon = random.one_of<float>({0.01f, 0.5f, 0.9f});
    gravac.stats_steps = 1;
    if (random.percent(60) && check_ceilings(gravac).ok()) policy = gravac;
  };
  set(program.policy);
  for (Item& item : program.items) {
    if (item.kind == Kind::kPolicy) set(item.policy);
  }
}

// Two in three of the policies in two levels have a codec of their own within racks: none, or one
// of more bits than most tensors have.
void give_rack_codecs(Program& program) {
  const CodecSpec kCodecs[] = {
      {.codec = 0, .bucket = 512},
      {.codec = 3, .bits = 8, .bucket = 192},
      {.codec = 3, .bits = 6, .flags = CodecSpec::kStochastic, .bucket = 512},
      {.codec = 2, .bucket = 64}};
  uint64_t number = 0;
  const auto change = [&](scheduler::Policy& policy) {
    const uint64_t draw = mix(program.seed, 0x7261636E, ++number);
    if (policy.collective != scheduler::CollectiveWish::kTwoLevel || draw % 3 == 0) return;
    policy.rack_codec = kCodecs[draw / 3 % std::size(kCodecs)];
    std::vector<std::string> warnings;
    if (!check_rack_codec(policy, warnings).ok()) policy.rack_codec.reset();
  };
  change(program.policy);
  for (Item& item : program.items) {
    if (item.kind == Kind::kPolicy) change(item.policy);
  }
}

// Draws of its own, so that programs are otherwise what they were.
static void search_plans(Program& program) {
  Random random(mix(program.seed, 0x6175746F));
  if (!random.percent(40)) return;
  program.search = {.warm_up = static_cast<uint32_t>(random.pick(2)),
                    .samples = 1 + static_cast<uint32_t>(random.pick(2)),
                    .block = 1 + static_cast<uint32_t>(random.pick(2)),
                    .pairs = 2 + static_cast<uint32_t>(random.pick(3))};
  const auto search = [&](scheduler::Policy& policy) {
    if (random.percent(25)) return;
    policy.mode = random.percent(70) ? scheduler::PlanMode::kAuto : scheduler::PlanMode::kMerge;
    for (uint64_t n = random.pick(3); n > 0; --n) policy.menu.push_back(random_codec(random));
    if (random.percent(75)) policy.stats_steps = policy.replica_check_steps = 0;
  };
  search(program.policy);
  for (Item& item : program.items) {
    if (item.kind == Kind::kPolicy) search(item.policy);
  }
  // Enough steps for a trial or two.
  const auto step = std::find_if(program.items.rbegin(), program.items.rend(),
                                 [](const Item& item) { return item.kind == Kind::kStep; });
  Item more = *step;
  more.odd_rank = Item::kNobody;
  for (uint64_t n = random.pick(16); n > 0; --n) {
    more.seed = random.number();
    program.items.push_back(more);
  }
}

Program program_of(uint64_t seed) {
  Random random(mix(seed, 0x70726F67));
  Program program;
  program.seed = seed;
  const uint64_t drawn = random.one_of<uint64_t>({1, 2, 2, 2, 3, 3, 3, 4, 5});
  const uint64_t machines = !has_racks(seed) ? drawn : mix(seed, 0x7261636D) % 3 == 0 ? 6 : 4;
  for (uint64_t k = 0; k < machines; ++k) {
    program.shape.push_back(random.one_of<uint32_t>({1, 1, 1, 2, 2, 3}));
  }
  program.policy = random_policy(random);
  constexpr int64_t kPlanning[] = {0, 0, 100'000, 5'000'000, 50'000'000, 600'000'000};
  program.planning_ns = kPlanning[mix(seed, 0x706C616E) % std::size(kPlanning)];
  for (uint64_t k = 0; k < machines; ++k) {
    constexpr SitePace kPaces[] = {SitePace::kInline, SitePace::kInline, SitePace::kPriced,
                                   SitePace::kLate, SitePace::kLate};
    const bool any_slow = mix(seed, 0x73697465) % 2 == 0;
    SitePace pace =
        any_slow ? kPaces[mix(seed, 0x73697465, k + 1) % std::size(kPaces)] : SitePace::kInline;
    const bool none_late = mix(seed, 0x73697467) % 5 < 2;
    if (none_late && pace == SitePace::kLate) pace = SitePace::kPriced;
    program.sites.push_back(pace);
  }
  constexpr int64_t kSites[] = {10'000, 500'000, 20'000'000, 400'000'000};
  program.site_ns = kSites[mix(seed, 0x73697466) % std::size(kSites)];
  if (mix(seed, 0x6C6F7374) % 8 == 0) program.site_fails_at = 1 + mix(seed, 0x6C6F7375) % 80;
  program.latency_ns = random.one_of<int64_t>({1'000, 20'000, 20'000, 200'000, 2'000'000});
  program.jitter_ns = random.one_of<int64_t>({0, 10'000, 500'000, 5'000'000});
  program.spike_ns = random.one_of<int64_t>({0, 0, 20'000'000, 300'000'000});
  program.think_ns = random.one_of<int64_t>({0, 30'000, 1'000'000, 20'000'000});
  program.notice_percent = random.one_of<uint32_t>({0, 20, 100});
  program.first_tensors = 1 + static_cast<uint32_t>(random.pick(6));
  uint32_t tensors = program.first_tensors;
  const uint32_t ranks = program.ranks();
  const auto rank = [&] { return static_cast<uint32_t>(random.pick(ranks)); };
  const bool redone = random.percent(45), operated = random.percent(60), grows = random.percent(35),
             calls = random.percent(60), late = random.percent(8);
  const uint64_t steps = 3 + random.pick(9);
  for (uint64_t step = 0; step < steps; ++step) {
    if (operated && random.percent(35)) {
      Item item{.kind = Kind::kPolicy, .seed = random.number(), .rank = rank()};
      item.machine = static_cast<uint32_t>(random.pick(machines));
      item.policy = random_policy(random);
      program.items.push_back(item);
    }
    if (redone && random.percent(25)) {
      program.items.push_back({.kind = Kind::kAbandon, .seed = random.number(), .rank = rank()});
    }
    if (late && random.percent(20)) {
      Item item{.kind = Kind::kLate, .seed = random.number(), .rank = rank()};
      item.sleep_ns = static_cast<int64_t>(1 + random.pick(11)) * 1'000'000'000;
      program.items.push_back(item);
    }
    for (uint64_t n = calls ? random.pick(4) : 0; n > 0; --n) {
      program.items.push_back(random_call(random, ranks));
    }
    program.items.push_back(random_step(random, ranks));
    if (grows && random.percent(25)) {
      Item item{.kind = Kind::kCommit, .seed = random.number()};
      item.tensors = static_cast<uint32_t>(random.pick(3));
      tensors += item.tensors;
      program.items.push_back(item);
    }
  }
  for (uint64_t n = calls ? random.pick(4) : 0; n > 0; --n) {
    program.items.push_back(random_call(random, ranks));
  }
  for (uint32_t t = 0; t < tensors; ++t) program.tensors.push_back(random_tensor(random, t));
  if (random.percent(40)) {
    const auto at = static_cast<int64_t>(random.pick(program.items.size() + 1));
    program.items.insert(program.items.begin() + at, random_end(random, program));
  }
  if (random.percent(4) && ranks > 1) {
    for (Item& item : program.items) {
      if (item.kind != Kind::kStep || item.fate != Fate::kDropped) continue;
      item.odd_rank = rank();
      item.odd_unit = false;
      break;
    }
  }
  if (has_racks(seed)) put_on_racks(program);
  if (mix(seed, 0x637574) % 4 == 0) cut_tensors(program);
  search_plans(program);
  set_ceilings(program);
  give_rack_codecs(program);
  return program;
}

}  // namespace cgx::sim
