// What cgxsim computes: models, files, costs, runs.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "scheduler/sim/bars.h"
#include "scheduler/sim/cost_file.h"
#include "scheduler/sim/lines.h"
#include "scheduler/sim/model.h"
#include "scheduler/sim/pictures.h"
#include "scheduler/sim/published.h"
#include "scheduler/sim/run.h"

namespace cgx::scheduler::sim {
namespace {

// Parameters and tensors as PyTorch counts them; operations (two a multiplication) as papers and
// torchvision tell, 0: depends on the length of the input.
struct Known {
  const char* name;
  uint64_t parameters;
  size_t tensors;
  double gflops;
};
constexpr Known kKnown[] = {
    {"resnet50", 25'557'032, 161, 8.18}, {"resnet101", 44'549'160, 314, 15.6},
    {"vgg16", 138'357'544, 32, 30.9},    {"bert", 109'482'240, 199, 0},
    {"gpt2", 124'439'808, 148, 0},       {"lstm", 85'974'278, 10, 0},
    {"vit", 86'567'656, 152, 35.1}};

TEST(Architectures, HaveThePublishedParametersAndOperations) {
  for (const Known& known : kKnown) {
    const auto model = make_model(known.name, {.batch = 1, .flops_per_ns = 1});
    ASSERT_TRUE(model.ok());
    EXPECT_EQ(model->parameters(), known.parameters) << known.name;
    EXPECT_EQ(model->table.size(), known.tensors) << known.name;
    if (known.gflops > 0) {
      EXPECT_NEAR(model->forward_ns / 1e9, known.gflops, 0.03 * known.gflops) << known.name;
    }
    EXPECT_NE(architecture_names().find(known.name), std::string::npos);
  }
}

TEST(Architectures, HandOverGradientsFromTheLastLayerToTheFirst) {
  for (const Known& known : kKnown) {
    const auto model = make_model(known.name, {});
    EXPECT_NEAR(model->backward_ns(), 2 * model->forward_ns, 1) << known.name;
    double last_ns = 0;
    std::set<std::string> names;
    for (const uint32_t t : model->order) {
      EXPECT_GE(model->arrival_ns[t], last_ns) << known.name << " " << model->table[t].name;
      last_ns = model->arrival_ns[t];
      EXPECT_TRUE(names.insert(model->table[t].name).second) << model->table[t].name;
    }
    EXPECT_EQ(last_ns, model->backward_ns());
  }
  EXPECT_EQ(make_model("resnet50", {})->table[make_model("resnet50", {})->order[1]].name,
            "fc.weight");
}

TEST(Architectures, NameThoseThereAre) {
  const auto model = make_model("alexnet", {});
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.status().message().find("there are resnet50, resnet101"), std::string::npos);
}

TEST(ModelFile, IsReadAsItIsPrinted) {
  const auto model = make_model("gpt2", {});
  const auto read = parse_model(print_model(*model), "gpt2.txt");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->parameters(), model->parameters());
  EXPECT_NEAR(read->backward_ns(), model->backward_ns(), 1e-6 * model->backward_ns() + 1000);
  EXPECT_NEAR(read->forward_ns, model->forward_ns, 1);
  EXPECT_EQ(read->table[0].name, model->table[model->order[0]].name);
}

std::string model_error(const std::string& text) {
  return parse_model(text, "mine.txt").status().message();
}

TEST(ModelFile, NamesWhatIsWrongWithFileAndLine) {
  const std::string good = "tensor a 4x4 10us\n";
  EXPECT_TRUE(parse_model(good, "mine.txt").ok());
  EXPECT_EQ(model_error("# nothing\n"),
            "mine.txt: no tensors; a line \"tensor NAME SHAPE GAP\" each");
  EXPECT_EQ(model_error(good + "tensor b 4x4 -3us\n"),
            "mine.txt:2: gap of b: \"-3us\" is not a time: it is negative");
  EXPECT_EQ(model_error(good + "tensor a 8 1us\n"), "mine.txt:2: a is there twice");
  EXPECT_NE(model_error("tensor a 4y4 1us\n").find("\"4y4\" is not a shape"), std::string::npos);
  EXPECT_NE(model_error("tensor a 4x 1us\n").find("not a shape"), std::string::npos);
  EXPECT_NE(model_error("tensor a 0 1us\n").find("not a shape"), std::string::npos);
  EXPECT_NE(model_error("tensor a 99999999x99999999 1us\n").find("not a shape"), std::string::npos);
  EXPECT_NE(model_error("tensor a 4 3\n").find("not a time such as"), std::string::npos);
  EXPECT_NE(model_error("tensor a 4 nan\n").find("not a time such as"), std::string::npos);
  EXPECT_NE(model_error("layer a 4 1us\n").find("mine.txt:1: expects"), std::string::npos);
  EXPECT_NE(model_error("tensor a 4 0\n").find("takes no time"), std::string::npos);
}

TEST(Figures, CarryTheirUnit) {
  EXPECT_EQ(*parse_time_ns("1.5ms"), 1.5e6);
  EXPECT_EQ(*parse_time_ns("0"), 0);
  EXPECT_FALSE(parse_time_ns("5").ok());
  EXPECT_FALSE(parse_time_ns("inf s").ok());
  EXPECT_DOUBLE_EQ(*parse_rate("25gbit"), 0.32);
  EXPECT_DOUBLE_EQ(*parse_rate("500mbit/s"), 16);
  for (const char* bad : {"25", "0gbit", "-1gbit", "25 gbyte", ""})
    EXPECT_FALSE(parse_rate(bad).ok());
}

TEST(CostFile, GivesTheLaneAskedForAndTheBestOtherwise) {
  const auto best = parse_costs(builtin_costs(), "builtin", "");
  const auto scalar = parse_costs(builtin_costs(), "builtin", "scalar");
  ASSERT_TRUE(best.ok() && scalar.ok());
  EXPECT_FALSE(best->processor.empty());
  const CodecSpec four{.codec = 3, .bits = 4, .flags = CodecSpec::kStochastic, .bucket = 512};
  EXPECT_GT(scalar->curves_of(four)->encode.ns_per_byte,
            10 * best->curves_of(four)->encode.ns_per_byte);
  EXPECT_GT(best->copy_ns_per_byte, 0);
  EXPECT_GT(best->operation_ns, 0);
}

TEST(CostFile, NamesWhatIsWrong) {
  const auto error = [](const std::string& text, const char* lane = "") {
    return parse_costs(text, "costs.json", lane).status().message();
  };
  const std::string row = R"({"codec": "fp32", "lane": "avx2", "encode": 15, "decode": 14})";
  EXPECT_EQ(error(row), "");
  EXPECT_EQ(error(""), "costs.json: has no codec");
  EXPECT_EQ(error(row, "neon"), "costs.json: nothing of lane neon; it has avx2");
  EXPECT_NE(error(R"({"codec": "fp32", "lane": "avx2", "encode": -1, "decode": 3})")
                .find("costs.json:1: encode"),
            std::string::npos);
  EXPECT_NE(error("[" + row + ",\n" + R"({"codec": "zip", "lane": "x", "encode": 1, "decode": 1})")
                .find("costs.json:2: "),
            std::string::npos);
  const auto told = parse_costs(row + "\n{\"operation_ns\": 7, \"frame_ns\": 2}", "costs.json", "");
  EXPECT_EQ(told->operation_ns, 7);
  EXPECT_EQ(told->frame_ns, 2);
}

Conditions conditions_at(const char* rate) {
  return {*parse_costs(builtin_costs(), "builtin", ""), {*parse_rate(rate), 50'000}, 0};
}

Policy exact() {
  Policy policy;
  policy.default_codec = {.codec = 0, .bucket = 512};
  return policy;
}

TEST(Runs, SendWhatTheArithmeticOfRingsAndBitsSays) {
  const auto model = make_model("resnet50", {});
  const Scene scene{*model, 8, conditions_at("1gbit")};
  const auto raw = run(scene, exact(), Planner::kfixed);
  const auto four = run(scene, {}, Planner::kfixed);
  ASSERT_TRUE(raw.ok() && four.ok());
  const double whole = 4.0 * 25'557'032 * 2 * 7 / 8;
  EXPECT_NEAR(static_cast<double>(raw->timeline.sent_bytes), whole, 0.01 * whole);
  // Bound by the link: the bytes over the rate, but for what backprop hides at its start.
  EXPECT_GT(raw->step_ns(), static_cast<double>(raw->timeline.sent_bytes) * 8);
  EXPECT_LT(raw->scaling(), 0.1);
  EXPECT_GT(static_cast<double>(raw->timeline.sent_bytes),
            7 * static_cast<double>(four->timeline.sent_bytes));
  EXPECT_LT(four->step_ns(), raw->step_ns() / 5);
}

TEST(Runs, CostNothingOnOneMachine) {
  const auto model = make_model("bert", {});
  const auto alone = run({*model, 1, conditions_at("1gbit")}, {}, Planner::kfixed);
  EXPECT_EQ(alone->timeline.sent_bytes, 0u);
  EXPECT_GT(alone->scaling(), 0.99);
}

TEST(Runs, GetNoWorseWithTheirBoundariesPlanned) {
  for (const char* name : {"resnet50", "gpt2", "vgg16"}) {
    const auto model = make_model(name, {});
    for (const char* rate : {"1gbit", "10gbit", "100gbit"}) {
      const Scene scene{*model, 16, conditions_at(rate)};
      const auto fixed = run(scene, {}, Planner::kfixed);
      const auto planned = run(scene, {}, Planner::kboundaries);
      ASSERT_TRUE(planned.ok()) << planned.status().to_string();
      EXPECT_LE(planned->timeline.step_ns(), fixed->timeline.step_ns() * 1.01) << name << rate;
    }
  }
}

TEST(Bars, FollowEachOtherOnEachLaneAndEndWithTheStep) {
  const auto model = make_model("vit", {});
  const auto made = run({*model, 4, conditions_at("10gbit")}, {}, Planner::kfixed);
  std::array<double, kLanes.size()> free{};
  double end_ns = 0;
  for (const Bar& bar : bars_of(*made)) {
    EXPECT_GE(bar.end_ns, bar.begin_ns);
    end_ns = std::max(end_ns, bar.end_ns);
    if (bar.lane == 3) continue;  // operations overlap
    EXPECT_GE(bar.begin_ns, free[bar.lane] - 1e-6);
    free[bar.lane] = bar.end_ns;
  }
  EXPECT_DOUBLE_EQ(end_ns, made->step_ns());
}

TEST(Published, HitsTheFiguresItWasCalibratedOn) {
  const char* const text =
      "trainer resnet50 48ms 0.33\n"
      "codec fp32 plain\n"
      "codec dgc sends 0.08 encode 400us 4ms decode 69us 700us payloads one\n"
      "calibrate rate fp32 8 layerwise 24\n"
      "calibrate latency dgc 8 layerwise 18\n"
      "scaling a fp32 8 layerwise 24 90\n"
      "scaling b dgc 8 layerwise 18 0.5\n"
      "ratio c dgc 8 1 0.1\n";
  const auto done = validate(text, "rows.txt");
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  ASSERT_EQ(done->rows.size(), 3u);
  EXPECT_EQ(done->calibrations.size(), 2u);
  EXPECT_NEAR(done->rows[1].ours, 18, 0.01);
  EXPECT_TRUE(done->rows[1].holds());
  EXPECT_FALSE(done->rows[2].holds());  // two groups are better than 161
}

// A step of 2 ms that computes for 1: with 8 bits 1.25 ms are left of it, with 4 bits 1.125.
TEST(Published, PredictsFourBitsFromEightAndNone) {
  const auto done = validate(
      "speeds met 500 800 888.888889\nspeeds twice 500 800 444.444444\n"
      "speeds close 500 800 900\nmedian all 5\n",
      "rows.txt");
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  ASSERT_EQ(done->rows.size(), 1u);
  EXPECT_NEAR(done->rows[0].error, 1.2346, 1e-3) << "of 0, 100 and that";
  EXPECT_TRUE(done->rows[0].holds());
  EXPECT_EQ(done->predictions[1], "twice with 4 bits: 888.9, published 444.4, off by 100 %");
}

// Uncompressed a step takes twice as long as on one GPU, so that no codec gains more than that.
TEST(Published, ChoosesForEachTensorHowItGoesBetweenNodes) {
  const auto done = validate(
      "nodes 8 8 0us 20gbit\n"
      "gpucodec useless 4 0us 0us 0us\ngpucodec free 0.04 0us 0us 0us\n"
      "gpucodec dear 0.04 900us 400us 2ms\n"
      "system half resnet50 40ms 20ms 0ns 800ns 50\n"
      "gain useless half useless 1 1\ngain free half free 2 10\ngain dear half dear 2 60\n"
      "upper free half free 1 5\nupper dear half dear 1 5\n",
      "rows.txt");
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  ASSERT_EQ(done->rows.size(), 5u);
  EXPECT_EQ(done->calibrations.size(), 1u);
  EXPECT_NEAR(done->rows[0].ours, 1, 1e-6);
  EXPECT_TRUE(done->rows[1].holds()) << done->rows[1].ours;
  EXPECT_LE(done->rows[1].ours, 2);
  EXPECT_LT(done->rows[2].ours, done->rows[1].ours);
  EXPECT_GT(done->rows[2].ours, 1.05) << "the large tensors are worth it";
  EXPECT_NEAR(done->rows[3].ours, 0, 1e-6);
  EXPECT_NEAR(done->rows[3].error, 1, 1e-6);
  EXPECT_GT(done->rows[4].ours, 0) << "encoding is not free";
}

TEST(Published, NamesWhatIsWrongWithFileAndLine) {
  const auto error = [](const std::string& text) {
    return validate(text, "rows.txt").status().message();
  };
  const std::string head = "trainer resnet50 48ms 0.33\ncodec fp32 plain\n";
  EXPECT_EQ(error(head), "rows.txt: no figures; a line \"scaling ...\" or \"ratio ...\" each");
  EXPECT_EQ(error(head + "scaling a dgc 8 two 5 5\n"), "rows.txt:3: no line \"codec dgc ...\"");
  EXPECT_EQ(error(head + "scaling a fp32 1 two 5 5\n"), "rows.txt:3: 2 to 1024 machines, not 1");
  EXPECT_EQ(error(head + "scaling a fp32 8 three 5 5\n"), "rows.txt:3: a cut is layerwise or two");
  EXPECT_NE(error(head + "calibrate speed fp32 8 two 5\n").find("rate or latency"),
            std::string::npos);
  EXPECT_NE(error("codec fp32 plain\nscaling a fp32 8 two 5 5\n").find("comes before the line"),
            std::string::npos);
  EXPECT_NE(error("trainer resnet5 48ms 0.3\n").find("no architecture"), std::string::npos);
  EXPECT_EQ(error("median all 5\n"),
            "rows.txt:1: comes before any line \"speeds NAME PLAIN EIGHT FOUR\"");
  EXPECT_EQ(error("speeds a 5 0 5\n"), "rows.txt:1: a speed is a number above 0");
  const std::string nodes = "nodes 8 8 150us 20gbit\ngpucodec a 0.1 9us 5us 9us\n";
  EXPECT_NE(error("system s bert 9ms 5ms 20ns 800ns 50\n").find("comes before the line \"nodes"),
            std::string::npos);
  EXPECT_EQ(error(nodes + "gain x s a 2 5\n"), "rows.txt:3: no line \"system s ...\"");
  EXPECT_EQ(error(nodes + "system s bert 9ms 5ms 20ns 800ns 50\nupper x s b 2 5\n"),
            "rows.txt:4: no line \"gpucodec b ...\"");
  EXPECT_EQ(error(nodes + "gpucodec b 0 9us 5us 9us\n"), "rows.txt:3: 0 is not above 0");
  EXPECT_EQ(error(nodes + "gpucodec b 1 5us 9us 9us\n"),
            "rows.txt:3: decoding takes no longer than both ways");
  EXPECT_NE(error("guess 5\n").find("rows.txt:1: not a line of published figures"),
            std::string::npos);
}

}  // namespace
}  // namespace cgx::scheduler::sim
