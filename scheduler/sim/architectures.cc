// Layer lists of well-known networks, as PyTorch's libraries register them: names, shapes, and the
// floating-point operations of each layer's forward pass for one sample.
#include <string>

#include "scheduler/planners/planner.h"
#include "scheduler/sim/lines.h"
#include "scheduler/sim/model.h"

namespace cgx::scheduler::sim {
namespace {

struct Layer {
  double flops = 0;  // forward, one sample
  TensorTable tensors;
};

class Network {
 public:
  const std::vector<Layer>& layers() const { return layers_; }

  // Work without parameters: attention scores, a tied output layer.
  void work(double flops) { layers_.push_back({flops, {}}); }
  void tensor(const std::string& name, std::vector<uint64_t> shape) {
    TensorDesc tensor{.name = name, .elements = 1, .shape = std::move(shape)};
    for (const uint64_t side : tensor.shape) tensor.elements *= side;
    layers_.back().tensors.push_back(std::move(tensor));
  }
  // Square kernels; `size` is the output's side.
  void convolution(const std::string& name, uint64_t in, uint64_t out, uint64_t kernel,
                   uint64_t size, bool bias = false) {
    work(2.0 * static_cast<double>(in * out * kernel * kernel * size * size));
    tensor(name + ".weight", {out, in, kernel, kernel});
    if (bias) tensor(name + ".bias", {out});
  }
  // Batch or layer norm over `positions` values of each of `width`.
  void norm(const std::string& name, uint64_t width, uint64_t positions) {
    work(8.0 * static_cast<double>(width * positions));
    tensor(name + ".weight", {width});
    tensor(name + ".bias", {width});
  }
  void linear(const std::string& name, uint64_t in, uint64_t out, uint64_t positions = 1) {
    work(2.0 * static_cast<double>(in * out * positions));
    tensor(name + ".weight", {out, in});
    tensor(name + ".bias", {out});
  }
  void embedding(const std::string& name, uint64_t rows, uint64_t width, uint64_t positions) {
    work(static_cast<double>(width * positions));
    tensor(name, {rows, width});
  }
  // Scores and their products with the values, all heads.
  void attention(uint64_t width, uint64_t positions) {
    work(4.0 * static_cast<double>(width * positions * positions));
  }

 private:
  std::vector<Layer> layers_;
};

void bottleneck(Network& net, const std::string& name, uint64_t in, uint64_t width, uint64_t size,
                uint64_t stride) {
  const uint64_t out = 4 * width, before = size * stride;  // the stride lies in the 3x3
  net.convolution(name + ".conv1", in, width, 1, before);
  net.norm(name + ".bn1", width, before * before);
  net.convolution(name + ".conv2", width, width, 3, size);
  net.norm(name + ".bn2", width, size * size);
  net.convolution(name + ".conv3", width, out, 1, size);
  net.norm(name + ".bn3", out, size * size);
  if (in == out) return;
  net.convolution(name + ".downsample.0", in, out, 1, size);
  net.norm(name + ".downsample.1", out, size * size);
}

void resnet(Network& net, const std::vector<uint64_t>& blocks) {
  net.convolution("conv1", 3, 64, 7, 112);
  net.norm("bn1", 64, 112 * 112);
  uint64_t in = 64, size = 56;
  for (uint64_t stage = 0; stage < blocks.size(); ++stage) {
    const uint64_t width = uint64_t{64} << stage;
    for (uint64_t block = 0; block < blocks[stage]; ++block) {
      const uint64_t stride = stage > 0 && block == 0 ? 2 : 1;
      if (stride == 2) size /= 2;
      bottleneck(net, "layer" + std::to_string(stage + 1) + "." + std::to_string(block), in, width,
                 size, stride);
      in = 4 * width;
    }
  }
  net.linear("fc", 2048, 1000);
}

void resnet50(Network& net) {
  resnet(net, {3, 4, 6, 3});
}
void resnet101(Network& net) {
  resnet(net, {3, 4, 23, 3});
}

void vgg16(Network& net) {
  const uint64_t widths[][3] = {
      {64, 64, 0}, {128, 128, 0}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
  uint64_t in = 3, size = 224, index = 0;
  for (const auto& stage : widths) {
    for (const uint64_t out : stage) {
      if (out == 0) continue;
      net.convolution("features." + std::to_string(index), in, out, 3, size, true);
      in = out;
      index += 2;  // and its ReLU
    }
    ++index;  // pooling
    size /= 2;
  }
  net.linear("classifier.0", 512 * 7 * 7, 4096);
  net.linear("classifier.3", 4096, 4096);
  net.linear("classifier.6", 4096, 1000);
}

constexpr uint64_t kWidth = 768, kWide = 3072, kBlocks = 12;  // of the three transformers

void bert(Network& net) {
  const uint64_t tokens = 128;
  net.embedding("embeddings.word_embeddings.weight", 30522, kWidth, tokens);
  net.tensor("embeddings.position_embeddings.weight", {512, kWidth});
  net.tensor("embeddings.token_type_embeddings.weight", {2, kWidth});
  net.norm("embeddings.LayerNorm", kWidth, tokens);
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const std::string name = "encoder.layer." + std::to_string(block);
    for (const char* part : {"query", "key", "value"}) {
      net.linear(name + ".attention.self." + part, kWidth, kWidth, tokens);
    }
    net.attention(kWidth, tokens);
    net.linear(name + ".attention.output.dense", kWidth, kWidth, tokens);
    net.norm(name + ".attention.output.LayerNorm", kWidth, tokens);
    net.linear(name + ".intermediate.dense", kWidth, kWide, tokens);
    net.linear(name + ".output.dense", kWide, kWidth, tokens);
    net.norm(name + ".output.LayerNorm", kWidth, tokens);
  }
  net.linear("pooler.dense", kWidth, kWidth);
}

void gpt2(Network& net) {
  const uint64_t tokens = 1024, words = 50257;
  net.embedding("wte.weight", words, kWidth, tokens);
  net.tensor("wpe.weight", {1024, kWidth});
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const std::string name = "h." + std::to_string(block);
    net.norm(name + ".ln_1", kWidth, tokens);
    net.linear(name + ".attn.c_attn", kWidth, 3 * kWidth, tokens);
    net.attention(kWidth, tokens);
    net.linear(name + ".attn.c_proj", kWidth, kWidth, tokens);
    net.norm(name + ".ln_2", kWidth, tokens);
    net.linear(name + ".mlp.c_fc", kWidth, kWide, tokens);
    net.linear(name + ".mlp.c_proj", kWide, kWidth, tokens);
  }
  net.norm("ln_f", kWidth, tokens);
  net.work(2.0 * static_cast<double>(kWidth * words * tokens));  // the output layer is wte
}

void vit(Network& net) {
  const uint64_t tokens = 197;  // 14 x 14 patches and the class
  net.embedding("class_token", 1, kWidth, 1);
  net.convolution("conv_proj", 3, kWidth, 16, 14, true);
  net.embedding("encoder.pos_embedding", tokens, kWidth, tokens);
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const std::string name = "encoder.layers.encoder_layer_" + std::to_string(block);
    net.norm(name + ".ln_1", kWidth, tokens);
    net.linear(name + ".self_attention.in_proj", kWidth, 3 * kWidth, tokens);
    net.attention(kWidth, tokens);
    net.linear(name + ".self_attention.out_proj", kWidth, kWidth, tokens);
    net.norm(name + ".ln_2", kWidth, tokens);
    net.linear(name + ".mlp.0", kWidth, kWide, tokens);
    net.linear(name + ".mlp.3", kWide, kWidth, tokens);
  }
  net.norm("encoder.ln", kWidth, tokens);
  net.linear("heads.head", kWidth, 1000);
}

// A language model of two layers, whose output layer is its embedding.
void lstm(Network& net) {
  const uint64_t words = 33278, width = 1500, steps = 35;
  net.embedding("encoder.weight", words, width, steps);
  for (const char* layer : {"0", "1"}) {
    net.work(2.0 * static_cast<double>(2 * 4 * width * width * steps));
    net.tensor(std::string("rnn.weight_ih_l") + layer, {4 * width, width});
    net.tensor(std::string("rnn.weight_hh_l") + layer, {4 * width, width});
    net.tensor(std::string("rnn.bias_ih_l") + layer, {4 * width});
    net.tensor(std::string("rnn.bias_hh_l") + layer, {4 * width});
  }
  net.work(2.0 * static_cast<double>(width * words * steps));
  net.tensor("decoder.bias", {words});
}

struct Architecture {
  const char* name;
  double batch;  // samples a step and machine
  void (*build)(Network&);
};
constexpr Architecture kArchitectures[] = {{"resnet50", 32, resnet50},
                                           {"resnet101", 32, resnet101},
                                           {"vgg16", 32, vgg16},
                                           {"bert", 32, bert},
                                           {"gpt2", 4, gpt2},
                                           {"lstm", 80, lstm},
                                           {"vit", 32, vit}};

Model timed(const Network& net, const Trainer& trainer, double batch) {
  Model model;
  for (const Layer& layer : net.layers()) {
    model.forward_ns += layer.flops * batch / trainer.flops_per_ns;
    model.table.insert(model.table.end(), layer.tensors.begin(), layer.tensors.end());
  }
  model.order = reverse_registration(model.table.size());
  model.arrival_ns.resize(model.table.size());
  size_t end = model.table.size();
  double now_ns = 0;
  for (auto layer = net.layers().rbegin(); layer != net.layers().rend(); ++layer) {
    now_ns += 2 * layer->flops * batch / trainer.flops_per_ns;
    for (size_t i = 0; i < layer->tensors.size(); ++i) model.arrival_ns[--end] = now_ns;
  }
  return model;
}

}  // namespace

std::string architecture_names() {
  std::string names;
  for (const Architecture& each : kArchitectures) {
    names.append(names.empty() ? "" : ", ").append(each.name);
  }
  return names;
}

Result<Model> make_model(std::string_view architecture, const Trainer& trainer) {
  for (const Architecture& each : kArchitectures) {
    if (each.name != architecture) continue;
    Network net;
    each.build(net);
    const double batch = trainer.batch > 0 ? trainer.batch : each.batch;
    Model model = timed(net, trainer, batch);
    model.name = each.name;
    char origin[160];
    std::snprintf(origin, sizeof origin,
                  "gaps from floating-point operations, %g samples a machine at %g TFLOP/s", batch,
                  trainer.flops_per_ns / 1e3);
    model.origin = origin;
    return model;
  }
  return Status(StatusCode::kNOT_FOUND, "no architecture \"" + std::string(architecture) +
                                            "\"; there are " + architecture_names());
}

}  // namespace cgx::scheduler::sim
